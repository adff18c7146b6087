"""Makes a model of random weights and a tokenizer for it, so that real servers have something to serve where no model can be downloaded.

  python tinymodel.py gguf FILE      for llama.cpp (needs gguf)
  python tinymodel.py hf FOLDER      for vLLM with --load-format dummy, and a tokenizer for load generators (needs tokenizers)
"""

import json, os, sys

WORDS = ["the", "a", "of", "and", "one", "two", "three", "red", "blue", "green", "house", "river", "stone", "count", "say", "each", "number", "sentence", "brief", "hello"]
SYLLABLES = [c + v + d for c in "bdfgklmnprstvz" for v in "aeiou" for d in "lnrst"]
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% elif m['content'] %}{% for p in m['content'] %}{{ p['text'] if p['text'] is defined else '' }}{% endfor %}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"


def gguf(path):
    import gguf as g
    import numpy as np

    r = np.random.default_rng(1)
    width, layers, heads, hidden, context = 64, 2, 4, 128, 4096
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + ["\u2581" + w for w in WORDS + SYLLABLES] + [chr(c) for c in range(33, 127)] + ["\u2581"]
    kinds = [g.TokenType.UNKNOWN, g.TokenType.CONTROL, g.TokenType.CONTROL] + [g.TokenType.BYTE] * 256 + [g.TokenType.NORMAL] * (len(tokens) - 259)
    w = g.GGUFWriter(path, "llama")
    w.add_name("tiny-random")
    w.add_context_length(context)
    w.add_embedding_length(width)
    w.add_block_count(layers)
    w.add_feed_forward_length(hidden)
    w.add_head_count(heads)
    w.add_head_count_kv(heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(width // heads)
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(len(tokens))])
    w.add_token_types(kinds)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template(TEMPLATE)
    put = lambda name, *shape: w.add_tensor(name, (r.standard_normal(shape) * 0.3).astype(np.float32))
    put("token_embd.weight", len(tokens), width)
    out = (r.standard_normal((len(tokens), width)) * 0.3).astype(np.float32)
    out[3:259] *= 0.05  # bytes that are no text on their own stay rare
    w.add_tensor("output.weight", out)
    w.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(layers):
        for n in ("attn_q", "attn_k", "attn_v", "attn_output"):
            put("blk.%d.%s.weight" % (i, n), width, width)
        put("blk.%d.ffn_gate.weight" % i, hidden, width)
        put("blk.%d.ffn_up.weight" % i, hidden, width)
        put("blk.%d.ffn_down.weight" % i, width, hidden)
        w.add_tensor("blk.%d.attn_norm.weight" % i, np.ones(width, np.float32))
        w.add_tensor("blk.%d.ffn_norm.weight" % i, np.ones(width, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def hf(folder):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    os.makedirs(folder, exist_ok=True)
    # A piece is a token, and pieces are cut as the simulator cuts them: any character, and up to two more that are no white space. So a load generator that
    # makes prompts with this tokenizer and the simulator that counts them agree, on what is written in the characters below.
    lower, upper, digits, marks = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", ".,;:'!?-\""
    first, second, third = " \n" + lower + upper + digits + marks, lower + upper + digits + marks, lower + digits + marks
    pieces = ["<unk>", "<s>", "</s>"] + list(first) + [a + b for a in first for b in second] + [a + b + c for a in first for b in second for c in third]
    t = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S][^\x00-\x20]{0,2}"), "isolated")
    t.decoder = decoders.Fuse()
    t.save(os.path.join(folder, "tokenizer.json"))
    write = lambda name, o: json.dump(o, open(os.path.join(folder, name), "w"), indent=1)
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 131072, "chat_template": TEMPLATE})
    write("special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    write("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write("config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": t.get_vocab_size(), "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"})


{"gguf": gguf, "hf": hf}[sys.argv[1]](sys.argv[2])

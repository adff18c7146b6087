"""Write what the Python libraries make of a corpus, for TestAgainstPython.

    pip install tokenizers tiktoken
    python check.py OUT TOKENIZER... -- TEXTFILE...

A TOKENIZER is a tokenizer.json, a .tiktoken file named after its encoding, or an encoding's name (its vocabulary is fetched by tiktoken, or
read from NAME.tiktoken in OUT). The corpus is the text files, in pieces, and strings made here.
"""
import json, os, random, sys

import tiktoken
import tiktoken.load
import tiktoken_ext.openai_public as public
import tokenizers

# Scripts, marks, joined emoji, odd spaces, control characters, contractions, numbers, code, and what looks like a template's marks.
ATOMS = ["the", " the", "The", "hello", " world", "don't", "DON'T", "we’ll", "'s", "'S", "'ſ", "it'LL", "I'm", " naïve", "e\u0301", "é", "Å", "A\u030a",
    "\u1100\u1161", "각", "한국어", "日本語", "のは", "カタカナ", "中文字", "你好，世界", "العربية", "עברית", "हिन्दी", "ไทย", "Ελληνικά", "Русский", "ǅ", "ʰ", "ß", "İ", "ﬁ",
    "😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "\u200d", "\u00ad", "\ufeff", "\u00a0", "\u2003", "\u3000", "\u2028", "\x85", "\x00", "\x07", "\x1f", "\x7f", " ", "  ", "    ", "\t", "\n", "\r\n",
    "\n\n", "\r", "\v", "0", "12", "345", "6789", "3.14", "½", "Ⅷ", "²", "१२३", "٣", "_", "__init__", "camelCase", "HTTPServer", "snake_case", "()", "{}", "[];", "->", "!=", "...",
    "…", "—", "“", "”", "http://a.b/c?d=e&f", "a@b.co", "/", "//", "\\n", "#", "```", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<0x0A>",
    "<mask>", "<r>", "<both>", "word", "words", "<tool_call>", "<|begin_of_text|>", "▁", "▁▁", "Ġ", "aaaa", "zzzzzzzz", "ABCABC", "\U00010348", "\U0010ffff", "\ud7ff", "\ufffd"]


def corpus(files):
    r = random.Random(1)
    yield ""
    yield from ATOMS
    for n in range(6000):
        yield "".join(r.choice(ATOMS) for _ in range(r.randint(2, 24)))
    for n in range(2000):  # any characters that are assigned in the basic planes
        yield "".join(chr(r.choice([r.randint(0, 127), r.randint(0, 0x7ff), r.randint(0x800, 0xd7ff), r.randint(0x1f300, 0x1f6ff)])) for _ in range(r.randint(1, 40)))
    for c in [" ", "a", "\n", "!", "1", "中", "é", "\u0301", "aB", " \n", "'s", "😀"]:
        for n in [3, 17, 100, 5000]:
            yield c * n
            yield c * n + "x"
    for name in files:
        text = open(name, encoding="utf-8").read()
        at = 0
        while at < len(text):
            n = r.choice([30, 200, 1000, 10000])
            yield text[at:at + n]
            at += n


def encoding(name, out):
    local = os.path.join(out, name + ".tiktoken")
    if os.path.exists(local):
        read = tiktoken.load.load_tiktoken_bpe
        public.load_tiktoken_bpe = lambda url, expected_hash=None: read(local, expected_hash)
    return tiktoken.Encoding(**getattr(public, name)())


def main():
    out, rest = sys.argv[1], sys.argv[2:]
    split = rest.index("--")
    texts = list(corpus(rest[split + 1:]))
    with open(os.path.join(out, "corpus.jsonl"), "w") as f:
        for t in texts:
            f.write(json.dumps(t) + "\n")
    print(len(texts), "texts,", sum(len(t.encode()) for t in texts), "bytes")
    for name in rest[:split]:
        label = os.path.basename(name)
        if os.path.exists(name) and name.endswith(".json"):
            t = tokenizers.Tokenizer.from_file(name)
            ids = [t.encode(s, add_special_tokens=False).ids for s in texts]
        else:
            t = encoding(label.removesuffix(".tiktoken"), out)
            ids = [t.encode_ordinary(s) for s in texts]
        with open(os.path.join(out, label + ".ids.jsonl"), "w") as f:
            f.write(json.dumps(os.path.abspath(name) if os.path.exists(name) else name) + "\n")
            for i in ids:
                f.write(json.dumps(i) + "\n")
        print(label, sum(map(len, ids)), "tokens")


main()

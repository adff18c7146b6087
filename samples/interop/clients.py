"""Calls a server with real Python clients and prints, for each call, what was asked for and what came back: a JSON object a line.

  python clients.py BASE_URL MODEL GROUP...     groups: openai, anthropic, litellm, langchain

Each call has an x-request-id of its own, by which table.py finds what the recorder between client and server wrote of it. "sent" and "seen" have
the names of the trace's columns. A call that the server refuses is an observation too: its status.
"""

import asyncio, base64, importlib.metadata, io, json, os, struct, sys, time, uuid, warnings, zlib

warnings.filterwarnings("ignore")
os.environ.update({"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "HF_HUB_OFFLINE": "1"})

BASE, MODEL, GROUPS = sys.argv[1], sys.argv[2], sys.argv[3:]
TEXT = "Count from one to ten and say each number in a sentence of its own."
TURNS = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Hello there."}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": TEXT}]
PARAMETERS = {"properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object", "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PARAMETERS}}
MAX = 24
REASONS = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}  # Anthropic's, as the trace has them


def version(package):
    return importlib.metadata.version(package)


def png(width, height):
    """A grey image, so that no image library is needed."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


IMAGE = "data:image/png;base64," + base64.b64encode(png(64, 48)).decode()


class Watch:
    """What one answer looked like to the client that read it."""

    def __init__(self):
        self.events, self.first, self.seen, self.text = 0, None, {"status": 200}, 0

    def token(self):
        self.events += 1
        if self.first is None:
            self.first = time.time_ns()

    def usage(self, u, input="prompt_tokens", output="completion_tokens"):
        if u is None:
            return
        get = lambda o, k: o.get(k) if isinstance(o, dict) else getattr(o, k, None)
        if get(u, input) is not None:
            self.seen["input_tokens"] = get(u, input)
        if get(u, output) is not None:
            self.seen["output_tokens"] = get(u, output)

    def chat(self, chunk):
        """One chunk of a chat's or completion's stream."""
        carried = False
        for c in chunk.choices:
            d = getattr(c, "delta", None)
            if d is None:
                carried |= bool(getattr(c, "text", None))
            else:
                carried |= any(bool(getattr(d, k, None)) for k in ("content", "reasoning_content", "reasoning", "refusal", "tool_calls"))
            if c.finish_reason:
                self.seen["finish_reason"] = c.finish_reason
        if carried:
            self.token()
        self.usage(getattr(chunk, "usage", None))

    def answer(self, a):
        """A chat's or completion's whole answer."""
        self.usage(a.usage)
        if a.choices and a.choices[0].finish_reason:
            self.seen["finish_reason"] = a.choices[0].finish_reason


def call(client, what, sent, act):
    """Makes a call and prints what it came to. act takes the id and a Watch."""
    rid, w = "interop-" + uuid.uuid4().hex, Watch()
    problem = None
    try:
        act(rid, w)
    except Exception as e:
        status = getattr(e, "status_code", None)
        if not isinstance(status, int):
            problem = "%s: %s" % (type(e).__name__, str(e)[:200])
        w.seen = {"status": status} if isinstance(status, int) else {}
        w.first, w.events = None, 0
    print(json.dumps({"client": client, "call": what, "id": rid, "sent": sent, "seen": w.seen, "events": w.events, "first_unix_ns": w.first,
                      "end_unix_ns": time.time_ns(), "problem": problem}), flush=True)


def openai_python():
    import openai

    name = "openai (Python) " + version("openai")
    client = openai.OpenAI(base_url=BASE + "/v1", max_retries=0)
    head = lambda rid: {"extra_headers": {"x-request-id": rid}}
    base = {"endpoint": "chat_completions", "request_model": MODEL, "message_count": 4, "max_tokens": MAX}

    def chat(what, sent, stream=False, stop_after=None, **kw):
        def act(rid, w):
            a = client.chat.completions.create(model=MODEL, messages=kw.get("messages", TURNS), max_tokens=MAX, stream=stream, **head(rid), **{k: v for k, v in kw.items() if k != "messages"})
            if not stream:
                return w.answer(a)
            for chunk in a:
                w.chat(chunk)
                if stop_after and w.events >= stop_after:
                    a.close()
                    w.seen = {"status": 200, "end_reason": "client_abort"}
                    w.events = None  # how many more were on their way is not known
                    return

        call(name, what, {**base, "stream": stream, **sent}, act)

    usage = {"stream_options": {"include_usage": True}}
    chat("chat", {})
    chat("chat, streamed, usage", {}, stream=True, **usage)
    chat("chat, streamed, no usage", {}, stream=True)
    chat("chat, n=2", {"n": 2}, n=2)
    chat("chat, streamed, n=2", {"n": 2}, stream=True, n=2, **usage)
    chat("chat, logprobs", {"logprobs": 3}, logprobs=True, top_logprobs=3)
    chat("chat, streamed, logprobs", {"logprobs": 3}, stream=True, logprobs=True, top_logprobs=3, **usage)
    chat("chat, tools", {"tool_count": 1}, tools=[TOOL], tool_choice="auto")
    chat("chat, streamed, tool required", {"tool_count": 1}, stream=True, tools=[TOOL], tool_choice="required", **usage)
    chat("chat, structured output", {"response_format": "json_schema"}, response_format=SCHEMA)
    chat("chat, streamed, structured output", {"response_format": "json_schema"}, stream=True, response_format=SCHEMA, **usage)
    chat("chat, image", {"message_count": 1, "image_count": 1, "image_pixels": 64 * 48},
         messages=[{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]}])
    chat("chat, parameters", {"temperature": 0.5, "top_p": 0.75, "presence_penalty": 0.25, "frequency_penalty": -0.5, "seed": 7, "stop_count": 2, "top_k": 20, "ignore_eos": True},
         temperature=0.5, top_p=0.75, presence_penalty=0.25, frequency_penalty=-0.5, seed=7, stop=["zzz", "qqq"], extra_body={"top_k": 20, "ignore_eos": True})
    chat("chat, streamed, closed after 3 events", {}, stream=True, stop_after=3, extra_body={"ignore_eos": True})

    def completion(rid, w):
        for chunk in client.completions.create(model=MODEL, prompt=TEXT, max_tokens=MAX, stream=True, **usage, **head(rid)):
            w.chat(chunk)

    call(name, "completions, streamed", {"endpoint": "completions", "request_model": MODEL, "stream": True, "max_tokens": MAX}, completion)
    call(name, "completions, two prompts", {"endpoint": "completions", "request_model": MODEL, "stream": False, "prompt_count": 2},
         lambda rid, w: w.answer(client.completions.create(model=MODEL, prompt=[TEXT, "Hello."], max_tokens=MAX, **head(rid))))

    def embed(rid, w):
        w.usage(client.embeddings.create(model=MODEL, input=["one", "two words"], **head(rid)).usage)
        w.seen.pop("output_tokens", None)  # some answer 0 where nothing is generated

    call(name, "embeddings", {"endpoint": "embeddings", "request_model": MODEL, "stream": False, "prompt_count": 2}, embed)

    def responses(what, sent, stream=False, **kw):
        def act(rid, w):
            a = client.responses.create(model=MODEL, input=kw.get("input", TURNS[3:]), instructions="You are brief.", max_output_tokens=MAX, stream=stream, **head(rid), **{k: v for k, v in kw.items() if k != "input"})
            if not stream:
                return w.usage(a.usage, "input_tokens", "output_tokens")
            for e in a:
                if e.type.endswith(".delta") and getattr(e, "delta", None):
                    w.token()
                if e.type in ("response.completed", "response.incomplete"):
                    w.usage(e.response.usage, "input_tokens", "output_tokens")

        call(name, what, {"endpoint": "responses", "request_model": MODEL, "stream": stream, "max_tokens": MAX, **sent}, act)

    responses("responses", {})
    responses("responses, streamed", {}, stream=True)
    responses("responses, streamed, tool required", {"tool_count": 1}, stream=True, tool_choice="required",
              tools=[{"type": "function", "name": "weather", "description": "The weather of a city", "parameters": PARAMETERS, "strict": True}])
    responses("responses, image", {"image_count": 1}, input=[{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": IMAGE, "detail": "auto"}]}])

    async def many(rids, ws):
        async with openai.AsyncOpenAI(base_url=BASE + "/v1", max_retries=0) as c:
            async def one(rid, w):
                async for chunk in await c.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=MAX, stream=True, **usage, **head(rid)):
                    w.chat(chunk)

            await asyncio.gather(*(one(r, w) for r, w in zip(rids, ws)))

    rids, ws = ["interop-" + uuid.uuid4().hex for _ in range(8)], [Watch() for _ in range(8)]
    try:
        asyncio.run(many(rids, ws))
        for rid, w in zip(rids, ws):
            print(json.dumps({"client": name, "call": "chat, streamed, eight at once", "id": rid, "sent": {**base, "stream": True}, "seen": w.seen, "events": w.events,
                              "first_unix_ns": w.first, "end_unix_ns": time.time_ns(), "problem": None}), flush=True)
    except openai.APIError as e:
        print(json.dumps({"client": name, "call": "chat, streamed, eight at once", "id": rids[0], "sent": {}, "seen": {}, "events": 0, "first_unix_ns": None, "end_unix_ns": time.time_ns(), "problem": str(e)[:200]}))


def anthropic_python():
    import anthropic

    name = "anthropic (Python) " + version("anthropic")
    client = anthropic.Anthropic(base_url=BASE, max_retries=0)

    def messages(what, sent, stream=False, **kw):
        def act(rid, w):
            a = client.messages.create(model=MODEL, max_tokens=MAX, system="You are brief.", messages=kw.get("messages", TURNS[1:]), stream=stream, extra_headers={"x-request-id": rid},
                                       **{k: v for k, v in kw.items() if k != "messages"})
            if not stream:
                w.seen["finish_reason"] = REASONS.get(a.stop_reason, a.stop_reason)
                w.usage(a.usage, "input_tokens", "output_tokens")
                w.seen["input_tokens"] += (a.usage.cache_read_input_tokens or 0) + (a.usage.cache_creation_input_tokens or 0)  # beside those from the cache
                return
            for e in a:
                if e.type == "content_block_delta" and any(getattr(e.delta, k, None) for k in ("text", "thinking", "partial_json")):
                    w.token()
                if e.type == "message_delta":
                    w.usage(e.usage, "-", "output_tokens")
                    if e.delta.stop_reason:
                        w.seen["finish_reason"] = REASONS.get(e.delta.stop_reason, e.delta.stop_reason)

        call(name, what, {"endpoint": "messages", "request_model": MODEL, "stream": stream, "max_tokens": MAX, **sent}, act)

    tool = {"name": "weather", "description": "The weather of a city", "input_schema": {"type": "object", "properties": PARAMETERS["properties"], "required": ["city"]}}
    messages("messages", {"message_count": 3})
    messages("messages, streamed", {"message_count": 3}, stream=True)
    messages("messages, streamed, tool required", {"tool_count": 1}, stream=True, tools=[tool], tool_choice={"type": "any"})
    messages("messages, image", {"image_count": 1}, messages=[{"role": "user", "content": [{"type": "text", "text": "What is this?"},
             {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE.split(",")[1]}}]}])
    messages("messages, parameters", {"temperature": 0.5, "top_k": 20, "stop_count": 1}, stop_sequences=["zzz"], extra_body={"temperature": 0.5, "top_k": 20})


def lite_llm():
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    name = "LiteLLM " + version("litellm")
    common = {"api_base": BASE + "/v1", "api_key": "none", "max_retries": 0, "num_retries": 0}
    base = {"endpoint": "chat_completions", "request_model": MODEL, "message_count": 4, "max_tokens": MAX}

    def chat(what, sent, stream=False, **kw):
        def act(rid, w):
            a = litellm.completion(model="openai/" + MODEL, messages=TURNS, max_tokens=MAX, stream=stream, extra_headers={"x-request-id": rid}, **common, **kw)
            if not stream:
                return w.answer(a)
            for chunk in a:
                w.chat(chunk)
            w.events = None  # it joins and splits chunks
            w.seen.pop("finish_reason", None)

        call(name, what, {**base, "stream": stream, **sent}, act)

    chat("chat", {})
    chat("chat, streamed, usage", {}, stream=True, stream_options={"include_usage": True})
    chat("chat, streamed, tools", {"tool_count": 1}, stream=True, tools=[TOOL])
    chat("chat, structured output", {"response_format": "json_schema"}, response_format=SCHEMA)
    chat("chat, n=2", {"n": 2}, n=2)

    def text(rid, w):
        w.usage(litellm.text_completion(model="text-completion-openai/" + MODEL, prompt=TEXT, max_tokens=MAX, extra_headers={"x-request-id": rid}, **common).usage)

    call(name, "completions", {"endpoint": "completions", "request_model": MODEL, "stream": False}, text)
    def embed(rid, w):
        w.usage(litellm.embedding(model="openai/" + MODEL, input=["one", "two words"], extra_headers={"x-request-id": rid}, encoding_format="float", **common).usage)
        w.seen.pop("output_tokens", None)  # it makes a 0 of what the server does not say

    call(name, "embeddings", {"endpoint": "embeddings", "request_model": MODEL}, embed)


def langchain():
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    name = "LangChain (langchain-openai) " + version("langchain-openai")
    said = [SystemMessage("You are brief."), HumanMessage("Hello there."), AIMessage("Hello."), HumanMessage(TEXT)]
    base = {"endpoint": "chat_completions", "request_model": MODEL, "message_count": 4, "max_tokens": MAX}
    model = lambda rid, **kw: ChatOpenAI(model=MODEL, base_url=BASE + "/v1", api_key="none", max_tokens=MAX, max_retries=0, default_headers={"x-request-id": rid}, **kw)

    def whole(w, a):
        u = getattr(a, "usage_metadata", None)
        w.usage(u, "input_tokens", "output_tokens")
        if a.response_metadata.get("finish_reason"):
            w.seen["finish_reason"] = a.response_metadata["finish_reason"]

    def streamed(w, chunks):
        for c in chunks:
            content = c.content if isinstance(c.content, str) else "".join(p.get("text", "") for p in c.content if isinstance(p, dict))
            if content or c.tool_call_chunks:
                w.token()
            if c.usage_metadata:
                w.usage(c.usage_metadata, "input_tokens", "output_tokens")

    call(name, "invoke", {**base, "stream": False}, lambda rid, w: whole(w, model(rid).invoke(said)))
    call(name, "stream", {**base, "stream": True}, lambda rid, w: streamed(w, model(rid, stream_usage=True).stream(said)))
    call(name, "bind_tools, stream", {**base, "stream": True, "tool_count": 1}, lambda rid, w: streamed(w, model(rid, stream_usage=True).bind_tools([TOOL]).stream(said)))
    call(name, "responses, stream", {"endpoint": "responses", "stream": True}, lambda rid, w: (streamed(w, model(rid, use_responses_api=True).stream(said[3:])), setattr(w, "events", None)))

    def structured(rid, w):
        a = model(rid).with_structured_output(PARAMETERS | {"title": "place"}, method="json_schema", include_raw=True).invoke(said)
        whole(w, a["raw"])

    call(name, "with_structured_output", {**base, "response_format": "json_schema"}, structured)
    call(name, "embed_documents", {"endpoint": "embeddings"},
         lambda rid, w: OpenAIEmbeddings(model=MODEL, base_url=BASE + "/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0, default_headers={"x-request-id": rid}).embed_documents(["one", "two words"]) and None)


for g in GROUPS:
    {"openai": openai_python, "anthropic": anthropic_python, "litellm": lite_llm, "langchain": langchain}[g]()

"""The requests whose answers are recorded in `tests/exact/recorded/http`.

In: nothing. Out: `SERVERS`, the groups of each server in the order in which they are asked, and
`GROUPS`, the cases of each. A group is one recording. Answers may tell of earlier requests (drafts,
cached tokens): a new case stands at the end of the last group of its server, or changes others.

What is covered, by the sections of docs/server.md and docs/dialects.md:

| section | groups |
|---|---|
| Several models | models, ollama-models |
| Paths | routes, documents, models; each path that is refused, and other methods |
| The page | routes: headers, and the hash of the body |
| Fields of a request | completions, chat, grammars; each message of a refusal in `refused-*` |
| Several answers | completions (whole and streamed), keys (more than a client has places for) |
| Filling in | models |
| Thinking | thinking: tags, a prompt that opens them, channels |
| What comes with an answer | completions: spans, trees, token ids, usage, drafts |
| Logprobs | completions, chat, responses, ollama |
| Documents | documents, keys (without `--history`) |
| Tools | calls: all of `server/tools/formats.py`; chat: text beside calls, calls that are none |
| Many clients, Bad neighbours | bodies, keys; test_http.py: full queue, closed sockets |
| Its end | test_http.py: signals |
| Who may ask | keys: keys, hosts, origins |
| Errors | all statuses but 408, which takes 60 seconds |
| Anthropic | messages, refused-messages |
| Ollama | ollama, ollama-models, refused-ollama |
"""

import json
from typing import Any

from recorded_http import Case, Raw
from scripted_bundles import CHATML

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
JSON_BODY = {"Content-Type": "application/json"}

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER = {"name": "get.weather", "description": "The weather", "parameters": CITY}
TIME = {"name": "time", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, TIME)]
FLAT_TOOLS = [{"type": "function"} | one for one in (WEATHER, TIME)]
OF_ANTHROPIC = [
    {"name": "get.weather", "description": "The weather", "input_schema": CITY},
    {"name": "time", "input_schema": {"type": "object", "properties": {}}},
]
SUN = {
    "type": "object",
    "properties": {"sun": {"type": "boolean"}, "note": {"type": "string"}},
    "required": ["sun", "note"],
}

# --- what the models of the scripted server say --------------------------------------------------

_ASSISTANT = "assistant\n"
_KOELN = '{"city": "Köln", "days": 3}'
_BAR, _LOW = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"
_BEGIN_CALLS, _END_CALLS, _BEGIN_CALL, _SEP, _END_CALL = (
    f"<{_BAR}tool{_LOW}{words}{_BAR}>"
    for words in (
        f"calls{_LOW}begin",
        f"calls{_LOW}end",
        f"call{_LOW}begin",
        "sep",
        f"call{_LOW}end",
    )
)
_LISTED = (
    f'[{{"name": "get.weather", "arguments": {_KOELN}}}, {{"name": "time", "arguments": {{}}}}]'
)
_TO_WEATHER = " to=functions.get.weather <|constrain|>json<|message|>"
FORMS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "deepseek": (
        _ASSISTANT,
        f"{_BEGIN_CALLS}{_BEGIN_CALL}function{_SEP}get.weather\n```json\n{_KOELN}\n```{_END_CALL}\n"
        f"{_BEGIN_CALL}function{_SEP}time\n```json\n{{}}\n```{_END_CALL}{_END_CALLS}",
        (_BEGIN_CALLS, _END_CALLS, _BEGIN_CALL, _SEP, _END_CALL),
        (),
    ),
    "function-gemma": (
        _ASSISTANT,
        "<start_function_call>call:get.weather{city:<escape>Köln<escape>,days:3}"
        "<end_function_call><start_function_call>call:time{}<end_function_call>",
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        (),
    ),
    "gemma": (
        _ASSISTANT,
        '<|tool_call>call:get.weather{city:<|"|>Köln<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:time{}<tool_call|>",
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
        (),
    ),
    "granite": (
        "assistant<|end_of_role|>",
        f"<|tool_call|>{_LISTED}<|end_of_text|>",
        ("<|tool_call|>",),
        ("<|end_of_text|>",),
    ),
    "harmony": (
        "Hi<|end|><|start|>assistant",
        "<|channel|>analysis<|message|>I have to look.<|end|><|start|>assistant<|channel|>"
        f"commentary{_TO_WEATHER}{_KOELN}<|call|>",
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
        ("<|call|>", "<|return|>"),
    ),
    "hermes": (
        _ASSISTANT,
        f'<tool_call>\n{{"name": "get.weather", "arguments": {_KOELN}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        ("<tool_call>", "</tool_call>"),
        (),
    ),
    "lfm2": (
        _ASSISTANT,
        '<|tool_call_start|>[get.weather(city="Köln", days=3), time()]<|tool_call_end|>',
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        (),
    ),
    "llama": (
        "assistant<|end_header_id|>\n\n",
        f'{{"name": "get.weather", "parameters": {_KOELN}}}<|eot_id|>',
        ("<|python_tag|>",),
        ("<|eot_id|>",),
    ),
    "mistral-listed": ("Hi[/INST]", f"[TOOL_CALLS]{_LISTED}", ("[TOOL_CALLS]",), ()),
    "mistral-named": (
        _ASSISTANT,
        f"[TOOL_CALLS]get.weather[ARGS]{_KOELN}[TOOL_CALLS]time[ARGS]{{}}",
        ("[TOOL_CALLS]", "[ARGS]"),
        (),
    ),
    "phi": (
        _ASSISTANT,
        f"<|tool_call|>{_LISTED}<|/tool_call|>",
        ("<|tool_call|>", "<|/tool_call|>"),
        (),
    ),
    "qwen-xml": (
        _ASSISTANT,
        "<tool_call>\n<function=get.weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=time>\n</function>\n</tool_call>",
        ("<tool_call>", "</tool_call>"),
        (),
    ),
}
"""The end of the prompt, what the model says, its marks and its ends, by the form of its calls."""

_OSLO = '<tool_call>\n{"name": "get.weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TALK = {
    "#a": "Hello, world. This is the answer: it ends here.",
    "#e": "Grüße aus 日本 🙂, ja.",
    "#c": f"Let me see.\n{_OSLO}\nAnd that is all.",
    "#m": "A <tool_call> mark stands before a call.",
    "#u": '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    "#b": '{"name": "get.weather", "arguments": {"city": "Rome"}}',
    "#j": '{"sun": true, "note": "bright"}',
    "#y": "yes, no",
    "#s": "",
}
"""What the model `chat` says, by the last two characters of the last message, or of the prompt."""
TALK_TEMPLATE = (
    "{%- if messages[0].content == 'refuse' %}{{ raise_exception('this is refused') }}{% endif -%}"
    + CHATML.replace(
        "{{ turn.content }}",
        "{{ turn.content }}{{ turn.tool_calls | tojson if turn.tool_calls else '' }}",
    )
)
THOUGHTS = {
    "#t": "<think>\nSo it is, I think.\n</think>\n\nYes, it is.",
    "#k": f"<think>\nI have to look.\n</think>\n\n{_OSLO}",
    "#j": '<think>\nNow some JSON.\n</think>{"sun": false, "note": "grey"}',
    "#n": "No thoughts at all.",
    "#o<think>\n": "I am in the middle.\n</think>\n\nAnd out.",
}
"""What the model `thinker` says, the last one where the prompt has opened the thinking."""
THOUGHT_TEMPLATE = (
    "{#- </think> -#}"
    "{%- if enable_thinking is defined %}thinking: {{ enable_thinking }}\n{% endif -%}"
    "{%- if reasoning_effort is defined %}effort: {{ reasoning_effort }}\n{% endif -%}"
    + CHATML.replace("{{ turn.content }}", "{{ turn.reasoning_content or '' }}{{ turn.content }}")
    + "{%- if add_generation_prompt and messages[-1].content[-2:] == '#o' %}<think>\n{% endif -%}"
)
CHANNELS = {
    "Hi<|end|><|start|>assistant": "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant"
    "<|channel|>final<|message|>It is so.<|return|>"
}
"""What the model `channels` says."""
INFILL_MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|endoftext|>")
INFILL = {")<|fim_middle|>": "a + b<|endoftext|>"}
"""What the model `infill` says."""


# --- how cases are written -----------------------------------------------------------------------


def asked(name: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Case:
    """A request with a body."""
    return Case(name, "POST", path, body, JSON_BODY | (headers or {}))


def got(name: str, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Case:
    """A request without one."""
    return Case(name, method, path, None, headers or {})


def changed(path: str, base: dict[str, Any], *changes: dict[str, Any]) -> list[Case]:
    """A body with each of some changes, which name the cases; None leaves a field out."""
    cases = []
    for number, change in enumerate(changes, 1):
        body = {name: value for name, value in (base | change).items() if value is not None}
        shown = f"{path} {json.dumps(change)}"
        cases.append(
            asked(shown if len(shown) <= 200 else f"{shown[:180]}.. ({number})", path, body)
        )
    return cases


def both(name: str, path: str, body: dict[str, Any], **of_stream: Any) -> list[Case]:
    """A request whose answer comes whole, and as a stream."""
    return [
        asked(name, path, body | ({"stream": False} if path.startswith("/api") else {})),
        asked(f"{name}, streamed", path, body | {"stream": True} | of_stream),
    ]


def user(content: str, **message: Any) -> list[dict[str, Any]]:
    """A dialogue of one message."""
    return [{"role": "user", "content": content} | message]


def talk(name: str, content: str, model: str = "chat", **fields: Any) -> Case:
    """A chat with a scripted model."""
    return asked(name, CHAT, {"model": model, "messages": user(content)} | fields)


_CLAUDE = {"anthropic-version": "2023-06-01"}
STREAMED = {"stream": True}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EOS = {"ignore_eos": True}
FACT = "The lamp of the mill is red."
SHORT = {"prompt": FACT, "max_tokens": 8, "ignore_eos": True}

# --- the embedded model: tokens, drafts, sampling ------------------------------------------------

_completions = [
    *both("greedy", COMPLETIONS, SHORT),
    *both("the same again, with drafts and kept tokens", COMPLETIONS, SHORT, **WITH_USAGE),
    asked("without drafts", COMPLETIONS, SHORT | {"coordgen": {"drafts": False}}),
    asked("without kept tokens", COMPLETIONS, SHORT | {"cache_prompt": False}),
    asked("token ids, the default limit", COMPLETIONS, {"prompt": [5, 6, 7, 8]} | EOS),
    asked("a list of one text", COMPLETIONS, SHORT | {"prompt": [FACT]}),
    asked("a list of one list of ids", COMPLETIONS, SHORT | {"prompt": [[5, 6, 7, 8]]}),
    asked("no body but the prompt", COMPLETIONS, {"prompt": FACT}),
    *both("echo", COMPLETIONS, SHORT | {"echo": True, "max_tokens": 4}),
    asked("echo of ids", COMPLETIONS, SHORT | {"prompt": [5, 6, 7], "echo": True, "max_tokens": 2}),
    asked("one token, and names of other servers", COMPLETIONS, {"prompt": FACT, "n_predict": 1}),
    *both(
        "spans, ids and trees",
        COMPLETIONS,
        SHORT
        | {"coordgen": {"spans": True, "trees": True}, "return_token_ids": True, "max_tokens": 6},
    ),
    *both(
        "a prediction",
        COMPLETIONS,
        SHORT
        | {
            "prompt": "Replace red by green: The lamp is red.",
            "prediction": {"type": "content", "content": "The lamp is green."},
        },
        **WITH_USAGE,
    ),
    asked("a prediction in parts", COMPLETIONS, SHORT | {
        "prediction": {"type": "content", "content": [{"type": "text", "text": " It is red."}]}
    }),
    *both("logprobs", COMPLETIONS, SHORT | {"logprobs": 2, "max_tokens": 4}),
    asked("logprobs without alternatives", COMPLETIONS, SHORT | {"logprobs": 0, "max_tokens": 3}),
    *both("two greedy answers", COMPLETIONS, SHORT | {"n": 2, "best_of": 2, "max_tokens": 4},
        **WITH_USAGE),
    *both(
        "two sampled answers",
        COMPLETIONS,
        SHORT | {"n": 2, "temperature": 1.0, "seed": 7, "max_tokens": 4},
        **WITH_USAGE,
    ),
    asked("the last seed, then 0", COMPLETIONS, SHORT | {
        "n": 2, "temperature": 1.0, "seed": 2**64 - 1, "max_tokens": 2
    }),
    asked("sampled", COMPLETIONS, SHORT | {"temperature": 0.8, "seed": 3, "top_k": 20,
        "top_p": 0.9}),
    asked("sampled by min_p", COMPLETIONS, SHORT | {"temperature": 1.2, "seed": 4, "min_p": 0.05}),
    asked("a seed that is drawn", COMPLETIONS, {
        "prompt": FACT, "max_tokens": 1, "temperature": 0.5, "top_k": 1, "seed": -1
    }),
    asked("top_k of -1", COMPLETIONS, SHORT | {"temperature": 0.5, "seed": 5, "top_k": -1}),
    asked("penalties", COMPLETIONS, SHORT | {
        "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5
    }),
    asked("llama.cpp's name of a penalty", COMPLETIONS, SHORT | {"repeat_penalty": 1.3}),
    asked("a bias by ids", COMPLETIONS, SHORT | {"logit_bias": {"42": 100}, "max_tokens": 2}),
    asked("a bias by pairs", COMPLETIONS, SHORT | {
        "logit_bias": [[42, 100], ["lamp", 100], [42, False]], "max_tokens": 2
    }),
    asked("no bias", COMPLETIONS, SHORT | {"logit_bias": {}, "max_tokens": 1}),
    asked("fields about the client", COMPLETIONS, SHORT | {
        "max_tokens": 1, "user": "me", "metadata": {"a": "b"}, "service_tier": "auto",
        "safety_identifier": "x", "prompt_cache_key": "y", "prompt_cache_retention": "24h",
    }),
    asked("neutral fields of other servers", COMPLETIONS, SHORT | {
        "max_tokens": 1, "typical_p": 1.0, "xtc_probability": 0, "dry_multiplier": 0.0,
        "mirostat": 0, "repeat_last_n": 64, "min_tokens": 0, "skip_special_tokens": True,
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"], "id_slot": -1,
        "timings_per_token": True, "dynatemp_exponent": 1, "user": None,
    }),
    asked("the whole context", COMPLETIONS, {
        "prompt": [5] * 1016, "max_tokens": -1, "ignore_eos": True
    }),
    asked("its last token", COMPLETIONS, {"prompt": [5] * 1024}),
    asked("HTTP with a charset, and the name with a tag", COMPLETIONS,
        {"model": "embedded-fp32:latest"} | SHORT | {"max_tokens": 1},
        {"Content-Type": "application/json; charset=utf-8"}),
]  # fmt: skip
_in_words = [
    *both("a chat", CHAT, {"messages": user(FACT), "max_tokens": 8} | EOS, **WITH_USAGE),
    asked("parts, roles and what clients keep", CHAT, {
        "messages": [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text",
            "text": "b"}]},
            {"role": "assistant", "content": "c", "annotations": [], "refusal": None, "id": "x"},
            {"role": "user", "content": FACT, "name": "me"},
        ],
        "max_completion_tokens": 4, "ignore_eos": True,
    }),
    *both("logprobs", CHAT, {
        "messages": user(FACT), "max_tokens": 4, "logprobs": True, "top_logprobs": 2
    } | EOS),
    asked("two sampled answers", CHAT, {
        "messages": user(FACT), "max_tokens": 3, "n": 2, "temperature": 1, "seed": 1
    } | EOS),
    asked("tools in words", "/apply-template", {
        "tools": TOOLS,
        "messages": [
            *user("How is it?"),
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "index": 0,
                 "function": {"name": "time", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "5 o'clock"},
        ],
    }),
    asked("tools in words beside a system message", "/apply-template", {
        "tools": TOOLS[1:], "messages": [{"role": "system", "content": "Be short."}, *user("Hi")],
    }),
]  # fmt: skip
_routes = [
    got("the page", "/"),
    got("health", "/health"),
    got("health, by its other name", "/v1/health"),
    got("head of the page", "/", "HEAD"),
    got("the models", "/v1/models"),
    got("the model", "/v1/models/embedded-fp32"),
    got("the models to Anthropic's clients", "/v1/models", headers=_CLAUDE),
    got("the model to Anthropic's clients", "/v1/models/embedded-fp32", headers=_CLAUDE),
    got("an unknown model", "/v1/models/other"),
    got("an unknown model to Anthropic's clients", "/v1/models/other", headers=_CLAUDE),
    asked("tokens", "/tokenize", {"content": "The lamp is red. Ä"}),
    asked("tokens with special ones", "/tokenize", {"content": "The lamp", "add_special": True}),
    asked("tokens with pieces", "/tokenize", {"content": "red Ä🙂", "with_pieces": True}),
    asked("tokens of a named model", "/tokenize", {"content": "", "model": "embedded-fp32"}),
    asked("text", "/detokenize", {"tokens": [5, 6, 7, 8]}),
    asked("text of none", "/detokenize", {"tokens": []}),
    asked("a template", "/apply-template", {"messages": user("Hi")}),
    got("no such path", "/v1/nothing"),
    got("no such path of Ollama's", "/api/nothing"),
    got("no such path of Anthropic's", "/v1/messages/nothing"),
    got("another method", CHAT),
    got("another method of Anthropic's", MESSAGES),
    got("another method of Ollama's", OLLAMA),
    asked("another method of the models", "/v1/models", {}),
    got("another method of the health", "/health", "DELETE"),
    got("another method of Ollama's list", "/api/tags", "DELETE"),
    got("a slash too many", "/v1/models/"),
    *(
        asked(f"not supported: {path}", path, {})
        for path in (
            "/v1/embeddings", "/api/embed", "/api/embeddings", "/api/pull", "/api/push",
            "/api/create", "/api/copy", "/api/blobs/sha256:00", "/v1/messages/batches",
        )
    ),
    got("not supported: /api/delete", "/api/delete", "DELETE"),
    got("Ollama's version", "/api/version"),
    got("Ollama's models", "/api/tags"),
    got("Ollama's open models", "/api/ps"),
    asked("Ollama's account of a model", "/api/show", {"model": "embedded-fp32"}),
    *changed("/tokenize", {"content": "x"}, {"content": None}, {"content": 5}, {"add_special": 1},
             {"with_pieces": "yes"}, {"more": 1}, {"model": "other"}),
    *changed("/detokenize", {"tokens": [5]}, {"tokens": None}, {"tokens": "x"}, {"tokens": [True]},
             {"tokens": [1.5]}, {"tokens": [5, -1]}, {"tokens": [1536]}, {"tokens": [2**70]},
             {"more": 1}),
    *changed("/apply-template", {"messages": user("x")}, {"messages": None}, {"stream": True}),
    *changed("/api/show", {"model": "embedded-fp32"}, {"model": "other"}, {"model": None},
             {"model": None, "name": "embedded-fp32", "verbose": True}, {"more": 1}),
]  # fmt: skip
_documents = [
    got("none", "/v1/documents"),
    asked("added", "/v1/documents", {"documents": [
        {"name": "src/a.txt", "text": "The lamp of the mill is red."},
        {"name": "src/b.txt", "text": "The lamp of the mill is green."},
    ]}),
    asked("one is the same, one is replaced", "/v1/documents", {"documents": [
        {"name": "src/a.txt", "text": "The lamp of the mill is red."},
        {"name": "src/b.txt", "text": "The lamp of the mill is blue."},
    ]}),
    got("listed", "/v1/documents?model=embedded-fp32"),
    got("removed", "/v1/documents/src/b.txt", "DELETE"),
    got("removed by a folder", "/v1/documents/src", "DELETE"),
    got("not there", "/v1/documents/src", "DELETE"),
    got("an empty name", "/v1/documents/", "DELETE"),
    got("of an unknown model", "/v1/documents?model=other"),
    got("another method", "/v1/documents", "PUT"),
    *changed("/v1/documents", {"documents": [{"name": "a", "text": "b"}]}, {"documents": None},
             {"documents": []}, {"documents": ["a"]}, {"documents": [{"name": "", "text": "b"}]},
             {"documents": [{"name": "a" * 1025, "text": "b"}]}, {"documents": [{"name": "a"}]},
             {"documents": [{"name": "a", "text": "\0"}]}, {"documents": [{"text": "a"}]},
             {"documents": [{"name": "a", "text": "b"}] * 2}, {"more": 1},
             {"documents": [{"name": "a", "text": "b", "more": 1}]}),
]  # fmt: skip
_bodies = [
    asked("no JSON", COMPLETIONS, '{"prompt": '),
    asked("nothing", COMPLETIONS, ""),
    asked("a list", COMPLETIONS, []),
    asked("a text", COMPLETIONS, '"x"'),
    asked("null", COMPLETIONS, "null"),
    asked("a key twice", COMPLETIONS, '{"prompt": "x", "prompt": "y"}'),
    asked("NaN", COMPLETIONS, '{"prompt": "x", "temperature": NaN}'),
    asked("infinity", COMPLETIONS, '{"prompt": "x", "temperature": 1e999}'),
    asked("a long integer", COMPLETIONS, '{"prompt": "x", "seed": 36893488147419103232}'),
    asked("half a pair of surrogates", COMPLETIONS, '{"prompt": "\\ud800"}'),
    asked("no UTF-8", COMPLETIONS, b'{"prompt": "\xff"}'),
    asked("too deep", COMPLETIONS, '{"prompt": ' + "[" * 101 + "]" * 101 + "}"),
    asked("a byte order mark", COMPLETIONS, b'\xef\xbb\xbf{"prompt": "x", "max_tokens": 1}'),
    asked("more than JSON", COMPLETIONS, '{"prompt": "x"} x'),
    asked("too many values", COMPLETIONS, '{"prompt": [' + "1," * 200_001 + "1]}"),
    asked("too long by its head", COMPLETIONS, None, {"Content-Length": "9000000"}),
    asked("too long for the model by its head", COMPLETIONS, None, {"Content-Length": "8000000"}),
    asked("no JSON to Anthropic's clients", MESSAGES, "{"),
    asked("no JSON to Ollama's clients", OLLAMA, "{"),
    asked("compressed", COMPLETIONS, b"\x1f\x8b", {"Content-Encoding": "gzip"}),
    asked("not compressed", COMPLETIONS, '{"prompt": "x", "max_tokens": 1}',
        {"Content-Encoding": "identity"}),
    asked("in chunks", COMPLETIONS, b'20\r\n{"prompt": "x", "max_tokens": 1}\r\n0\r\n\r\n',
        {"Transfer-Encoding": "chunked"}),
    asked("in another coding", COMPLETIONS, b"", {"Transfer-Encoding": "gzip"}),
    asked("no HTTP of a body", COMPLETIONS, "x", {"Content-Length": "x"}),
    Raw("no HTTP", b"hello\r\n\r\n"),
    Raw("a head that is too long",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 17000 + b"\r\n\r\n"),
    Raw("no host", b"GET /health HTTP/1.1\r\n\r\n"),
    Raw("a whole URL", b"GET http://localhost/health HTTP/1.1\r\nHost: elsewhere\r\n\r\n"),
    Raw("HTTP/1.0", b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n"),
    asked("long by its characters", COMPLETIONS, {"prompt": "hello world " * 4000}),
    asked("long by its tokens", COMPLETIONS, {"prompt": "a b c d " * 400}),
    asked("long by its ids", COMPLETIONS, {"prompt": [5] * 1025}),
    asked("a long prediction", COMPLETIONS, SHORT | {
        "prediction": {"type": "content", "content": "hello world " * 4000}
    }),
    asked("a long chat", CHAT, {"messages": user("hello world " * 4000)}),
    asked("a long response", RESPONSES, {"input": "a b c d " * 400}),
    asked("a long message", MESSAGES, {"messages": user("a b c d " * 400), "max_tokens": 1}),
    asked("a long message of Ollama's", OLLAMA, {"messages": user("a b c d " * 400)}),
    asked("a long text of Ollama's", GENERATE, {"prompt": "a b c d " * 400, "raw": True}),
]  # fmt: skip
_metrics = [got("metrics", "/metrics")]

# --- models that say what they are told to -------------------------------------------------------

_CALLED = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get.weather", "arguments": '{"city": "Oslo"}'},
        }
    ],
}
_DIALOGUE = [
    *user("How is it?"),
    _CALLED,
    {"role": "tool", "tool_call_id": "call_1", "name": "get.weather", "content": "Sunny. #a"},
]
_JSON_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "sun", "schema": SUN, "strict": True},
}
_NAMED = {"type": "function", "function": {"name": "get.weather"}}
_ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [_NAMED]},
}
_chat = [
    *(
        case
        for name, cue in {
            "a text": "#a", "characters in parts": "#e", "nothing": "#s",
        }.items()
        for case in both(name, CHAT, {"messages": user(cue)}, **WITH_USAGE)
    ),
    *both("cut by a limit", CHAT, {"messages": user("#a"), "max_tokens": 3}),
    *both("cut by a stop string", CHAT, {"messages": user("#a"), "stop": ["answer", "here"]}),
    talk("stop strings that do not come", "#a", stop="nowhere"),
    *both("cut within a character", CHAT, {"messages": user("#e"), "max_tokens": 2}),
    *both("ids beside the text", CHAT, {"messages": user("#e"), "return_token_ids": True}),
    *both("spans", CHAT, {"messages": user("#e"), "coordgen": {"spans": True}}),
    *both("text and a call", CHAT, {"messages": user("#c"), "tools": TOOLS}, **WITH_USAGE),
    *both("a call and its logprobs", CHAT, {
        "messages": user("#c"), "tools": TOOLS, "logprobs": True, "top_logprobs": 1
    }),
    *both("one call at most", CHAT, {
        "messages": user("#c"), "tools": TOOLS, "parallel_tool_calls": False
    }),
    *both("a mark that is mentioned", CHAT, {"messages": user("#m"), "tools": TOOLS}),
    *both("a call that is JSON alone", CHAT, {"messages": user("#b"), "tools": TOOLS}),
    talk("a function by its name", "#c", tools=TOOLS, tool_choice=_NAMED, max_tokens=40),
    talk("no tools may be called", "#c", tools=TOOLS, tool_choice="none"),
    talk("no tools", "#c", tools=[]),
    *both("a call cut by a limit", CHAT, {"messages": user("#c"), "tools": TOOLS, "max_tokens": 9}),
    *both("a call cut in its name", CHAT, {"messages": user("#c"), "tools": TOOLS,
        "max_tokens": 6}),
    *both("a call cut by a stop string", CHAT, {"messages": user("#c"), "tools": TOOLS,
        "stop": "Os"}),
    *both("calls that are not held", CHAT, {
        "messages": user("#c"), "tools": TOOLS, "coordgen": {"regex": "(?s:.*)"}
    }),
    *both("a call of no function, not held", CHAT, {
        "messages": user("#u"), "tools": TOOLS, "coordgen": {"regex": "(?s:.*)"}
    }),
    talk("functions that may be called", "#c", tools=TOOLS, tool_choice=_ALLOWED),
    talk("a function without parameters", "#a", tools=[{"type": "function",
        "function": {"name": "time"}}]),
    talk("JSON beside functions", "#j", tools=TOOLS, response_format=_JSON_FORMAT),
    asked("a result", CHAT, {"messages": _DIALOGUE, "tools": TOOLS}),
    asked("the prompt with a result", "/apply-template", {"messages": _DIALOGUE, "tools": TOOLS}),
    asked("the prompt with arguments that are no JSON", "/apply-template", {"messages": [
        *user("x"),
        _CALLED | {"tool_calls": [{"type": "function", "function": {"name": "time",
            "arguments": "{x"}}]},
        *user("#a"),
    ]}),
    talk("the reasoning of a model that does not think", "#a", reasoning_effort="high"),
    talk("variables of the template", "#a", chat_template_kwargs={"any": 1}),
    *both("completions: a text", COMPLETIONS, {"prompt": "Say #a", "max_tokens": -1}),
    *both("completions: characters in parts", COMPLETIONS, {"prompt": "#e", "max_tokens": -1}),
    *both("completions: characters in parts, with logprobs", COMPLETIONS, {
        "prompt": "#e", "max_tokens": 5, "logprobs": 1
    }),
    *both("completions: echo", COMPLETIONS, {"prompt": "#e", "max_tokens": 5, "echo": True}),
    *both("completions: stopped", COMPLETIONS, {"prompt": "#a", "max_tokens": -1, "stop": "world"}),
]  # fmt: skip
_grammars = [
    *both("a schema", CHAT, {"messages": user("#j"), "response_format": _JSON_FORMAT}),
    talk("a schema in the format", "#j", response_format={"type": "json_schema", "schema": SUN}),
    talk("any object", "#j", response_format={"type": "json_object"}),
    talk("an object of a schema", "#j", response_format={"type": "json_object", "schema": SUN}),
    talk("text", "#a", response_format={"type": "text"}),
    talk("llama.cpp's schema", "#j", json_schema=SUN),
    talk("GBNF", "#y", grammar='root ::= "yes, no" | "no"'),
    talk("Lark", "#y", grammar='start: "yes" (", no")?'),
    talk("no grammar", "#y", grammar=""),
    talk("vLLM's schema", "#j", guided_json=SUN),
    talk("vLLM's schema as text", "#j", guided_json=json.dumps(SUN)),
    talk("vLLM's pattern", "#y", guided_regex="yes(, no)?"),
    talk("vLLM's choice", "#y", guided_choice=["no", "yes, no"]),
    talk("vLLM's grammar", "#y", guided_grammar='root ::= "yes, no"'),
    talk("structured outputs: a schema", "#j", structured_outputs={"json": SUN}),
    talk("structured outputs: any object", "#j", structured_outputs={"json_object": True}),
    talk("structured outputs: a pattern", "#y", structured_outputs={"regex": "[a-z, ]+"}),
    talk("structured outputs: a choice", "#y", structured_outputs={"choice": ["yes, no", "maybe"]}),
    talk("structured outputs: a grammar", "#y", structured_outputs={"grammar": 'start: "yes, no"'}),
    talk("a pattern", "#y", coordgen={"regex": "yes"}),
    talk("our Lark", "#y", coordgen={"lark": 'start: /[a-z, ]+/'}),
    *both("what the model would not say", CHAT, {
        "messages": user("#a"), "guided_choice": ["No, never: not at all."], "max_tokens": 12
    }, **WITH_USAGE),
    asked("a response", RESPONSES, {"input": "#j", "text": {
        "format": {"type": "json_schema", "name": "sun", "schema": SUN}
    }}),
    asked("a message", MESSAGES, {"messages": user("#j"), "max_tokens": 50, "output_config": {
        "format": {"type": "json_schema", "schema": SUN}
    }}),
    asked("a message, by the older name", MESSAGES, {
        "messages": user("#j"), "max_tokens": 50,
        "output_format": {"type": "json_schema", "schema": SUN, "name": "sun"},
    }),
    asked("Ollama's schema", OLLAMA, {"messages": user("#j"), "stream": False, "format": SUN}),
    asked("Ollama's JSON", OLLAMA, {"messages": user("#j"), "stream": False, "format": "json"}),
    asked("Ollama's empty format", OLLAMA, {"messages": user("#a"), "stream": False, "format": ""}),
]  # fmt: skip


def _of_form(model: str) -> list[Case]:
    body = {"model": model, "messages": user("Hi"), "tools": TOOLS}
    return [
        *both(f"{model}", CHAT, body),
        asked(f"{model}: required", CHAT, body | {"tool_choice": "required", "max_tokens": 200}),
        asked(f"{model}: cut, streamed", CHAT, body | STREAMED | {"max_tokens": 8}),
        asked(f"{model}: not held", CHAT, body | {"coordgen": {"regex": "(?s:.*)"}}),
    ]


def _of_dialects(model: str) -> list[Case]:
    body = {"model": model, "messages": user("Hi")}
    message = body | {"tools": OF_ANTHROPIC, "max_tokens": 100}
    return [
        *both(
            f"{model}: a response", RESPONSES, {"model": model, "input": "Hi", "tools": FLAT_TOOLS}
        ),
        *both(f"{model}: a message", MESSAGES, message),
        *both(f"{model}: Ollama's", OLLAMA, body | {"tools": TOOLS}),
    ]


_calls = [
    *(case for model in FORMS for case in _of_form(model)),
    *(case for model in ("harmony", "hermes", "gemma") for case in _of_dialects(model)),
]
_THINKER = {"model": "thinker"}
_thinking = [
    *(
        case
        for name, cue in {
            "thinking": "#t", "none": "#n", "opened by the prompt": "#o",
        }.items()
        for case in both(name, CHAT, _THINKER | {"messages": user(cue)}, **WITH_USAGE)
    ),
    *both("thinking and a call", CHAT, _THINKER | {"messages": user("#k"), "tools": TOOLS}),
    *both("thinking and JSON", CHAT, _THINKER | {
        "messages": user("#j"), "response_format": _JSON_FORMAT
    }),
    *both("logprobs of the answer alone", CHAT, _THINKER | {"messages": user("#t"),
        "logprobs": True}),
    *both("ids and spans", CHAT, _THINKER | {
        "messages": user("#t"), "return_token_ids": True, "coordgen": {"spans": True}
    }),
    *both("cut while it thinks", CHAT, _THINKER | {"messages": user("#t"), "max_tokens": 3}),
    talk("stopped while it thinks", "#t", "thinker", stop="I think"),
    talk("left in the content", "#t", "thinker", reasoning_format="none"),
    talk("told apart by llama.cpp's name", "#t", "thinker", reasoning_format="deepseek"),
    *(
        asked(f"the prompt at {effort}", "/apply-template", _THINKER | {
            "messages": user("x"), "chat_template_kwargs": {"enable_thinking": effort != "none"}
        })
        for effort in ("none", "high")
    ),
    *(
        talk(f"effort: {effort}", "#n", "thinker", reasoning_effort=effort)
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    ),
    talk("an effort and a variable that agree", "#n", "thinker", reasoning_effort="none",
         chat_template_kwargs={"enable_thinking": False}),
    talk("an effort and a variable that do not", "#n", "thinker", reasoning_effort="none",
         chat_template_kwargs={"enable_thinking": True}),
    *(
        asked(f"the prompt with thoughts in {name}", "/apply-template", _THINKER | {"messages": [
            *user("x"), {"role": "assistant", "content": "y", name: "thought. "}, *user("z"),
        ]})
        for name in ("reasoning_content", "reasoning", "thinking")
    ),
    *both("channels", CHAT, {"model": "channels", "messages": user("Hi")}, **WITH_USAGE),
    talk("the least effort of channels", "Hi", "channels", reasoning_effort="none"),
    *both("a response", RESPONSES, _THINKER | {"input": "#t"}),
    *both("a response with an effort", RESPONSES, _THINKER | {
        "input": "#n", "reasoning": {"effort": "low", "summary": "auto"}
    }),
    *both("a response with a call", RESPONSES, _THINKER | {"input": "#k", "tools": FLAT_TOOLS}),
    *both("a response with ids and spans", RESPONSES, _THINKER | {
        "input": "#t", "return_token_ids": True, "coordgen": {"spans": True}
    }),
    *both("a message", MESSAGES, _THINKER | {
        "messages": user("#t"), "max_tokens": 90, "thinking": {"type": "enabled",
            "budget_tokens": 1024}
    }),
    asked("a message that is not to think", MESSAGES, _THINKER | {
        "messages": user("#n"), "max_tokens": 90, "thinking": {"type": "disabled"}
    }),
    asked("a message with an effort", MESSAGES, _THINKER | {
        "messages": user("#n"), "max_tokens": 90, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
    }),
    *both("a message with a call", MESSAGES, _THINKER | {
        "messages": user("#k"), "max_tokens": 90, "tools": OF_ANTHROPIC
    }),
    *both("Ollama's", OLLAMA, _THINKER | {"messages": user("#t"), "think": True}),
    asked("Ollama's, not to think", OLLAMA, _THINKER | {
        "messages": user("#n"), "think": False, "stream": False
    }),
    asked("Ollama's, with an effort", OLLAMA, _THINKER | {
        "messages": user("#n"), "think": "high", "stream": False
    }),
    *both("Ollama's text", GENERATE, _THINKER | {"prompt": "#t"}),
]  # fmt: skip
_responses = [
    *both("a text", RESPONSES, {"input": "#a"}),
    *both("instructions, and fields that are echoed", RESPONSES, {
        "input": "#a", "instructions": "Be short.", "max_output_tokens": 4, "temperature": 0,
        "top_p": 1, "store": False, "background": False, "truncation": "disabled",
        "metadata": {"a": "b"}, "max_tool_calls": 3, "text": {"verbosity": "medium"},
    }),
    *both("logprobs", RESPONSES, {
        "input": "#e", "include": ["message.output_text.logprobs"], "top_logprobs": 1
    }),
    *both("ids and spans", RESPONSES, {
        "input": "#e", "return_token_ids": True, "coordgen": {"spans": True}
    }),
    *both("a stop string", RESPONSES, {"input": "#a", "stop": "world"}),
    *both("nothing", RESPONSES, {"input": "#s"}),
    *both("text and a call", RESPONSES, {"input": "#c", "tools": FLAT_TOOLS}),
    *both("a call that is cut", RESPONSES, {
        "input": "#c", "tools": FLAT_TOOLS, "max_output_tokens": 9
    }),
    asked("a function that may be called", RESPONSES, {
        "input": "#c", "tools": FLAT_TOOLS, "parallel_tool_calls": False, "tool_choice": {
            "type": "allowed_tools", "mode": "auto",
            "tools": [{"type": "function", "name": "get.weather"}, {"type": "web_search"}],
        },
    }),
    asked("OpenAI's own tools", RESPONSES, {
        "input": "#a", "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    }),
    asked("items", RESPONSES, {"tools": FLAT_TOOLS, "input": [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x",
         "content": [{"type": "reasoning_text", "text": "I look."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get.weather",
         "arguments": '{"city": "Oslo"}', "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output": [
            {"type": "input_text", "text": "Sunny. #a"}]},
    ]}),
    asked("a message of the model's, with logprobs", RESPONSES, {"input": [
        {"role": "assistant", "phase": "final", "content": [
            {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}]},
        {"role": "user", "content": "#a"},
    ]}),
]  # fmt: skip
_MESSAGE = {"messages": user("#a"), "max_tokens": 90}
_messages = [
    *both("a text", MESSAGES, _MESSAGE),
    *both("a limit", MESSAGES, _MESSAGE | {"max_tokens": 3}),
    *both("a stop string", MESSAGES, _MESSAGE | {"stop_sequences": ["world", "x"]}),
    *both("nothing", MESSAGES, _MESSAGE | {"messages": user("#s")}),
    *both("text and a call", MESSAGES, _MESSAGE | {"messages": user("#c"), "tools": OF_ANTHROPIC}),
    *both("a call that is cut", MESSAGES, _MESSAGE | {
        "messages": user("#c"), "tools": OF_ANTHROPIC, "max_tokens": 9
    }),
    *both("one call at most", MESSAGES, _MESSAGE | {
        "messages": user("#c"), "tools": OF_ANTHROPIC,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }),
    asked("no tool", MESSAGES, _MESSAGE | {"tools": OF_ANTHROPIC, "tool_choice": {"type": "none"}}),
    asked("fields about the account", MESSAGES, _MESSAGE | {
        "max_tokens": 3, "metadata": {"user_id": "x"}, "service_tier": "auto", "betas": ["x"],
        "cache_control": {"type": "ephemeral"}, "container": "x", "context_management": {},
        "mcp_servers": [], "thread": {"type": "create"}, "top_k": 5, "top_p": 0.9,
        "temperature": 0, "seed": 1,
    }),
    asked("blocks", MESSAGES, _MESSAGE | {
        "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        "tools": OF_ANTHROPIC,
        "messages": [
            *user("How?"),
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "get.weather",
                 "input": {"city": "Oslo"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
                 "content": [{"type": "text", "text": "no line"}]},
                {"type": "text", "text": "Well? #a"},
            ]},
        ],
    }),
    asked("counted", COUNT, {"messages": user("#a"), "system": "Be short.", "tools": OF_ANTHROPIC}),
    asked("counted, with fields of an answer", COUNT, _MESSAGE | {"stream": True,
        "temperature": 1}),
]  # fmt: skip
_ollama = [
    *both("a chat", OLLAMA, {"messages": user("#a")}),
    *both("characters in parts", OLLAMA, {"messages": user("#e")}),
    *both("a limit", OLLAMA, {"messages": user("#a"), "options": {"num_predict": 3}}),
    *both("text and a call", OLLAMA, {"messages": user("#c"), "tools": TOOLS}),
    *both("a call that is cut", OLLAMA, {
        "messages": user("#c"), "tools": TOOLS, "options": {"num_predict": 9}
    }),
    *both("logprobs", OLLAMA, {"messages": user("#e"), "logprobs": True, "top_logprobs": 1}),
    asked("options", OLLAMA, {
        "messages": user("#a"), "stream": False, "keep_alive": "5m", "truncate": True,
        "options": {"num_predict": -2, "temperature": 0, "top_k": 40, "top_p": 0.9, "min_p": 0,
                    "seed": 1, "stop": ["answer"], "repeat_penalty": 1, "repeat_last_n": 64,
                    "presence_penalty": 0, "frequency_penalty": 0, "num_ctx": 4096, "mirostat": 0},
    }),
    asked("a result", OLLAMA, {"stream": False, "tools": TOOLS, "messages": [
        *user("How?"),
        {"role": "assistant", "content": "", "thinking": "I look.", "tool_calls": [
            {"function": {"name": "get.weather", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "tool_name": "get.weather", "content": "Sunny. #a"},
    ]}),
    *both("a text", GENERATE, {"prompt": "#a", "system": "Be short."}),
    *both("a text without a template", GENERATE, {"prompt": "#a", "raw": True}),
    asked("loaded", OLLAMA, {"messages": []}),
    asked("loaded by the other path", GENERATE, {"model": "chat"}),
    asked("unloaded", OLLAMA, {"keep_alive": 0}),
    asked("unloaded by the other path", GENERATE, {"keep_alive": "0s"}),
]  # fmt: skip
_models = [
    got("the models before others are opened", "/v1/models"),
    asked("the first model", CHAT, {"messages": user("#a"), "max_tokens": 2}),
    *both("filled in", COMPLETIONS, {"model": "infill", "prompt": "def add(", "suffix": ")"}),
    *both("filled in by Ollama's", GENERATE, {"model": "infill", "prompt": "add(", "suffix": ")"}),
    asked("a chat without a template", CHAT, {"model": "bare", "messages": user("x")}),
    asked("a response without a template", RESPONSES, {"model": "bare", "input": "x"}),
    asked("a message without a template", MESSAGES, {"model": "bare"} | _MESSAGE),
    asked("no tokens to fill in with", COMPLETIONS, {"prompt": "x", "suffix": "y"}),
    asked("none for Ollama's clients", GENERATE, {"prompt": "x", "suffix": "y"}),
    asked("a model that cannot be opened", COMPLETIONS, {"model": "broken", "prompt": "x"}),
    asked("it, to Anthropic's clients", MESSAGES, {"model": "broken"} | _MESSAGE),
    asked("it, to Ollama's clients", OLLAMA, {"model": "broken", "messages": user("x")}),
    asked("it, for tokens", "/tokenize", {"model": "broken", "content": "x"}),
    asked("its stream", COMPLETIONS, {"model": "broken", "prompt": "x", "stream": True}),
    *(
        asked(f"no such model: {path}", path, {"model": "none"} | body)
        for path, body in {
            CHAT: {}, COMPLETIONS: {}, RESPONSES: {}, MESSAGES: {}, COUNT: {}, OLLAMA: {},
            GENERATE: {}, "/tokenize": {}, "/apply-template": {}, "/api/show": {},
        }.items()
    ),
    got("health of several", "/health"),
    got("a model that is not open", "/v1/models/phi"),
]  # fmt: skip
_ollama_models = [
    asked("shown: one that thinks", "/api/show", {"model": "thinker:latest"}),
    asked("shown: one that fills in", "/api/show", {"model": "infill"}),
    asked("shown: one that cannot be opened", "/api/show", {"model": "broken"}),
    got("those that are open", "/api/ps"),
    got("documents without a history", "/v1/documents"),
    got("no metrics", "/metrics"),
]

# --- refusals: each message, at each place that raises it ----------------------------------------

_NEUTRAL_FIELDS: dict[str, Any] = {
    "add_generation_prompt": False, "backend_sampling": True, "bad_words": ["x"],
    "continue_final_message": True, "dry_multiplier": 0.8, "dynatemp_range": 0.5,
    "function_call": "x", "functions": [{}], "id_slot": 1, "include_stop_str_in_output": True,
    "length_penalty": 2, "min_keep": 1, "min_tokens": 1, "mirostat": 2, "n_probs": 1,
    "post_sampling_probs": True, "priority": 1, "return_progress": True,
    "skip_special_tokens": False, "spaces_between_special_tokens": False, "stop_token_ids": [1],
    "tfs_z": 0.5, "top_n_sigma": 1, "typ_p": 0.9, "typical_p": 0.9, "use_beam_search": True,
    "verbosity": "high", "xtc_probability": 0.5, "repeat_last_n": 32, "samplers": ["temperature"],
}  # fmt: skip
_refused_completions = [
    *changed(
        COMPLETIONS, {"prompt": "x"},
        *({name: value} for name, value in _NEUTRAL_FIELDS.items()),
        {"repeat_last_n": 32, "repeat_penalty": 1.1}, {"samplers": "temperature"},
        {"samplers": ["temperature", "top_k", "top_p", "min_p"]},
        {"prompt": None}, {"prompt": 5}, {"prompt": {}}, {"prompt": ["x", "y"]},
        {"prompt": [[1], [2]]}, {"prompt": [1, "x"]}, {"prompt": [True]}, {"prompt": [1.5]},
        {"prompt": []}, {"prompt": ""}, {"prompt": [-1]}, {"prompt": [100000]}, {"prompt": [2**40]},
        {"unknown": 1}, {"Prompt": "x"}, {"audio": {}}, {"moderation": {}},
        {"web_search_options": {}}, {"messages": []}, {"": 1}, {"a\nb": 1},
        {"temperature": "1"}, {"temperature": True}, {"temperature": -1}, {"temperature": 101},
        {"temperature": [1]}, {"top_p": 0}, {"top_p": 1.5}, {"top_p": "x"}, {"top_k": 1.5},
        {"top_k": -2}, {"top_k": False}, {"min_p": 2}, {"repetition_penalty": 0},
        {"repeat_penalty": 1.1, "repetition_penalty": 1.2}, {"presence_penalty": 3},
        {"frequency_penalty": -3}, {"seed": -2}, {"seed": 1.5}, {"seed": 2**64 - 1, "top_k": None},
        {"max_tokens": 0}, {"max_tokens": -2}, {"max_tokens": "5"}, {"max_tokens": True},
        {"max_tokens": 5, "n_predict": 6}, {"max_completion_tokens": 5},
        {"n": 0}, {"n": 17}, {"n": "2"}, {"best_of": 2}, {"n": 2, "best_of": 3}, {"best_of": 0},
        {"echo": 1}, {"echo": True, "logprobs": 1}, {"suffix": 5}, {"logprobs": 21},
        {"logprobs": True}, {"top_logprobs": 2}, {"stream": "true"}, {"stream": 1},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": 1}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"stream": True, "stream_options": {"more": 1}}, {"stream": True, "stream_options": []},
        {"stop": 5}, {"stop": [""]}, {"stop": ["a"] * 17}, {"stop": "a" * 257}, {"stop": [5]},
        {"prediction": "x"}, {"prediction": {"type": "text", "content": "x"}},
        {"prediction": {"type": "content"}}, {"prediction": {"type": "content", "content": 5}},
        {"prediction": {"type": "content", "content": [{"type": "image"}]}},
        {"prediction": {"type": "content", "content": "x", "more": 1}},
        {"ignore_eos": "yes"}, {"cache_prompt": 1}, {"return_token_ids": 1},
        {"coordgen": []}, {"coordgen": {"spans": 1}}, {"coordgen": {"trees": "x"}},
        {"coordgen": {"drafts": None, "more": 1}}, {"coordgen": {"drafts": 0}},
        {"logit_bias": 5}, {"logit_bias": {"x": "y"}}, {"logit_bias": {"42": 101}},
        {"logit_bias": {"42": True}}, {"logit_bias": [[42]]}, {"logit_bias": [[True, 1]]},
        {"logit_bias": [[-1, 1]]}, {"logit_bias": [["", 1]]}, {"logit_bias": {"99999": 1}},
        {"logit_bias": {"99999999999": 1}}, {"logit_bias": [["a" * 257, 1]]},
        {"logit_bias": [["XYZÄ🙂", 1], *([number, 1] for number in range(500, 1523))]},
        {"logit_bias": {str(number): 1 for number in range(1025)}},
        {"model": 5}, {"model": ""}, {"model": "x" * 100},
    ),
]  # fmt: skip


def _message(**fields: Any) -> dict[str, Any]:
    return {"messages": [*user("x"), fields]}


_refused_chats = [
    *changed(
        CHAT, {"messages": user("x")},
        {"messages": None}, {"messages": []}, {"messages": "x"}, {"messages": ["x"]},
        {"messages": [{"content": "x"}]}, {"messages": [{"role": 5, "content": "x"}]},
        _message(role="user"), _message(role="user", content=None), _message(role="user",
            content=5),
        _message(role="user", content={}), _message(role="user", content=["x"]),
        _message(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        _message(role="user", content=[{"type": "text"}]), _message(role="nobody", content="x"),
        _message(role="user", content="x", colour="red"), _message(role="tool", tool_calls=[{}]),
        _message(role="assistant", tool_calls=[]), _message(role="assistant", tool_calls={}),
        _message(role="assistant", content="x", tool_calls="x"),
        _message(role="assistant", tool_calls=["x"]),
        _message(role="assistant", tool_calls=[{"type": "custom"}]),
        _message(role="assistant", tool_calls=[{"function": {"arguments": "{}"}}]),
        _message(role="assistant", tool_calls=[{"function": {"name": "x"}}]),
        _message(role="assistant", tool_calls=[{"function": {"name": "x", "arguments": 5}}]),
        _message(role="assistant", tool_calls=[{"function": {"name": "x", "arguments": {},
            "y": 1}}]),
        _message(role="assistant", tool_calls=[{"function": {"name": "x", "arguments": {}},
            "y": 1}]),
        _message(role="assistant", tool_calls=[{"id": 5, "function": {"name": "x"}}]),
        {"messages": user("refuse")},
        {"max_tokens": 5, "max_completion_tokens": 6}, {"max_completion_tokens": 0},
        {"logprobs": 1}, {"top_logprobs": 1}, {"logprobs": True, "top_logprobs": 21},
        {"modalities": ["audio"]}, {"store": True}, {"reasoning_format": "other"},
        {"reasoning_format": 5}, {"reasoning_effort": "some"}, {"reasoning_effort": 5},
        {"chat_template_kwargs": []}, {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"tools": []}}, {"prompt": "x"},
        {"chat_template_kwargs": {"add_generation_prompt": False}}, {"echo": True},
    ),
]  # fmt: skip


def _tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": fields}]}


_refused_tools = [
    *changed(
        CHAT, {"messages": user("x"), "tools": TOOLS},
        {"tools": {}}, {"tools": ["x"]}, {"tools": TOOLS * 65}, {"tools": TOOLS[:1] * 2},
        {"tools": [{"type": "web_search"}]}, {"tools": [{"type": "function"}]},
        _tool(name=""), _tool(name="a b"), _tool(name="x" * 129), _tool(name=5),
        _tool(name="x", description=5), _tool(name="x", strict="yes"),
        _tool(name="x", parameters=[]), _tool(name="x", parameters={"type": "string"}),
        _tool(name="x", more=1), {"tools": [{"type": "function", "function": {"name": "x"},
            "y": 1}]},
        {"parallel_tool_calls": 1}, {"tool_choice": "some"}, {"tool_choice": 5},
        {"tool_choice": {}},
        {"tool_choice": {"type": "custom"}}, {"tool_choice": {"type": "function"}},
        {"tool_choice": {"type": "function", "function": {}}},
        {"tool_choice": {"type": "function", "function": {"name": "none"}}},
        {"tool_choice": {"type": "function", "function": {"name": "time", "x": 1}}},
        {"tool_choice": {"type": "function", "function": {"name": "time"}, "x": 1}},
        {"tools": None, "tool_choice": "required"}, {"tools": [], "tool_choice": _NAMED},
        {"tool_choice": {"type": "allowed_tools"}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
        "tools": [{}]}}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "function": {"name": "none"}}]}}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [_NAMED | {"x": 1}]}}},
        {"tool_choice": "required", "coordgen": {"regex": "x"}},
        {"tool_choice": "required"} | _tool(name="x",
        parameters={"properties": {"y": {"not": {}}}}),
        _tool(name="x", strict=True, parameters={"properties": {"y": {"not": {}}}}),
        {"tool_choice": "required"} | _tool(name="x", parameters={"properties": {"y": False},
        "required": ["y"]}),
        _tool(name="x", strict=True, parameters={"$ref": "#/none"}),
    ),
    *changed(
        RESPONSES, {"input": "x", "tools": FLAT_TOOLS},
        {"tools": [{"type": "custom", "name": "x"}]}, {"tools": [{"type": "function"}]},
        {"tools": [FLAT_TOOLS[0] | {"defer_loading": True}]}, {"tools": [FLAT_TOOLS[0] | {"x": 1}]},
        {"tool_choice": {"type": "function"}}, {"tool_choice": {"type": "function",
        "name": "none"}},
        {"tool_choice": {"type": "web_search"}}, {"tool_choice": {"type": "allowed_tools"}},
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        {"tool_choice": "required", "tools": [
            {"type": "function", "name": "x", "parameters": {"properties": {"y": {"not": {}}}}}]},
    ),
    *changed(
        MESSAGES, {"messages": user("x"), "max_tokens": 5, "tools": OF_ANTHROPIC},
        {"tools": {}}, {"tools": ["x"]}, {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"name": "x", "input_schema": []}]}, {"tools": [{"input_schema": CITY}]},
        {"tools": [{"name": "x", "more": 1}]}, {"tool_choice": "auto"}, {"tool_choice": {}},
        {"tool_choice": {"type": "some"}}, {"tool_choice": {"type": "tool"}},
        {"tool_choice": {"type": "tool", "name": "none"}}, {"tool_choice": {"type": "any", "x": 1}},
        {"tools": None, "tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
        {"tool_choice": {"type": "any"}, "tools": [
            {"name": "x", "input_schema": {"properties": {"y": {"not": {}}}}}]},
    ),
    *changed(OLLAMA, {"messages": user("x")}, {"tools": {}}, {"tools": ["x"]},
             {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
]  # fmt: skip
_refused_grammars = [
    *changed(
        CHAT, {"messages": user("x"), "max_tokens": 5},
        {"response_format": "json"}, {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SUN, "x": 1}}},
        {"response_format": {"type": "json_schema", "schema": "x"}},
        {"response_format": {"type": "json_object", "schema": 5}},
        {"response_format": {"type": "text", "x": 1}}, {"json_schema": 5}, {"json_schema": "{"},
        {"json_schema": {"type": "nothing"}}, {"json_schema": {"$ref": "http://x"}},
        {"json_schema": {"not": {}}}, {"json_schema": False}, {"grammar": 5},
        {"grammar": 'root ::= "x'}, {"grammar": "start: x"}, {"guided_json": []},
        {"guided_regex": "("}, {"guided_regex": 5}, {"guided_choice": "x"}, {"guided_choice": []},
        {"guided_choice": [""]}, {"guided_choice": ["x"] * 1025}, {"structured_outputs": "x"},
        {"structured_outputs": {"x": 1}}, {"structured_outputs": {"json_object": 1}},
        {"structured_outputs": {"choice": [1]}}, {"structured_outputs": {"regex": "a", "json": {}}},
        {"coordgen": {"regex": "["}}, {"coordgen": {"lark": "start: "}}, {"coordgen": {"lark": 5}},
        {"coordgen": {"regex": "a", "lark": "b"}}, {"json_schema": SUN, "grammar": "start: x"},
        {"response_format": {"type": "json_object"}, "guided_regex": "x"},
        {"stream": True, "coordgen": {"regex": "["}}, {"coordgen": {"regex": ""}},
    ),
    *changed(
        RESPONSES, {"input": "x", "max_output_tokens": 5}, {"text": "x"}, {"text": {"x": 1}},
        {"text": {"verbosity": "high"}}, {"text": {"format": {"type": "xml"}}},
        {"text": {"format": {"type": "json_schema"}}},
        {"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
        {"text": {"format": {"type": "json_object"}}, "grammar": "start: x"},
        {"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
    ),
    *changed(
        MESSAGES, {"messages": user("x"), "max_tokens": 5},
            {"output_config": {"format": {"type": "x"}}},
        {"output_config": {"format": {"schema": SUN}}}, {"output_format": {"type": "json_schema"}},
        {"output_config": {"format": {"type": "json_schema", "schema": SUN, "x": 1}}},
        {"output_config": {"format": {"type": "json_schema", "schema": SUN}},
         "output_format": {"type": "json_schema", "schema": SUN}}, {"output_config": {"x": 1}},
        {"output_config": {"effort": "some"}}, {"output_config": []},
        {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
    ),
    *changed(OLLAMA, {"messages": user("x")}, {"format": "xml"}, {"format": 5},
             {"format": {"not": {}}}, {"format": {"type": "x"}}, {"format": []}),
]  # fmt: skip
_ITEM = {"type": "function_call", "name": "x", "call_id": "1", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "x"}


def _items(*items: Any) -> dict[str, Any]:
    return {"input": list(items)}


_refused_responses = [
    *changed(
        RESPONSES, {"input": "x"},
        {"input": None}, {"input": []}, {"input": 5}, {"instructions": 5}, _items("x"), _items({}),
        _items({"role": "nobody", "content": "x"}), _items({"role": "user"}),
        _items({"role": "user", "content": 5}),
        _items({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
        _items({"role": "user", "content": [{"type": "input_text"}]}),
        _items({"role": "user", "content": [{"type": "input_text", "text": "x", "y": 1}]}),
        _items({"role": "user", "content": [5]}), _items({"role": "user", "content": "x", "y": 1}),
        _items({"type": "web_search_call"}), _items({"type": 5}),
        _items({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}),
        _items(*user("x"), _ITEM | {"name": None}), _items(_ITEM | {"arguments": 5}),
        _items(_ITEM | {"namespace": "x"}), _items(_ITEM | {"y": 1}),
        _items(_OUTPUT | {"call_id": None}), _items(_OUTPUT | {"output": 5}),
            _items(_OUTPUT | {"y": 1}),
        {"previous_response_id": "resp_1"}, {"conversation": "x"}, {"prompt": {"id": "x"}},
        {"store": True}, {"background": True}, {"truncation": "auto"}, {"n": 2},
        {"max_output_tokens": 0}, {"include": "x"}, {"include": ["x"]}, {"top_logprobs": 1},
        {"reasoning": "x"}, {"reasoning": {"effort": "some"}},
        {"reasoning": {"summary": "detailed"}},
        {"reasoning": {"generate_summary": "concise"}}, {"reasoning": {"x": 1}}, {"messages": []},
        {"max_tokens": 5}, {"stream": 1}, {"temperature": 200}, {"stop": [""]}, {"x": 1},
    ),
]  # fmt: skip


def _blocks(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [*user("x"), {"role": role, "content": list(blocks)}, *user("y")]}


_USE = {"type": "tool_use", "id": "1", "name": "x", "input": {}}
_RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
_refused_messages = [
    *changed(
        MESSAGES, {"messages": user("x"), "max_tokens": 5},
        {"messages": None}, {"messages": []}, {"messages": "x"}, {"messages": ["x"]},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": "x", "y": 1}]}, {"system": 5},
        {"system": [_IMAGE]},
        _blocks("user", 5), _blocks("user", {"type": "text"}), _blocks("user", _IMAGE),
        _blocks("user", {"type": "document"}), _blocks("user", {"type": "text", "text": "x",
            "y": 1}),
        _blocks("user", {}), _blocks("user", _USE), _blocks("assistant", _RESULT),
        _blocks("assistant", _USE | {"id": None}), _blocks("assistant", _USE | {"name": None}),
        _blocks("assistant", _USE | {"input": 5}), _blocks("assistant", _USE | {"y": 1}),
        _blocks("assistant", {"type": "thinking", "thinking": 5}),
        _blocks("assistant", {"type": "thinking", "thinking": "x", "y": 1}),
        _blocks("assistant", {"type": "redacted_thinking", "y": 1}),
        _blocks("user", _RESULT | {"tool_use_id": None}), _blocks("user", _RESULT | {"content": 5}),
        _blocks("user", _RESULT | {"is_error": 1}), _blocks("user", _RESULT | {"y": 1}),
        _blocks("user", _RESULT | {"content": [_IMAGE]}),
        {"max_tokens": None}, {"max_tokens": 0}, {"max_tokens": "5"}, {"temperature": 200},
        {"top_k": 1.5}, {"top_p": 2}, {"seed": -5}, {"stream": 1}, {"stop_sequences": "x"},
        {"stop_sequences": [""]}, {"stop_sequences": ["x"] * 17}, {"stop_sequences": ["x" * 257]},
        {"thinking": "x"}, {"thinking": {"type": "some"}}, {"thinking": {"type": "enabled",
        "x": 1}},
        {"thinking": {"type": "enabled", "budget_tokens": -1}}, {"mcp_servers": [{"url": "x"}]},
        {"thread": {"type": "continue", "id": "x"}}, {"thread": {"type": "other"}}, {"x": 1},
        {"presence_penalty": 1}, {"messages": user("refuse")},
    ),
    *changed(COUNT, {"messages": user("x")}, {"messages": None}, {"x": 1}, {"system": 5}),
]  # fmt: skip
_refused_ollama = [
    *changed(
        OLLAMA, {"messages": user("x")},
        {"messages": "x"}, {"messages": {"x": 1}}, {"messages": {}}, {"messages": ["x"]},
        {"messages": [{"role": 5}]}, {"messages": [{"content": "x"}]},
        {"messages": user("x", images=["x"])}, {"messages": user("x", y=1)},
        {"messages": [{"role": "user", "content": 5}]}, {"messages": user("x",
        tool_calls={"x": 1})},
        {"messages": user("x", tool_calls=[5])},
        {"messages": user("x", tool_calls=[{"function": {"arguments": {}}}])},
        {"messages": user("x", tool_calls=[{"function": {"name": "x", "arguments": 5}}])},
        {"messages": user("x", tool_calls=[{"function": {"name": "x", "y": 1}}])},
        {"messages": user("x", thinking=5)}, {"messages": user("x", tool_name=5)},
        {"think": "some"}, {"think": 1}, {"stream": 1}, {"options": "x"}, {"options": {"x": 1}},
        {"options": {"num_predict": -3}}, {"options": {"num_predict": "x"}},
        {"options": {"temperature": 200}}, {"options": {"stop": [""]}}, {"options": {"top_p": 0}},
        {"options": {"repeat_penalty": 1.1, "repeat_last_n": 32}}, {"options": {"mirostat": 1}},
        {"options": {"typical_p": 0.5}}, {"options": {"seed": "x"}}, {"keep_alive": "x"},
        {"keep_alive": True}, {"logprobs": 1}, {"top_logprobs": 1}, {"x": 1}, {"prompt": "x"},
        {"messages": user("refuse")},
    ),
    *changed(
        GENERATE, {"prompt": "x"},
        {"prompt": 5}, {"system": 5}, {"suffix": 5}, {"template": "x"}, {"context": [1]},
        {"images": ["x"]}, {"raw": 1}, {"suffix": "x", "system": "y"}, {"think": "some",
        "raw": True},
        {"x": 1}, {"messages": []}, {"model": "chat", "prompt": "", "raw": True},
    ),
]  # fmt: skip

# --- who may ask ---------------------------------------------------------------------------------

_ALICE, _BOB = {"Authorization": "Bearer 5f0c"}, {"x-api-key": "91b2"}
_ORIGIN = {"Origin": "https://chat.example"}
_PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}
_keys = [
    got("no key for the page", "/"),
    got("no key for the health", "/health"),
    got("no key", "/v1/models"),
    got("no key, for Anthropic's clients", "/v1/models", headers=_CLAUDE),
    got("no key, for Ollama's clients", "/api/tags"),
    asked("no key for an answer", COMPLETIONS, SHORT),
    asked("no key for a message", MESSAGES, _MESSAGE),
    asked("no key for Ollama's", OLLAMA, {"messages": user("x")}),
    got("a wrong key", "/v1/models", headers={"Authorization": "Bearer x"}),
    got("a key of another kind", "/v1/models", headers={"Authorization": "Basic 5f0c"}),
    got("two keys", "/v1/models", headers=_ALICE | _BOB),
    got("the same key twice", "/api/version", headers=_ALICE | {"x-api-key": "5f0c"}),
    got("a key", "/api/version", headers=_ALICE),
    got("a key in another header", "/api/version", headers=_BOB),
    got("no such path without a key", "/v1/nothing"),
    asked("alice asks", COMPLETIONS, SHORT, _ALICE),
    asked("bob asks the same: nothing is kept for him", COMPLETIONS, SHORT, _BOB),
    asked("alice asks again", COMPLETIONS, SHORT, _ALICE),
    asked("more answers than places", COMPLETIONS, SHORT | {
        "n": 5, "temperature": 1, "seed": 1
    }, _ALICE),
    got("another host", "/health", headers={"Host": "evil.example"}),
    got("another host, for Ollama's clients", "/api/tags", headers={"Host": "evil.example"}),
    got("another host, for Anthropic's clients", MESSAGES, headers={"Host": "evil.example"}),
    got("a host that is allowed", "/health", headers={"Host": "chat.local:8080"}),
    got("an address", "/health", headers={"Host": "10.0.0.1"}),
    got("a name and more", "/health", headers={"Host": "x@localhost"}),
    got("another origin", "/health", headers={"Origin": "https://evil.example"}),
    got("its own origin", "/health", headers={"Origin": "http://localhost"}),
    got("an origin that is allowed", "/health", headers=_ORIGIN),
    got("an origin that is allowed, without a key", "/v1/models", headers=_ORIGIN),
    got("an origin that is allowed, no such path", "/v1/nothing", headers=_ORIGIN | _ALICE),
    got("may a page ask?", CHAT, "OPTIONS", _ORIGIN | _PREFLIGHT),
    got("may another page ask?", CHAT, "OPTIONS", {"Origin": "https://evil.example"} | _PREFLIGHT),
    got("may a page of another method?", CHAT, "OPTIONS",
        _ORIGIN | {"Access-Control-Request-Method": "PUT"}),
    got("documents without a history", "/v1/documents", headers=_ALICE),
    got("the models of one who has a key", "/v1/models", headers=_ALICE),
]  # fmt: skip

SERVERS = {
    "embedded": [
        "completions", "in-words", "routes", "documents", "bodies", "refused-completions",
            "metrics",
    ],
    "scripted": [
        "models", "chat", "grammars", "calls", "thinking", "responses", "messages", "ollama",
        "refused-chats", "refused-tools", "refused-grammars", "refused-responses",
        "refused-messages", "refused-ollama", "ollama-models",
    ],
    "keys": ["keys"],
}  # fmt: skip
GROUPS: dict[str, list[Case | Raw]] = {
    "completions": _completions,
    "in-words": _in_words,
    "routes": _routes,
    "documents": _documents,
    "bodies": _bodies,
    "refused-completions": _refused_completions,
    "metrics": _metrics,
    "models": _models,
    "chat": _chat,
    "grammars": _grammars,
    "calls": _calls,
    "thinking": _thinking,
    "responses": _responses,
    "messages": _messages,
    "ollama": _ollama,
    "refused-chats": _refused_chats,
    "refused-tools": _refused_tools,
    "refused-grammars": _refused_grammars,
    "refused-responses": _refused_responses,
    "refused-messages": _refused_messages,
    "refused-ollama": _refused_ollama,
    "ollama-models": _ollama_models,
    "keys": _keys,
}

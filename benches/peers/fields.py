"""The same requests to `coordgen serve` and to llama.cpp's server: what each answers to each field.

    python benches/peers/quantize.py MODEL.gguf MODEL.f32.gguf --type F32
    python benches/peers/fields.py MODEL.f32.gguf

Both serve the same file; one in F32 says the same tokens in both but for ties. For each request:
status, why the answer ended, its text, its counts of tokens, its log probabilities, and names of
llama.cpp's that ours lacks. Exit code 1 if anything differs that is not named in `KNOWN`, where it
says why. Needs `make peers`.
"""

import argparse
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

from live import llama_build
from live.llama_build import BUILT, ProgramError
from live.llama_server import Server
from over_http.servers import OurServer
from support.script import run_script

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow, and say why."}]
PAIR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "maxLength": 12}, "length": {"type": "integer"}},
    "required": ["colour", "length"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}
CHAT, TEXT = "v1/chat/completions", "v1/completions"
_LOGPROB = 2e-3
"""Sums in another order."""


class Case(NamedTuple):
    """A request to both.

    Attributes:
        name: What it is about.
        path: Where it is sent.
        body: What is asked.
        only_theirs: What llama.cpp needs besides to be asked the same.
    """

    name: str
    path: str
    body: dict[str, Any]
    only_theirs: Mapping[str, Any] = MappingProxyType({})


def _chat(name, **fields):
    return _case(name, CHAT, {"messages": QUESTION, "max_tokens": 24}, fields)


def _text(name, **fields):
    prompt = "The colours of the rainbow are"
    return _case(name, TEXT, {"prompt": prompt, "max_tokens": 16}, fields)


def _case(name, path, base, fields):
    """A case; fields that are None are left out, and those of `only_theirs` sent to llama.cpp."""
    only_theirs = fields.pop("only_theirs", {})
    asked = {**base, "temperature": 0, **fields}
    body = {field: value for field, value in asked.items() if value is not None}
    return Case(name, path, body, only_theirs)


CASES = (
    _chat("chat"),
    _chat("max_tokens 1", max_tokens=1),
    _chat("max_completion_tokens", max_tokens=None, max_completion_tokens=3),
    _chat("max_tokens -1, stop", max_tokens=-1, stop=["."]),
    _chat("stop, a list", stop=["rainbow", "colour"]),
    _chat("stop within a word", stop="ainb"),
    _chat("logprobs", logprobs=True, max_tokens=6),
    _chat("top_logprobs", logprobs=True, top_logprobs=3, max_tokens=6),
    _chat("logit_bias", logit_bias={"504": -100, "378": 5}),
    _chat("repeat_penalty", repeat_penalty=1.3, only_theirs={"repeat_last_n": 4096}),
    _chat("presence_penalty", presence_penalty=0.8, only_theirs={"repeat_last_n": 4096}),
    _chat("frequency_penalty", frequency_penalty=0.8, only_theirs={"repeat_last_n": 4096}),
    _chat("n 2", n=2),
    _chat("json_object", response_format={"type": "json_object"}, max_tokens=48),
    _chat("json_object, schema", response_format={"type": "json_object", "schema": PAIR}),
    _chat(
        "json_schema",
        response_format={"type": "json_schema", "json_schema": {"name": "pair", "schema": PAIR}},
    ),
    _chat("grammar", grammar='root ::= "red" | "green and blue"'),
    _chat("tools, none", tools=[WEATHER], tool_choice="none"),
    _chat("tools, required", tools=[WEATHER], tool_choice="required", max_tokens=64),
    _chat("stream", stream=True),
    _chat("stream, usage", stream=True, stream_options={"include_usage": True}),
    _chat("stream, logprobs", stream=True, logprobs=True, top_logprobs=2, max_tokens=6),
    _chat("stream, stop", stream=True, stop=["rainbow"]),
    _text("text"),
    _text("text, logprobs", logprobs=2, max_tokens=4),
    _text("text, stop", stop=["green"]),
    _text("text, token ids", prompt=[504, 9415, 282, 260, 26438, 359]),
    _text("text, stream", stream=True),
    _text("text, n_predict", max_tokens=None, n_predict=5),
    Case("tokenize", "tokenize", {"content": "Hello, rainbow!"}),
    Case("tokenize, pieces", "tokenize", {"content": "Hello, rainbow!", "with_pieces": True}),
    Case("detokenize", "detokenize", {"tokens": [504, 9415, 282, 260, 26438]}),
    Case("apply-template", "apply-template", {"messages": QUESTION}),
    Case("messages", "v1/messages", {"messages": QUESTION, "max_tokens": 12, "temperature": 0}),
    Case("count_tokens", "v1/messages/count_tokens", {"messages": QUESTION}),
    Case(
        "responses",
        "v1/responses",
        {"input": "Name three colours.", "max_output_tokens": 12, "temperature": 0},
    ),
)

_COMPACT = "theirs writes white space between the parts of JSON, ours none"
_BOTH_COUNT = "theirs takes back the prompt's tokens, too, and ours those of the answer alone"
_NO_TOOLS = "the template has no tools: ours writes them into a system message, theirs drops them"
_ALL = "without top_logprobs theirs tells twenty, and ours none, as OpenAI does"
_LEGACY = "OpenAI's lists of /v1/completions are told here, theirs are those of chats"
KNOWN = {
    **dict.fromkeys(
        [(f"json_{kind}", what) for kind in ("object", "object, schema", "schema")
         for what in ("text", "ended", "usage")],
        _COMPACT,
    ),
    **{("tools, required", what): _NO_TOOLS for what in ("calls", "ended", "text", "usage")},
    ("n 2", "status"): "theirs has n: 1 alone where it has one slot",
    ("grammar", "usage"): "theirs counts the end token, without which ours ends",
    ("logprobs", "logprobs"): _ALL,
    ("text, logprobs", "logprobs"): _LEGACY,
    ("text, stream", "usage"): "ours tells it where include_usage is asked for, as OpenAI does",
    ("responses", "status"): "a cut answer is incomplete here, as OpenAI tells it",
    ("responses", "output"): "a cut answer's message is incomplete here, as OpenAI tells it",
    ("messages", "usage"): "what theirs has cached of the chats before it is not ours' to know",
    ("presence_penalty", "text"): _BOTH_COUNT,
    **{("frequency_penalty", what): _BOTH_COUNT for what in ("text", "ended", "usage")},
}  # fmt: skip
"""Differences that are to be, by case and what differs, and why."""
KNOWN_NAMES = {
    "id": "tokens' numbers, in lists of log probabilities; ours has return_token_ids",
    "top_logprobs": _ALL,
    "content": _LEGACY,
    "usage": "of streams, where it was not asked for",
}
"""Names that ours lacks, by the last or an earlier part of their path, and why."""


class Told(NamedTuple):
    """What a server answered, as far as it can be compared.

    Attributes:
        status: Of HTTP.
        names: Paths of names in the answer, or in all events of a stream.
        facts: What must be the same, by name.
    """

    status: int
    names: frozenset[str]
    facts: dict[str, Any]


def asked(address, case, key, more=MappingProxyType({})):
    """A server's answer to a case; `more` goes into the request."""
    request = urllib.request.Request(
        f"{address}/{case.path}",
        json.dumps({"model": "model", **case.body, **more}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request) as response:
            status, content = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return Told(error.code, frozenset(), {"message": error.read().decode(errors="replace")})
    if not case.body.get("stream"):
        answer = json.loads(content)
        return Told(status, frozenset(_names(answer)), _facts([answer]))
    lines = [line[6:] for line in content.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    names = frozenset(name for event in events for name in _names(event))
    return Told(status, names, {"done": lines[-1] == "[DONE]", **_facts(events)})


def _names(value, path=""):
    """Paths of all names within JSON; of lists, those of their items."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{path}.{name}"
            yield from _names(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _names(item, f"{path}[]")


def _facts(answers):
    """What must be the same of an answer, or of the events of a stream."""
    choices = [choice for answer in answers for choice in answer.get("choices") or ()]
    spoken = [it.get("message") or it.get("delta") or it for it in choices]
    calls = [call["function"] for it in spoken for call in it.get("tool_calls") or ()]
    logprobs = [it["logprobs"] for it in choices if it.get("logprobs")]
    facts = {
        "text": "".join(it.get("content") or it.get("text") or "" for it in spoken),
        "calls": [(it.get("name"), it.get("arguments")) for it in calls],
        "ended": [it["finish_reason"] for it in choices if it.get("finish_reason")],
        "usage": [_counts(it["usage"]) for it in answers if it.get("usage")],
        "logprobs": [token for it in logprobs for token in _logprobs(it)],
    }
    for name in ("tokens", "content", "prompt", "input_tokens", "stop_reason", "status", "output"):
        if name in answers[0]:
            facts[name] = _without_ids(answers[0][name])
    return {name: fact for name, fact in facts.items() if fact not in ("", [])}


def _counts(usage):
    return {name: count for name, count in usage.items() if name.endswith("tokens")}


def _logprobs(told):
    if "content" in told:
        for it in told["content"]:
            yield it["token"], it["logprob"]
            yield from ((other["token"], other["logprob"]) for other in it["top_logprobs"])
    else:
        yield from zip(told["tokens"], told["token_logprobs"], strict=True)


def _without_ids(value):
    """JSON without what each server makes up."""
    if isinstance(value, dict):
        return {name: _without_ids(it) for name, it in value.items() if name != "id"}
    return [_without_ids(it) for it in value] if isinstance(value, list) else value


def differences(ours, theirs):
    """What differs between two answers: `(what, ours, llama.cpp's)`."""
    if ours.status != theirs.status:
        yield "status", (ours.status, ours.facts), (theirs.status, theirs.facts)
        return
    for name in sorted({*ours.facts, *theirs.facts}):
        our, their = ours.facts.get(name), theirs.facts.get(name)
        if not _same(our, their):
            yield name, our, their
    lacking = [it for it in theirs.names - ours.names if KNOWN_NAMES.keys().isdisjoint(_parts(it))]
    if lacking:
        yield "names", [], sorted(lacking)


def _parts(path):
    """The parts of a name's path, without the brackets of lists."""
    return path.replace("[]", "").split(".")


def _same(ours, theirs):
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, (int, float)):
        return abs(ours - theirs) <= _LOGPROB
    return ours == theirs


def main(arguments=None):
    """Ask both, and tell what differs; 1 where a difference is not explained, 2 where one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--llama-cpp", type=Path, default=BUILT, metavar="DIR",
        help="llama-server, default what `make peers` builds",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        failed = _compare(options)
    except ProgramError as error:
        print(f"fields.py: {error}", file=sys.stderr)
        return 2
    print(f"{failed} differences that are not explained")
    return 1 if failed else 0


def _compare(options):
    """How many differences are not explained; all are printed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        command = [
            *llama_build.command(options.llama_cpp, "llama-server", options.model, options.threads),
            *("--ctx-size", "4096", "--parallel", "1", "--jinja", "--flash-attn", "off"),
            *("--cache-type-k", "f32", "--cache-type-v", "f32"),
        ]
        with (
            closing(OurServer(options.model, options.threads, 1, logs, 600)) as ours,
            closing(Server(command, logs / "llama-server.log")) as theirs,
        ):
            for case in CASES:
                our = asked(ours.address, case, ours.begin())
                their = asked(theirs.address, case, "none", case.only_theirs)
                found = list(differences(our, their))
                print(f"{case.name:24} {'same' if not found else ''}", flush=True)
                for what, mine, other in found:
                    reason = KNOWN.get((case.name, what))
                    failed += reason is None
                    print(f"    {what}: {reason or 'DIFFERS'}")
                    if reason is None:
                        print(f"        ours      {mine!r}\n        llama.cpp {other!r}")
    return failed


if __name__ == "__main__":
    run_script(main)

"""What fields of requests ask of a model, in each dialect, as it is recorded.

The requests are the lines of `asked.jsonl` beside those of `test_recorded.py`; `COORDGEN_RECORD=1`
writes their recording anew. The models are fakes, each for what it knows or says. Recorded are the
answer, and what reached the model: messages, prompt and options, without the usual ones.
"""

import json
import os
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from starlette.testclient import TestClient

from coordgen_rs.errors import ChatTemplateError, GrammarError
from coordgen_rs.model.prompts import TemplateFacts
from coordgen_rs.server.app import make_app
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool
from coordgen_rs.text.thinking import CHANNELS, marks_of
from fake_model import FakeModel, MarkedTokenizer
from recorded_http import (
    RECORDED,
    body_text,
    difference,
    normalised,
    read_recording,
    requests_of,
    write_recording,
)

CASES, TAGS = requests_of("asked"), marks_of("</think>")
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
USUAL = {
    **{"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    **{"presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": []},
    **{"ignore_eos": False, "reuse_prefix": True, "prediction": None, "drafts": True},
    **{"trees": False, "namespace": None, "logit_bias": None, "logprobs": None, "on_read": None},
    **{"grammar": None, "special_tokens": ()},
}


COUNTS = ("usage", "timings", "metrics", "coordgen", "system_fingerprint", "object", "created")


class Told(FakeModel):
    """A fake that notes the dialogue behind each prompt.

    Args:
        says: What it says, a few characters a step; None for the usual.
        ends: Why its answers end.
        marks: Special tokens.
        facts: Of its template.
    """

    def __init__(self, says=None, ends="length", marks=(), **facts):
        super().__init__()
        if says is not None:
            parts = [says[at : at + 20] for at in range(0, len(says), 20)]
            self.steps = [(part, ("target",) * len(part)) for part in parts]
        self.dialogues, self.ends, self.tokenizer = [], ends, MarkedTokenizer(*marks)
        known = {"variables": frozenset(), "knows_developer": False, "thinking": None}
        self.template_facts = TemplateFacts(**known | facts)
        self.context = 2000 if says or facts else 200

    def chat_prompt(self, messages, *, tools=None, template_variables=None):
        given = {"messages": messages, "tools": tools, "variables": template_variables}
        self.dialogues.append({name: value for name, value in given.items() if value is not None})
        return super().chat_prompt(messages, tools=tools, template_variables=template_variables)


class Untemplated(Told):
    """One whose template is absent or malformed."""

    @property
    def template_facts(self):
        raise ChatTemplateError("/home/somebody/model has no chat template, or a malformed one")

    @template_facts.setter
    def template_facts(self, facts):
        pass


def thinking(*variables, marks=TAGS, **facts):
    said = "<think>\nso it is\n</think>\n\nYes."
    return Told(said, "stop", variables=frozenset(variables), thinking=marks, **facts)


def fakes():
    """Models by name, for what they know or say."""
    infill = {
        "qwen": (
            "<|fim_prefix|>",
            "<|fim_suffix|>",
            "<|fim_middle|>",
            "<|fim_pad|>",
            "<|endoftext|>",
        ),
        "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        "codellama": ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
        "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001
        "codestral": ("[PREFIX]", "[SUFFIX]"),
    }
    found = {name: Told(marks=marks) for name, marks in infill.items()}
    found |= {"fake": Told(), "kept": Told(), "odd": Told(), "without a template": Untemplated()}
    kept = [SimpleNamespace(type=name, num_tensors=num) for name, num in (("F32", 3), ("Q4_K", 9))]
    facts = found["kept"].manifest.model
    found["kept"].manifest = SimpleNamespace(model=facts, weights="kept", kept=kept)
    found["reads odd messages"] = Told()
    found[
        "reads odd messages"
    ].tools_template = "{{ m.contnet }}{% if m.role == 'usr' or m['prefix'] %}"
    found["odd"].unfollowed = {"odd": GrammarError("no")}
    found["with a malformed template"] = Untemplated()
    found["without a template"].has_chat_template = False
    found |= {
        "thinks": thinking("enable_thinking"),
        "thinks always": thinking(),
        "thinks if told": thinking("thinking"),
        "has efforts": thinking("reasoning_effort", "thinking"),
        "has all": thinking("enable_thinking", "thinking", "reasoning_effort"),
        "has channels": thinking("reasoning_effort", marks=CHANNELS),
        "knows developers": Told(knows_developer=True),
        "calls": Told(f"So: {CALLS} end", "stop"),
        "is cut in a call": Told(CALLS[: CALLS.index("{}")]),
        "is cut in arguments": Told(CALLS.replace("{}", '{"y')[: CALLS.index("{}") + 3]),
        "is cut in a mark": Told(CALLS[: CALLS.rindex("<tool_") + 6]),
    }
    return found


@contextmanager
def serving(models):
    pool = ModelPool(
        [ModelEntry(name, Path(name)) for name in models], lambda it: models[it.name], 8
    )
    pool.start()
    app = make_app(pool, Access())
    try:
        with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
            yield client
    finally:
        pool.close()
        pool.join()


def plain(value):
    """What is no JSON, as text; a long grammar as its hash."""
    text = repr(value)
    return (
        text if len(text) < 400 else f"{type(value).__name__} {sha256(text.encode()).hexdigest()}"
    )


def line(*given):
    """A line of what reached a model; seeds that were drawn are not told."""
    written = json.dumps(given, ensure_ascii=False, default=plain, separators=(",", ":"))
    return f"{normalised(written)}\n"


def told(client, models, case):
    """The answer to a request, without its counts, and what reached the model."""
    content = case.written().partition(b"\r\n\r\n")[2]
    response = client.request(case.method, case.path, content=content, headers=case.headers)
    body = response.content
    if response.headers["content-type"] == "application/json":
        shown = {name: value for name, value in response.json().items() if name not in COUNTS}
        body = json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()
    text = f"{response.status_code}\n{body_text(body)}"
    for model in models.values():
        text += "".join(line(given) for given in model.dialogues)
        for prompt, options in model.asked:
            text += line(prompt, {n: v for n, v in options.items() if v != USUAL.get(n, ...)})
        model.dialogues, model.asked = [], []
    return text


@pytest.fixture(scope="module")
def found():
    models = fakes()
    with serving(models) as client:
        return {case.name: told(client, models, case) for case in CASES}


def test_what_is_asked_of_a_model_and_answered_is_what_was_recorded(found):
    path = RECORDED / "asked.txt"
    if os.environ.get("COORDGEN_RECORD"):
        write_recording(path, found)
    recorded = read_recording(path)
    assert [*recorded] == [case.name for case in CASES]
    for name, text in found.items():
        assert difference(recorded[name], text) is None, (name, difference(recorded[name], text))

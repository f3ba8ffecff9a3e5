"""Thinking: told apart from the answer, streamed or not, asked for, counted, and not held."""

import json
from itertools import pairwise

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import example, given
from hypothesis import strategies as st

from coordgen_rs import JsonSchema
from coordgen_rs.generation.step import TokenLogprob
from coordgen_rs.grammar.kinds import AfterThinking
from coordgen_rs.model.prompts import TemplateFacts
from coordgen_rs.server.dialects.reader import ContentTokens, ThinkingReader
from coordgen_rs.server.tools.calls import CallReader, Content, Thought
from coordgen_rs.text.thinking import CHANNELS, Thinking, marks_of
from fake_model import FakeModel, FakeSpelling
from fake_served import refused, serving

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
TAGS, GEMMA = marks_of("</think>"), marks_of("<|channel>thought")
MESSAGE = "<|start|>assistant<|channel|>"


def read(thinking, pieces):
    """Thinking and content of an answer that comes in pieces."""
    reader = ThinkingReader(thinking, CallReader())
    found = [one for piece in pieces for one in reader.read(piece)] + reader.end()
    assert all(one.text for one in found)
    return (
        "".join(one.text for one in found if isinstance(one, Thought)),
        "".join(one.text for one in found if isinstance(one, Content)),
    )


@pytest.mark.parametrize(
    ("thinking", "said", "told"),
    [
        (Thinking(TAGS), "<think>\nso <b>\n</think>\n\nYes.", ("so <b>", "Yes.")),
        (Thinking(TAGS), "\n<think>so</think>Yes.\n", ("so", "Yes.\n")),
        (Thinking(TAGS, is_open=True), "so\n\nand so\n</think>\n\nYes.", ("so\n\nand so", "Yes.")),
        (Thinking(TAGS, is_open=True), " cut off </thi", ("cut off </thi", "")),
        (Thinking(TAGS), "<think>\n\n</think>\n\nYes.", ("", "Yes.")),
        (Thinking(TAGS), "The tag <think> opens.</think>", ("", "The tag <think> opens.</think>")),
        (Thinking(TAGS), " <thin", ("", " <thin")),
        (None, "<think>so</think>Yes.", ("", "<think>so</think>Yes.")),
        (
            Thinking(GEMMA),
            "<|channel>thought\nso<channel|>Yes.<|channel>thought\nand<channel|> No.",
            ("soand", "Yes.No."),
        ),
        (
            Thinking(CHANNELS),
            f"<|channel|>analysis<|message|>so<|end|>{MESSAGE}final<|message|>Yes.<|return|>",
            ("so", "Yes."),
        ),
        (Thinking(CHANNELS), "<|channel|>final<|message|>Yes.", ("", "Yes.")),
        (Thinking(CHANNELS), '{"no": "header"}', ("", '{"no": "header"}')),
        (Thinking(CHANNELS), f"<|channel|>analysis<|message|>so<|end|>{MESSAGE}fi", ("so", "")),
        (Thinking(CHANNELS), f"Hi.{MESSAGE}analysis<|message|>so", ("so", "Hi.")),
        (
            Thinking(CHANNELS),
            f"Hi.\n{MESSAGE}{'final' * 80}",
            ("", f"Hi.\n{MESSAGE}{'final' * 80}"),
        ),
        (Thinking(CHANNELS), "<|start|> begins a turn.", ("", "<|start|> begins a turn.")),
        (
            Thinking(CHANNELS),
            f"<|channel|>analysis<|message|>a <|start|> b{MESSAGE}final<|message|><|start|> so.",
            ("a <|start|> b", "<|start|> so."),
        ),
        (Thinking(CHANNELS), "<|channel|>final<|message|>Hi<|start|>", ("", "Hi")),
    ],
)
def test_thinking_and_answer_are_told_apart(thinking, said, told):
    assert read(thinking, [said]) == told
    assert read(thinking, said) == told


PARTS = ["<think>", "</think>", "\n", " ", "a", "<", "think>", "</", "so ", "<|channel>thought\n"]
PARTS += ["<channel|>", "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"]
PARTS += [
    "<|start|>",
    "x" * 390,
    "<|channel|>final<|message|>",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
]
PARTS += [" to=functions.f<|message|>", "<|channel|>commentary to=functions.f json<|message|>"]


@given(
    thinking=st.sampled_from(
        [Thinking(marks, is_open) for marks in (TAGS, GEMMA) for is_open in (False, True)]
        + [Thinking(CHANNELS)]
    ),
    said=st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_however_an_answer_is_cut_the_same_is_told(thinking, said, cuts):
    places = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    pieces = [said[i:j] for i, j in pairwise(places)]
    assert read(thinking, pieces) == read(thinking, [said])


@given(
    thinking=st.sampled_from(
        [Thinking(marks, is_open) for marks in (TAGS, GEMMA) for is_open in (False, True)]
        + [Thinking(CHANNELS)]
    ),
    said=st.lists(st.sampled_from([*PARTS, "é", "日\n"]), max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
@example(thinking=Thinking(CHANNELS), said="<|end|><<<think>", cuts=[])
def test_the_tokens_of_the_content_are_its_text(thinking, said, cuts):
    content = ContentTokens(ThinkingReader(thinking, CallReader()), FakeSpelling(), ())
    records = [TokenLogprob(ord(one), -1.0, ()) for one in said]
    places = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    told = [one for i, j in pairwise(places) for one in content.read(records[i:j])]
    told += content.end(is_cut=False)
    assert "".join(chr(one.token_id) for one in told) == read(thinking, [said])[1]


class ThinkingModel(FakeModel):
    """Thinks between tags, a few characters a step; its template reads `enable_thinking`."""

    ends = "stop"

    def __init__(self, said="<think>\nso it is\n</think>\n\nYes.", **facts):
        steps = [(said[i : i + 3], ("target",) * len(said[i : i + 3])) for i in range(0, 99, 3)]
        super().__init__(steps=[step for step in steps if step[0]])
        known = {"variables": frozenset({"enable_thinking"}), "knows_developer": False}
        self.template_facts = TemplateFacts(**known | {"thinking": TAGS} | facts)

    def chat_prompt(self, messages, *, tools=None, template_variables=None):
        self.variables, self.roles = template_variables, [one["role"] for one in messages]
        return super().chat_prompt(messages)


@pytest.mark.parametrize(
    ("facts", "fields", "variables"),
    [
        ({}, {"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({}, {"reasoning_effort": "high"}, {"enable_thinking": True}),
        ({}, {}, None),
        ({"variables": frozenset()}, {"reasoning_effort": "high"}, {}),
        (
            {"variables": frozenset({"reasoning_effort", "thinking"})},
            {"reasoning_effort": "low"},
            {"reasoning_effort": "low", "thinking": True},
        ),
        (
            {"variables": frozenset({"reasoning_effort"}), "thinking": CHANNELS},
            {"reasoning_effort": "none"},
            {"reasoning_effort": "low"},
        ),
        (
            {},
            {"reasoning_effort": "none", "chat_template_kwargs": {"x": 1}},
            {"enable_thinking": False, "x": 1},
        ),
    ],
)
def test_an_effort_is_what_the_template_knows_of_it(facts, fields, variables):
    model = ThinkingModel(**facts)
    with serving(model) as client:
        assert client.post(CHAT, json=HELLO | fields).status_code == 200
        assert model.variables == variables
        effort = fields.get("reasoning_effort")
        if effort and "chat_template_kwargs" not in fields:
            body = {"input": "hello", "reasoning": {"effort": effort, "summary": "auto"}}
            assert client.post(RESPONSES, json=body).status_code == 200
            assert model.variables == variables


ALL = {"variables": frozenset({"enable_thinking", "thinking", "reasoning_effort"})}
THINKING = {"variables": frozenset({"thinking"})}
NEEDED = {"/v1/messages": {"max_tokens": 9, "stream": True}, "/api/chat": {"stream": False}}


@pytest.mark.parametrize(
    ("path", "body", "facts", "variables"),
    [
        ("/v1/messages", {}, {}, {"enable_thinking": False}),
        ("/v1/messages", {}, THINKING, {"thinking": False}),
        ("/v1/messages", {"thinking": {"type": "adaptive"}}, THINKING, {"thinking": True}),
        ("/v1/messages", {"thinking": {"type": "adaptive"}}, {"variables": frozenset()}, {}),
        (
            "/v1/messages",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            ALL,
            {"reasoning_effort": "max", "enable_thinking": True, "thinking": True},
        ),
        (
            "/v1/messages",
            {"output_config": {"effort": "low"}},
            ALL,
            {"reasoning_effort": "low", "enable_thinking": False, "thinking": False},
        ),
        ("/api/chat", {}, ALL, None),
        ("/api/chat", {"think": False}, THINKING, {"thinking": False}),
        ("/api/chat", {"think": True}, ALL, {"enable_thinking": True, "thinking": True}),
        (
            "/api/chat",
            {"think": "high"},
            ALL,
            {"reasoning_effort": "high", "enable_thinking": True, "thinking": True},
        ),
    ],
)
def test_thinking_is_asked_for_in_each_dialect(path, body, facts, variables):
    model = ThinkingModel(**facts)
    with serving(model) as client:
        response = client.post(path, json=HELLO | NEEDED[path] | body)
    assert response.status_code == 200, response.text
    assert model.variables == variables


def test_an_effort_and_a_variable_that_contradict_each_other_are_refused():
    with serving(ThinkingModel()) as client:
        for variables in ({"enable_thinking": True}, {"reasoning_effort": "high"}):
            body = HELLO | {"reasoning_effort": "none", "chat_template_kwargs": variables}
            error = refused(client.post(CHAT, json=body))
            assert error["param"] == "reasoning_effort"
            assert "chat_template_kwargs" in error["message"]


@pytest.mark.parametrize("knows", [False, True])
def test_developers_are_the_system_where_the_template_has_none(knows):
    model = ThinkingModel(knows_developer=knows)
    messages = [
        {"role": "developer", "content": "Be short."},
        *HELLO["messages"],
        {"role": "system", "content": "Be kind."},
    ]
    with serving(model) as client:
        for path, body in ((CHAT, {"messages": messages}), (RESPONSES, {"input": messages})):
            assert client.post(path, json=body).status_code == 200
            assert model.roles == ["developer" if knows else "system", "user", "system"]


def test_a_grammar_holds_what_comes_behind_thinking():
    model, schema = ThinkingModel(), {"type": "object"}
    body = HELLO | {"response_format": {"type": "json_object"}}
    with serving(model) as client:
        client.post(CHAT, json=body)
        assert model.asked[-1][1]["grammar"] == AfterThinking(JsonSchema(schema), Thinking(TAGS))
        assert model.asked[-1][1]["special_tokens"] == ("<think>", "</think>")
        client.post(CHAT, json=body | {"reasoning_format": "none"})
        assert model.asked[-1][1]["grammar"] == JsonSchema(schema)
        assert model.asked[-1][1]["special_tokens"] == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"coordgen": {"spans": True}},
        {"return_token_ids": True},
        {"include": ["message.output_text.logprobs"]},
    ],
)
def test_a_streamed_response_begins_with_its_thinking_whatever_is_told_of_tokens(fields):
    body = {"input": "hello", "stream": True} | fields
    with serving(ThinkingModel()) as client:
        streamed = client.post(RESPONSES, json=body).text
    events = [json.loads(one.split("data: ")[1]) for one in streamed.split("\n\n") if one]
    added = [e["item"]["type"] for e in events if e["type"] == "response.output_item.added"]
    assert added == ["reasoning", "message"]


def test_thinking_of_earlier_turns_is_the_templates_to_use():
    class ReadingModel(ThinkingModel):
        def chat_prompt(self, messages, *, tools=None, template_variables=None):
            self.thoughts = [message.get("reasoning_content") for message in messages]
            return super().chat_prompt(messages)

    model = ReadingModel()
    said = {"role": "assistant", "content": "Yes."}
    thought = {"type": "reasoning", "summary": [], "id": "rs_1"}
    thought["content"] = [{"type": "reasoning_text", "text": "so it is"}]
    with serving(model) as client:
        body = {"messages": [*HELLO["messages"], said | {"reasoning_content": "so it is"}]}
        assert client.post(CHAT, json=body).status_code == 200
        assert model.thoughts == [None, "so it is"]
        body = {"input": [*HELLO["messages"], thought, said, *HELLO["messages"]]}
        assert client.post(RESPONSES, json=body).status_code == 200
        assert model.thoughts == [None, "so it is", None]
        body = {"input": [*HELLO["messages"], thought, *HELLO["messages"], said]}
        assert client.post(RESPONSES, json=body).status_code == 200
        assert model.thoughts == [None, None, None]
        call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "5"}
        hidden = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
        body = {"input": [*HELLO["messages"], call, thought, output, said]}
        assert client.post(RESPONSES, json=body).status_code == 200
        assert model.thoughts == [None, None, None, None]
        body = {"input": [*HELLO["messages"], thought, said, hidden, call, output]}
        assert client.post(RESPONSES, json=body).status_code == 200
        assert model.thoughts == [None, "so it is", None]
        for wrong in (thought | {"content": 5}, thought | {"x": 1}, thought):
            assert "input" in refused(client.post(RESPONSES, json={"input": [wrong]}))["param"]

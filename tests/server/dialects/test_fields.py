"""Fields of other servers' clients: limits, penalties, formats, echo, and filling in the middle."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs import Gbnf, JsonSchema, Lark, Regex
from fake_model import MarkedTokenizer
from fake_served import refused, serving

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF, LARK = 'root ::= "a"', 'start: "a"'


@pytest.mark.parametrize(
    ("path", "fields", "limit"),
    [
        (CHAT, {"max_tokens": -1}, 200),
        (CHAT, {"max_completion_tokens": -1}, 200),
        (CHAT, {"n_predict": 7}, 7),
        (CHAT, {"n_predict": 7, "max_tokens": 7}, 7),
        (COMPLETIONS, {}, 16),
        (COMPLETIONS, {"max_tokens": -1}, 200),
        (COMPLETIONS, {"n_predict": -1}, 200),
        (RESPONSES, {"max_output_tokens": -1}, 200),
    ],
)
def test_a_limit_of_minus_one_is_as_many_tokens_as_fit(client, model, path, fields, limit):
    body = {CHAT: HELLO, COMPLETIONS: {"prompt": "x"}, RESPONSES: {"input": "x"}}[path]
    answered = client.post(path, json=body | fields)
    assert answered.status_code == 200, answered.text
    assert model.asked[-1][1]["max_new_tokens"] == limit


SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"]


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": -1, "seed": -1, "typical_p": 1, "dry_multiplier": 0, "xtc_probability": 0.0},
        {"dry_base": 1.75, "dry_allowed_length": 2, "xtc_threshold": 0.1, "mirostat": 0},
        {"samplers": [*SAMPLERS, "temperature"], "timings_per_token": True},
        {"samplers": ["top_k", "top_p", "min_p", "temperature"], "dynatemp_range": 0},
        {"repeat_last_n": 5},
        {"repeat_last_n": 64, "repeat_penalty": 1.1},
        {"repeat_last_n": -1, "repeat_penalty": 1.1},
        {"min_tokens": 0, "continue_final_message": False, "skip_special_tokens": True},
        {"functions": [], "function_call": "none", "verbosity": "medium", "stop_token_ids": []},
        {"typ_p": 1, "backend_sampling": False, "min_keep": 0, "n_probs": 0, "id_slot": -1},
        {"priority": 0},
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_neutral_values_of_other_engines_change_nothing(client, model, path, fields):
    body = {CHAT: HELLO, COMPLETIONS: {"prompt": "x"}, RESPONSES: {"input": "x"}}[path]
    told = []
    for more in ({"repeat_penalty": fields.get("repeat_penalty", 1)}, fields):
        answered = client.post(path, json=body | more)
        assert answered.status_code == 200, answered.text
        told.append(model.asked[-1][1] | {"seed": None})
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "fields",
    [
        *({"typical_p": 0.9}, {"typ_p": 0.9}, {"priority": 1}, {"min_tokens": 1}),
        *({"repeat_last_n": 32, "repeat_penalty": 1.1}, {"functions": [{"name": "f"}]}),
        *({"samplers": ["temperature", *SAMPLERS]}, {"samplers": SAMPLERS}, {"samplers": "kpm"}),
    ],
)
def test_what_would_change_the_answer_but_cannot_be_had_is_named(client, fields):
    error, param = refused(client.post(CHAT, json=HELLO | fields)), next(iter(fields))
    assert (error["param"], param in error["message"]) == (param, True)


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"grammar": GBNF}, Gbnf(GBNF)),
        ({"grammar": LARK}, Lark(LARK)),
        ({"grammar": ""}, None),
        ({"json_schema": SCHEMA}, JsonSchema(SCHEMA)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
        ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
        ({"guided_regex": "a+"}, Regex("a+")),
        ({"guided_choice": ["a.b", "c-d"]}, Regex(r"a\.b|c\-d")),
        ({"guided_grammar": GBNF}, Gbnf(GBNF)),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, JsonSchema({"type": "object"})),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Regex("a")),
        ({"structured_outputs": {"grammar": LARK}}, Lark(LARK)),
    ],
)
def test_a_format_is_held_to_by_the_name_that_each_server_has(client, model, fields, grammar):
    answered = client.post(CHAT, json=HELLO | fields)
    assert answered.status_code == 200, answered.text
    assert model.asked[-1][1]["grammar"] == grammar


@pytest.mark.parametrize(
    ("marks", "prompt"),
    [
        (
            ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|endoftext|>"],
            "<|fim_prefix|>a(<|fim_suffix|>)b<|fim_middle|>",
        ),
        (
            ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
            "<fim_prefix>a(<fim_suffix>)b<fim_middle>",
        ),
        (["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"], "▁<PRE>a(▁<SUF>)b▁<MID>"),
        (
            ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],  # noqa: RUF001
            "<｜fim▁begin｜>a(<｜fim▁hole｜>)b<｜fim▁end｜>",  # noqa: RUF001
        ),
        (["[PREFIX]", "[SUFFIX]"], "[SUFFIX])b[PREFIX]a("),
    ],
)
@pytest.mark.parametrize("before", ["a(", [97, 40]])
def test_the_middle_is_filled_in_by_the_marks_of_the_models_family(model, marks, prompt, before):
    model.tokenizer = MarkedTokenizer(*marks)
    with serving(model) as client:
        body = {"prompt": before, "suffix": ")b", "stop": "x"}
        answered = client.post(COMPLETIONS, json=body)
    assert answered.status_code == 200, answered.text
    asked, options = model.asked[-1]
    assert asked == prompt
    assert sorted(options["special_tokens"]) == sorted(marks)
    assert options["stop"][0] == "x"
    assert sorted(options["stop"][1:]) == sorted(marks)


def test_a_suffix_that_does_not_fit_or_cannot_be_is_refused(model):
    with serving(model) as client:
        error = refused(client.post(COMPLETIONS, json={"prompt": "a", "suffix": "b"}))
        assert (error["param"], "fim_prefix" in error["message"]) == ("suffix", True)
    model.tokenizer = MarkedTokenizer("[PREFIX]", "[SUFFIX]")
    with serving(model) as client:
        for before, behind in (("a", "b" * 201), ("a" * 120, "b" * 120)):
            error = refused(client.post(COMPLETIONS, json={"prompt": before, "suffix": behind}))
            assert (error["param"], error["code"]) == ("suffix", "context_length_exceeded")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "usr", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": "x", "contnet": "y"}, "messages[1].contnet"),
        ({"role": "assistant", "content": "x", "prefix": True}, "messages[1].prefix"),
    ],
)
def test_roles_and_fields_of_messages_that_nobody_reads_are_named(client, model, message, param):
    def told():
        body = {"messages": [{"role": "user", "content": "hello"}, message]}
        return client.post("/v1/chat/completions", json=body)

    assert refused(told())["param"] == param
    model.tools_template = "{{ m.contnet }}{% if m.role == 'usr' or m['prefix'] %}"
    assert told().status_code == 200

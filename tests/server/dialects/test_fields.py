"""Fields of other servers' clients: limits, penalties, formats, echo, and filling in the middle."""

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from fake_served import refused

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
GBNF, LARK = 'root ::= "a"', 'start: "a"'


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

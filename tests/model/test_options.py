"""The tables of options: each stands once, and what is given is checked by it."""

from pathlib import Path

import pytest

from checkpoints import ROOT
from coordgen_rs import Model, generate, make_drafter, open_session, plain
from coordgen_rs.cli.main import main
from coordgen_rs.errors import OptionError
from coordgen_rs.loading.options import OPEN_OPTIONS, open_options
from coordgen_rs.model.options import REQUEST, ChatOptions, RequestOptions, request_options

PAGES = {
    "openai": "docs/server.md",
    "responses": "docs/server.md",
    "ollama": "docs/dialects.md",
    "anthropic": "docs/dialects.md",
}


def test_a_record_has_every_option_with_its_default():
    assert request_options("generate", RequestOptions, {}).keys() == REQUEST.keys()
    assert open_options("open", {}).keys() == OPEN_OPTIONS.keys()
    options = open_options("open", {"threads": 3, "context": 8})
    assert (options["threads"], options["width"], options["context"]) == (3, None, 8)
    for name, value in (
        request_options("generate", RequestOptions, {}) | open_options("open", {})
    ).items():
        assert value == {**OPEN_OPTIONS, **REQUEST}[name].default


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_p": 0}, "top_p is 0, but must be above 0 and at most 1"),
        ({"top_p": 5}, "top_p is 5, but must be above 0 and at most 1"),
        ({"min_p": -1}, "min_p is -1, but must be at least 0"),
        ({"presence_penalty": 3}, "presence_penalty is 3, but must be at most 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, but must be at least 0.01"),
        ({"logprobs": 21}, "logprobs is 21, but must be at most 20"),
        ({"namespace": ""}, "namespace is empty"),
        ({"prediction": 3}, "prediction must be a string, but is 3"),
        ({"logit_bias": {1: "x"}}, "logit_bias of token 1 must be a number, but is 'x'"),
        ({"special_tokens": "x"}, "special_tokens must be a list of names, but is 'x'"),
        ({"max_token": 3}, "chat has no option max_token: did you mean max_new_tokens?"),
    ],
    ids=str,
)
def test_a_wrong_value_is_told_with_the_range(given, message):
    with pytest.raises(OptionError) as refused:
        request_options("chat", ChatOptions, given)
    assert str(refused.value) == message


@pytest.mark.parametrize("function", [Model.open, open_session])
def test_an_option_of_opening_that_is_not_there_names_what_was_meant(function):
    name = "Model.open" if function == Model.open else "open_session"
    with pytest.raises(OptionError, match=rf"{name} has no option thread: did you mean threads\?"):
        function("no such bundle", thread=3)
    with pytest.raises(OptionError, match="open_session has no option history"):
        open_session("no such bundle", history="x")


@pytest.mark.parametrize("name", ["threads", "width", "context"])
@pytest.mark.parametrize("value", ["4", 2.5, True, 0, -1])
def test_numbers_of_opening_are_checked_where_the_record_is_made(name, value):
    with pytest.raises(OptionError, match=name):
        open_options("open", {name: value})


def test_an_unknown_method_is_named_by_its_argument(session_of, bundle_of):
    with pytest.raises(OptionError, match=r"^draft is 'foo', but must be one of auto, .*plain"):
        Model.open(bundle_of("embedded", "fp32"), draft="foo")
    with pytest.raises(OptionError, match=r"^draft is 'foo', but must be one of auto, "):
        make_drafter(session_of("embedded", "fp32"), draft="foo")


@pytest.mark.parametrize("wrong", [5, None, "session"])
def test_what_is_no_session_is_named(wrong):
    calls = (lambda: next(generate(wrong, [1])), lambda: next(plain(wrong, [1])))
    for call in (*calls, lambda: make_drafter(wrong)):
        with pytest.raises(OptionError, match="session must be a session, but is"):
            call()


def test_the_command_line_checks_as_the_api_does(capsys):
    wrong = ["generate", "--model", "no such bundle", "--prompt", "x", "--temperature", "1"]
    assert main([*wrong, "--top-p", "0"]) != 0
    assert "--top-p is 0, but must be above 0 and at most 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, option in REQUEST.items() if option.names])
def test_the_pages_name_what_dialects_call_an_option(name):
    for dialect, names in REQUEST[name].names.items():
        page = Path(ROOT, PAGES[dialect]).read_text("utf-8")
        for called in names:
            assert f"`{called}`" in page, (dialect, called)

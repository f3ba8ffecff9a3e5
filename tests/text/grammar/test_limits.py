"""What would cost minutes, gigabytes or the stack to compile is refused, and holds nobody up."""

import contextvars
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import JsonSchema, Lark, Regex
from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.text.grammar import limits
from coordgen_rs.text.grammar.limits import MOST_LEVELS, with_deep_stack

pytest.importorskip("llguidance", reason="grammars need llguidance")

PATTERNS = {"allOf": [{"type": "string", "pattern": f"a{{{number}}}"} for number in range(1, 24)]}


def chain(length):
    """Schemas of which each holds together with the next."""
    formats = [{"type": "string", "format": it} for it in ("email", "hostname", "uri", "ipv6")]
    names = {f"a{n}": {"anyOf": formats, "$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$defs": names | {f"a{length}": {"anyOf": formats}}, "$ref": "#/$defs/a0"}


ESCAPED = json.dumps(PATTERNS).replace("O", "\\u004f").replace("tern", "ter\\u006e")
COSTLY = {
    "references beside alternatives": JsonSchema(chain(6)),
    "what is hidden by escapes": Lark(f"start: %json {ESCAPED}"),
    "patterns that have to match together": JsonSchema(PATTERNS),
    "many properties": JsonSchema({"properties": {f"name{n}": {} for n in range(15_000)}}),
    "lengths that have a multiple in common": Lark(
        "start: A\nA: " + " & ".join(f"/([a-z]{{{num}}})*/" for num in (7, 11, 13, 17, 19, 23))
    ),
}


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    found, start = [], subprocess.Popen

    def popen(*args, **kwargs):
        found.append(start(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


@pytest.mark.parametrize("name", COSTLY)
def test_a_grammar_that_costs_too_much_is_refused_by_name(vocabulary, started, name, monkeypatch):
    monkeypatch.setattr(limits, "MOST_S", 1)
    with pytest.raises(UnsupportedGrammarError, match="costs too much to compile"):
        vocabulary.matcher(COSTLY[name])
    assert [process.poll() is None for process in started] == [False]


@pytest.mark.parametrize(
    "grammar",
    [
        Regex("[a-z]{2,60000}"),
        JsonSchema({"enum": [f"word{number}" for number in range(20_000)]}),
        JsonSchema({"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}$"}),
        Lark("\n".join(["start: a0", *(f"a{n}: a{n + 1}" for n in range(5000)), 'a5000: "x"'])),
    ],
)
def test_what_looks_costly_and_is_not_is_followed(vocabulary, started, grammar):
    vocabulary.matcher(grammar)
    assert [process.poll() for process in started] == [0]


def test_what_cost_too_much_is_refused_at_once_when_it_comes_again(
    vocabulary, started, monkeypatch
):
    monkeypatch.setattr(limits, "MOST_S", 1)
    for _ in range(2):
        with pytest.raises(UnsupportedGrammarError, match="costs too much to compile"):
            vocabulary.matcher(JsonSchema(PATTERNS | {"title": "twice"}))
    assert len(started) == 1


def test_usual_grammars_start_no_process(vocabulary, started):
    properties = {"name": {"type": "string", "maxLength": 80}, "age": {"type": "integer"}}
    for grammar in (JsonSchema({"properties": properties}), Regex("yes|no"), Lark('start: "a"+')):
        vocabulary.matcher(grammar)
    assert started == []


def test_other_grammars_are_compiled_while_one_is_being_compiled(vocabulary, monkeypatch):
    is_compiling, may_end = threading.Event(), threading.Event()

    def is_wanted():
        is_compiling.set()
        may_end.wait(60)
        return False

    def ask():
        limits.is_wanted.set(is_wanted)
        with pytest.raises(limits.GivenUpError):
            vocabulary.matcher(JsonSchema(PATTERNS | {"title": "slow"}))

    asking = threading.Thread(target=contextvars.copy_context().run, args=[ask])
    asking.start()
    try:
        assert is_compiling.wait(60)
        vocabulary.matcher(Regex("meanwhile"))
        assert asking.is_alive()
    finally:
        may_end.set()
        asking.join()


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_the_process_ends_with_who_asks(vocabulary, started, error):
    def is_wanted():
        assert started[-1].poll() is None
        if error is not None:
            raise error
        return False

    token = limits.is_wanted.set(is_wanted)
    try:
        for _ in range(2):  # the first has left no lock
            with pytest.raises(error or limits.GivenUpError):
                vocabulary.matcher(JsonSchema(PATTERNS | {"title": "left"}))
    finally:
        limits.is_wanted.reset(token)
    assert [process.poll() is None for process in started] == [False, False]


def test_where_no_process_can_be_started_grammars_are_followed(vocabulary, monkeypatch):
    monkeypatch.setattr("sys.executable", "")
    assert vocabulary.matcher(Regex("[a-z]{2,60001}"))
    monkeypatch.setattr("sys.executable", "/no/python")
    assert vocabulary.matcher(Regex("[a-z]{2,60002}"))


ROWS = """
import sys
from coordgen_rs import JsonSchema, Lark, Tokenizer, Vocabulary
from coordgen_rs.errors import UnsupportedGrammarError

tokenizer = Tokenizer(sys.argv[1])
vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, [1])


def schema(num, base):
    row = {
        f"d{n}": {"properties": {"a": {"$ref": f"{base}#/$defs/d{n + 1}"}}, "required": ["a"]}
        for n in range(num)
    }
    return JsonSchema({"$ref": "#/$defs/d0", "$defs": row | {f"d{num}": {"type": "integer"}}})


def rules(num):
    row = [f"a{n}: a{n + 1}" for n in range(num)]
    return Lark("\\n".join(["start: a0", *row, f'a{num}: "x"']))


for grammar in (schema(2000, ""), schema(2000, "json-schema:///"), rules(5000)):
    vocabulary.matcher(grammar)
for grammar in (schema(20_100, ""), schema(20_100, "json-schema:///"), rules(20_100)):
    try:
        vocabulary.matcher(grammar)
    except UnsupportedGrammarError as error:
        assert "parts" in str(error), error
    else:
        raise AssertionError("not refused")
"""


def test_rows_of_references_and_rules_do_not_end_the_process():
    tokenizer = str(CHECKPOINTS["embedded"] / "tokenizer.json")
    done = subprocess.run(
        [sys.executable, "-c", ROWS, tokenizer], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_only_what_may_go_deep_has_a_thread_of_its_own():
    before = threading.stack_size()
    assert with_deep_stack(3, threading.current_thread, "it") is threading.current_thread()
    assert with_deep_stack(MOST_LEVELS, threading.current_thread, "it").name == "coordgen-grammar"
    assert threading.stack_size() == before
    with pytest.raises(UnsupportedGrammarError, match="it cannot be followed: it has more than"):
        with_deep_stack(MOST_LEVELS + 1, threading.current_thread, "it")
    for num_levels in (0, MOST_LEVELS):
        with pytest.raises(ZeroDivisionError):  # what compiling raises
            with_deep_stack(num_levels, lambda: 1 / 0, "it")


def test_an_interrupt_leaves_no_thread_that_compiles():
    interrupted, finished = threading.Event(), []

    def compile():
        os.kill(os.getpid(), signal.SIGALRM)
        assert interrupted.wait(30)
        finished.append(True)

    def interrupt(*_):
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            with_deep_stack(MOST_LEVELS, compile, "it")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert finished
    assert "coordgen-grammar" not in [thread.name for thread in threading.enumerate()]

"""A grammar whose parts refer to each other in a long row is followed or refused."""

import os
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from checkpoints import CHECKPOINTS
from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.grammar.limits import MOST_LEVELS, with_deep_stack

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
for grammar in (schema(30_000, ""), schema(30_000, "json-schema:///"), rules(30_000)):
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


def test_what_compiling_raises_is_raised():
    def fail():
        raise ValueError("no")

    for num_levels in (0, MOST_LEVELS):
        with pytest.raises(ValueError, match="no"):
            with_deep_stack(num_levels, fail, "it")


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

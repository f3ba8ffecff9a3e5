"""What is drawn at random is the same in every run: a test fails by a change, not by a draw."""

import importlib
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def drawn():
    """What a property is tested on."""
    examples = []

    @given(st.tuples(st.integers(), st.text(), st.floats()))
    def note(example):
        examples.append(repr(example))

    note()
    return examples


def test_a_property_is_tested_on_the_same_examples_each_time():
    assert drawn() == drawn()


def test_examples_do_not_depend_on_what_other_tests_have_imported(tmp_path, monkeypatch):
    """Hypothesis draws numbers and texts from the modules that are loaded, if it is let."""
    before = drawn()
    numbers = ", ".join(str(7_654_321 * number) for number in range(400))
    (tmp_path / "full_of_constants.py").write_text(f"NUMBERS = [{numbers}]\nTEXT = 'a rare one'\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_constants")
    try:
        assert drawn() == before
    finally:
        del sys.modules["full_of_constants"]


def test_no_property_fails_on_a_slow_machine():
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check

"""`coordgen generate` with a grammar, as a user types it."""

import json

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from command_line import coordgen, refused


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


def test_json_follows_the_schema_of_a_file_with_the_same_tokens_as_without_drafts(bundle, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('\ufeff{"enum": ["größer", {"a": [1, 2, 3]}, null]}', "utf-8")
    arguments = ("generate", "--model", bundle, "--prompt", "Text:", "--json-schema", schema)
    report = json.loads(coordgen(*arguments, "--json", "--compare").stdout)
    assert json.loads(report["text"]) in ("größer", {"a": [1, 2, 3]}, None)
    assert report["identical"]
    assert report["finish_reason"] == "grammar"


def test_json_that_is_cut_off_is_told_and_no_success(bundle, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "long enough for two tokens"}')
    asked = ("generate", "--model", bundle, "--prompt", "Text:", "--json-schema", schema)
    cut = coordgen(*asked, "--max-new-tokens", 2)
    assert cut.returncode == 1, cut
    assert cut.stderr.startswith("coordgen: the answer was cut off: --max-new-tokens is reached\n")
    cut = coordgen(*asked, "--max-new-tokens", 2, "--json")
    assert (cut.returncode, json.loads(cut.stdout)["finish_reason"]) == (1, "length")
    whole = coordgen(*asked)
    assert whole.returncode == 0, whole
    assert "cut off" not in whole.stderr


def test_a_text_that_is_cut_off_is_told(bundle):
    cut = coordgen("generate", "--model", bundle, "--prompt", "Text:", "--max-new-tokens", 2)
    assert "the answer was cut off: --max-new-tokens is reached" in cut.stderr


def test_a_pattern_and_a_lark_grammar_are_followed(bundle, tmp_path):
    lark = tmp_path / "moves.lark"
    lark.write_text('start: "go " ("north" | "south")\n')
    for option, answers in (
        (("--regex", "yes|no"), ("yes\n", "no\n")),
        (("--lark", lark), ("go north\n", "go south\n")),
    ):
        done = coordgen("generate", "--model", bundle, "--prompt", "Go?", *option)
        assert done.stdout in answers, done


def test_what_cannot_be_followed_is_one_line(bundle, tmp_path):
    schema = tmp_path / "schema.json"
    asked = ("generate", "--model", bundle, "--prompt", "Text:", "--json-schema", schema)
    assert "No such file" in refused(*asked)
    for content, said in (
        ('{"type": "object", "unevaluatedProperties": {"not": {}}}', "unevaluatedProperties"),
        ('{"a": ', f"{schema}: the JSON schema is not valid JSON"),
    ):
        schema.write_text(content)
        assert said in refused(*asked)
    assert "not allowed with" in refused(*asked, "--regex", "a")

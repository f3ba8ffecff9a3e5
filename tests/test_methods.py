"""`coordgen bench --methods` and `coordgen warm-up`: every method measured, and a table on disk."""

import json

import numpy as np
import pytest

from coordgen_rs import DraftModel, LookupTable, Tokenizer, open_session
from coordgen_rs.bench import methods
from coordgen_rs.bundle import Bundle
from coordgen_rs.cli import main
from coordgen_rs.errors import LookupTableError, OptionError
from coordgen_rs.warm_up import open_table, save_table, table_path, warm_up
from prompts import PROMPTS


@pytest.mark.parametrize("costs", ["free", "measured"])
def test_json_has_every_method_and_says_the_same_as_plain(bundle_of, data, capsys, costs):
    arguments = ["bench", str(bundle_of("embedded", "fp32")), str(data), "--methods", "all"]
    arguments += ["--draft-model", str(bundle_of("embedded-draft", "fp32")), "--costs", costs]
    assert main([*arguments, "--max-new-tokens", "24", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["identical"]
    assert list(report["methods"]) == ["plain", *methods.METHODS]
    for name, figures in report["methods"].items():
        assert set(figures["per_task"]) == {"rag", "ui"}
        assert figures["tokens_per_step"] >= 1
        assert 0 <= figures["host_share"] < 1
        assert (figures["extra_bytes"] > 0) == (name != "plain")
    plain = report["methods"]["plain"]
    assert plain["speedup"] == 1
    assert plain["tokens_per_step"] == 1


def test_the_table_names_methods_and_tasks(bundle_of, data, capsys):
    arguments = ["bench", str(bundle_of("embedded", "fp32")), str(data), "--methods", "sam,diaa"]
    assert main([*arguments, "--history", "none", "--max-new-tokens", "9"]) == 0
    shown = capsys.readouterr().out
    for word in ("plain", "sam", "diaa", "rag", "ui", "identical"):
        assert word in shown


def test_other_tokens_than_plain_are_told(session_of, monkeypatch):
    monkeypatch.setattr(methods, "generate", lambda *_, **__: iter([]))
    result = methods.compare(session_of("embedded", "fp32"), PROMPTS[:1], ["sam"], max_new_tokens=8)
    assert not result.identical


def test_unknown_methods_and_a_missing_model_are_refused(session_of):
    session = session_of("embedded", "fp32")
    with pytest.raises(OptionError, match="magic"):
        methods.compare(session, PROMPTS, ["plain", "magic"])
    with pytest.raises(OptionError, match="draft model"):
        methods.compare(session, PROMPTS, ["edgellm"])


def test_a_warm_table_is_kept_beside_the_bundle(bundle_of, tmp_path, capsys):
    bundle = bundle_of("embedded", "fp32")
    texts = [tmp_path / f"{index}.txt" for index in range(2)]
    for text, prompt in zip(texts, PROMPTS, strict=True):
        text.write_text(prompt.prompt)
    out = tmp_path / "table"
    assert main(["warm-up", str(bundle), *map(str, texts), "--out", str(out)]) == 0
    assert out.exists()
    opened = Bundle.open(bundle)
    assert table_path(opened) == bundle.with_name(bundle.name + ".lookup-table")
    table = open_table(out, opened)
    read = {token for prompt in PROMPTS for token in Tokenizer.of(opened).encode(prompt.prompt)}
    assert table.num_rows == len(read)
    arguments = ["generate", "--model", str(bundle), "--prompt", PROMPTS[0].prompt, "--json"]
    assert main([*arguments, "--draft", "diaa", "--lookup-table", str(out), "--compare"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"]
    Bundle.open(bundle).verify()


def test_an_unusable_table_is_named(bundle_of, tmp_path):
    embedded = Bundle.open(bundle_of("embedded", "fp32"))
    path = tmp_path / "table"
    with pytest.raises(LookupTableError, match="table"):
        open_table(path, embedded)
    save_table(LookupTable(), path, embedded)
    with pytest.raises(LookupTableError, match="another tokenizer"):
        open_table(path, Bundle.open(bundle_of("stories260K", "fp32")))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LookupTableError, match="damaged"):
        open_table(path, embedded)
    with pytest.raises(LookupTableError, match="absent"):
        save_table(LookupTable(), tmp_path / "absent" / "table", embedded)


def test_texts_longer_than_the_cache_are_read_in_parts(session_of):
    session = session_of("embedded", "fp32")
    text = np.resize(np.arange(100, dtype=np.uint32), session.capacity + 50)
    table = warm_up(session, [text, text[:0]])
    assert table.num_rows == 100
    assert session.length == 0


def test_a_draft_models_memory_counts(session_of, bundle_of):
    model = DraftModel(open_session(bundle_of("embedded-draft", "fp32")))
    session = session_of("embedded", "fp32")
    names = ["diaa", "edgellm"]
    result = methods.compare(session, PROMPTS[:1], names, draft_model=model, max_new_tokens=8)
    assert result.extra_bytes["edgellm"] > 1_000_000 > result.extra_bytes["diaa"] > 0

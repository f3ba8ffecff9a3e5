"""`coordgen warm-up`: a table of what the target holds likely, on disk beside the bundle."""

import json

import numpy as np
import pytest

from coordgen_rs import LookupTable, Tokenizer
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli.main import main
from coordgen_rs.errors import LookupTableError
from coordgen_rs.generation.drafting.warm_up import open_table, save_table, table_path, warm_up
from prompts import PROMPTS


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

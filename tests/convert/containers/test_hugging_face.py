"""The begin token: prompts of a bundle begin as they do in transformers."""

import json

import pytest

from checkpoints import character_tokenizer, write_checkpoint
from coordgen_rs.convert.containers.hugging_face import read_tokenizer, read_tokenizer_json
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import CheckpointError
from coordgen_rs.text.tokenizer import Tokenizer


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint")


def ids(checkpoint, tmp_path, **options):
    (tmp_path / "read.json").write_text(open_checkpoint(checkpoint).read_tokenizer(), "utf-8")
    return Tokenizer(tmp_path / "read.json").encode("ab", **options).tolist()


def configure(checkpoint, **fields):
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>", "lstrip": False}], ids=str)
def test_add_bos_token_puts_it_where_the_file_has_no_post_processor(checkpoint, tmp_path, token):
    plain = ids(checkpoint, tmp_path)
    configure(checkpoint, add_bos_token=True, bos_token=token)
    assert ids(checkpoint, tmp_path) == [1, *plain]
    assert ids(checkpoint, tmp_path, special_tokens=False) == plain


@pytest.mark.parametrize("fields", [{}, {"add_bos_token": False}, {"bos_token": "<s>"}], ids=str)
def test_a_bos_token_id_alone_puts_none(checkpoint, tmp_path, fields):
    assert json.loads((checkpoint / "config.json").read_text())["bos_token_id"] == 1
    configure(checkpoint, **fields)
    assert 1 not in ids(checkpoint, tmp_path)
    assert read_tokenizer(checkpoint) == (checkpoint / "tokenizer.json").read_text()


def test_a_post_processor_of_the_file_is_kept(checkpoint, tmp_path):
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
    }
    tokenizer = character_tokenizer(128) | {"post_processor": template}
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    configure(checkpoint, add_bos_token=True, bos_token="<s>")
    assert ids(checkpoint, tmp_path)[0] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"add_bos_token": true}', "bos_token is None"),
        ('{"add_bos_token": true, "bos_token": "<other>"}', "lacks the begin token '<other>'"),
        ("[" * 200_000, "cannot be read"),
    ],
    ids=range(3),
)
def test_a_begin_token_that_is_not_known_is_refused(checkpoint, text, message):
    (checkpoint / "tokenizer_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(checkpoint)


def test_a_file_that_is_no_tokenizer_is_named_once(tmp_path):
    missing, prose = tmp_path / "none.json", tmp_path / "prose.json"
    prose.write_text("hello")
    with pytest.raises(CheckpointError, match=r"^\S+none\.json cannot be read: No such file[^/]*$"):
        read_tokenizer_json(missing)
    with pytest.raises(CheckpointError, match=r"prose\.json is not a readable tokenizer"):
        read_tokenizer_json(prose)

"""What GGUF files say of tokens: tokenizers, ends of answers, chat templates."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import write_checkpoint
from coordgen_rs.convert.containers.gguf.file import GgufHeader
from coordgen_rs.convert.containers.gguf.tokenizer import tokenizer_json
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import ChatTemplateError, CheckpointError
from gguf_files import write_gguf


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    return write_checkpoint(folder / "model", hidden=64, ffn=96, heads=4, kv_heads=2, head_dim=32)


def test_a_tokenizer_of_another_model_is_refused(tmp_path, checkpoint):
    file, given = write_gguf(tmp_path / "model.gguf", checkpoint), tmp_path / "tokenizer.json"
    own = json.loads((checkpoint / "tokenizer.json").read_text())
    given.write_text(json.dumps(own))
    assert json.loads(open_checkpoint(file, given).read_tokenizer()) == own
    ids = own["model"]["vocab"]
    own["model"]["vocab"] = {token: (number + 1) % len(ids) for token, number in ids.items()}
    given.write_text(json.dumps(own))
    with pytest.raises(CheckpointError, match=r"another model's: \d+ of \d+ tokens differ"):
        open_checkpoint(file, given).read_tokenizer()
    own["model"]["vocab"] = ids | {"<new>": 999_999}
    given.write_text(json.dumps(own))
    with pytest.raises(CheckpointError, match=r"another model's: it has the token id 999999"):
        open_checkpoint(file, given).read_tokenizer()


PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "▁", "a", "b", "ab", "▁ab", "\n", "\n\n"]
MERGES = ["a b", "▁ ab", "\n \n"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer_of(**changed: Any) -> Tokenizer:
    metadata = {
        "model": "gemma4",
        "tokens": [*PIECES, *BYTES],
        "token_type": [3, 3, 3, 2, 3, *[1] * 7, *[6] * 256],
        "merges": MERGES,
        "bos_token_id": 2,
        "eos_token_id": 1,
        **changed,
    }
    header = GgufHeader(
        Path("x.gguf"), {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, {}
    )
    return Tokenizer.from_str(tokenizer_json(header))


def test_its_tokenizer_merges_pieces_and_falls_back_to_bytes():
    tokenizer = tokenizer_of()
    for text, pieces in {
        "ab ab": ["ab", "▁ab"],
        "a  ab\n\n\n": ["a", "▁", "▁ab", "\n\n", "\n"],
        "é<turn|>b": ["<0xC3>", "<0xA9>", "<turn|>", "b"],
    }.items():
        encoded = tokenizer.encode(text)
        assert encoded.tokens == ["<bos>", *pieces]
        assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == f"<bos>{text}"
    assert json.loads(tokenizer.to_str())["model"]["byte_fallback"]


def test_a_tokenizer_without_merges_is_refused():
    for merges, message in ((None, "merges is missing"), (["ab"], "'ab' is no merge of two")):
        with pytest.raises(CheckpointError, match=message):
            tokenizer_of(merges=merges)


MESSAGES = [{"role": "user", "content": "Is a lion an animal?"}]


def test_a_template_s_name_is_the_template_or_none(tmp_path, checkpoint):
    named = {"tokenizer.chat_template": "chatml"}
    file = write_gguf(tmp_path / "a.gguf", checkpoint, metadata=named)
    assert open_checkpoint(file).read_chat().template().render(MESSAGES) == (
        "<|im_start|>user\nIs a lion an animal?<|im_end|>\n<|im_start|>assistant\n"
    )
    named = {"tokenizer.chat_template": "vicuna"}
    file = write_gguf(tmp_path / "b.gguf", checkpoint, metadata=named)
    with pytest.raises(ChatTemplateError, match="holds 'vicuna', which is no template"):
        open_checkpoint(file).read_chat().template().render(MESSAGES)


def with_token(checkpoint: Path, path: Path, kinds: dict[str, int], **others: object) -> Path:
    """A file with these tokens from 7 on, and their types; `others` are of its tokenizer."""
    tokens = [f"<0x{number:02X}>" for number in range(128)]
    tokens[7 : 7 + len(kinds)] = kinds
    types = [6] * 128
    types[7 : 7 + len(kinds)] = kinds.values()
    metadata = {"tokens": tokens, "token_type": types, **others}
    given = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    return write_gguf(path / "model.gguf", checkpoint, metadata=given)


@pytest.mark.parametrize(
    "kinds",
    [
        *({"<|im_end|>": kind} for kind in (1, 3, 4)),
        *({"<end_of_utterance>": kind} for kind in (1, 3, 4)),
        *({name: 3} for name in ("</s>", "<eos>", "<EOT>", "<|end_of_text|>", "<turn|>")),
    ],
    ids=str,
)
def test_a_token_ends_an_answer_by_its_name(tmp_path, checkpoint, kinds):
    opened = open_checkpoint(with_token(checkpoint, tmp_path, kinds))
    assert opened.config.end_token_ids == [2, 7]
    tokenizer = Tokenizer.from_str(opened.read_tokenizer())
    assert tokenizer.encode(*kinds, add_special_tokens=False).ids == [7]
    assert tokenizer.decode([7]) == ""


@pytest.mark.parametrize(
    ("kinds", "ends"),
    [
        *(({name: kind}, [2]) for name, kind in (("</s>", 4), ("<eos>", 1), ("<|im_end|>", 5))),
        *(({name: 3}, [2]) for name in ("<|return|>", "<s>")),
        ({"<|return|>": 3, "<|call|>": 3, "<|end|>": 3}, [2, 7, 8]),
        ({"<|tool_response>": 3, "</s>": 3, "<turn|>": 3}, [2, 7, 9]),
    ],
    ids=str,
)
def test_texts_like_ends_and_ends_that_mean_less_beside_others_end_none(
    tmp_path, checkpoint, kinds, ends
):
    file = with_token(checkpoint, tmp_path, kinds)
    assert open_checkpoint(file).config.end_token_ids == ends


def test_a_file_may_tell_of_several_ends(tmp_path, checkpoint):
    file = with_token(checkpoint, tmp_path, {}, eos_token_ids=[2, 5, 9])
    assert open_checkpoint(file).config.end_token_ids == [2, 5, 9]
    file = with_token(checkpoint, tmp_path, {}, eos_token_ids=[2, 1 << 20])
    with pytest.raises(CheckpointError, match="1048576 is not in the vocabulary"):
        open_checkpoint(file)

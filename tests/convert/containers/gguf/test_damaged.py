"""Damaged and hostile GGUF files end in a named error, at once."""

import struct
from random import Random

import numpy as np
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from gguf.constants import GGML_QUANT_SIZES

from checkpoints import write_checkpoint
from coordgen_rs._core import weight_types
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.gguf.file import read_header
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import CheckpointError, CoordgenError
from damages import damaged
from dequantized import HALVES
from gguf_files import write_gguf

STRING, ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6
HUGE = 1 << 60


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    checkpoint = write_checkpoint(folder / "model", hidden=32, ffn=32, layers=1, vocab=100)
    return write_gguf(folder / "model.gguf", checkpoint, {"ffn": "Q4_0", "attn": "Q8_0"})


def text(content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(raw)) + raw


def packed(form: str, *numbers: int) -> bytes:
    return struct.pack(f"<{form}", *numbers)


def key(body: bytes, name: str = "a") -> bytes:
    """A file with one key of the metadata, behind whose name `body` stands."""
    return header(0, 1, text(name) + body)


def header(tensors: int, keys: int, body: bytes = b"") -> bytes:
    return b"GGUF" + packed("IQQ", 3, tensors, keys) + body


def tensor(
    name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, dims: int = 0
) -> bytes:
    sizes = packed(f"I{len(shape)}Q", dims or len(shape), *shape)
    return text(name) + sizes + packed("IQ", kind, offset)


DATA = bytes(4096)


def one(info: bytes) -> bytes:
    """A file with one tensor."""
    return header(1, 0, info + DATA)


HOSTILE = [
    (b"GGML" + header(0, 0)[4:], "is not a GGUF file: it begins with b'GGML'"),
    (b"GGUF" + packed("IQQ", 1, 0, 0), "GGUF version 1, expected 2 or 3"),
    (b"GGUF" + struct.pack(">I", 3) + packed("QQ", 0, 0), "big-endian GGUF"),
    (header(HUGE, 0), f"holds {HUGE} tensors"),
    (header(0, HUGE), f"holds {HUGE} metadata keys"),
    (header(0, 5, b"12345"), "holds 5 metadata keys"),
    (header(0, 1, packed("Q", HUGE) + DATA), "a metadata key has .* bytes"),
    (header(0, 1, text(b"\xff\xfe") + DATA), "a metadata key is not UTF-8"),
    (key(packed("I", 77) + DATA), "unknown type 77"),
    (key(packed("IQ", STRING, HUGE)), f"a has {HUGE} bytes"),
    (key(packed("IQ", STRING, 1 << 20)), "is truncated: it ends inside a"),
    (key(packed("IIQ", ARRAY, FLOAT32, HUGE)), f"holds {HUGE} numbers of a"),
    (key(packed("IIQ", ARRAY, STRING, 1 << 40)), "holds 1099511627776 texts of a"),
    (key(packed("IIQ", ARRAY, ARRAY, 1) + DATA), "unknown type 9"),
    (header(0, 2, 2 * (text("a") + packed("II", UINT32, 7))), "the key 'a' occurs twice"),
    (key(packed("II", UINT32, 0) + DATA, "general.alignment"), "general.alignment is 0"),
    (one(text("a") + packed("IIQ", 0, 0, 0)), "'a' has 0 dimensions"),
    (one(tensor(dims=1 << 31)), "2147483648 dim"),
    (one(tensor(shape=(0,))), r"the shape \(0,\) of F32"),
    (one(tensor(shape=(1 << 40, 1 << 40))), "'a' has the shape"),
    (one(tensor(shape=(33,), kind=2)), r"\(33,\) of Q4_0"),
    (one(tensor(kind=9999)), "type 9999, which is not known"),
    (one(tensor(offset=HUGE)), "it ends before a does"),
    (one(tensor(offset=7)), "out of line"),
    (header(2, 0, tensor("a") + tensor("b", offset=64) + DATA), "'b' overlaps another tensor"),
    (header(2, 0, tensor("a") + tensor("a", offset=128) + DATA), "'a' overlaps another tensor, or"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_headers_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        read_header(path)
    assert str(path) in str(raised.value)


def test_every_truncation_is_named(tmp_path, original):
    content = original.read_bytes()
    path = tmp_path / "model.gguf"
    for length in [*range(60), *np.linspace(60, len(content) - 1, 60).astype(int).tolist()]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            read_header(path)


def test_a_missing_file_a_pipe_and_a_directory_are_named(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    for name in ("folder.gguf", "absent.gguf"):
        with pytest.raises(CheckpointError, match=name):
            open_checkpoint(tmp_path / name)


@pytest.mark.parametrize("tensor", ["blk.0.ffn_up.weight", "blk.0.attn_q.weight", "output_norm"])
def test_values_that_are_no_numbers_are_refused(tmp_path, original, tensor):
    header = read_header(original)
    place = next(it.offset for name, it in header.tensors.items() if name.startswith(tensor))
    content = bytearray(original.read_bytes())
    # A scale of float16 where the type is a quantised one.
    content[place : place + 4] = np.array([np.nan], "<f4").tobytes()
    if not tensor.startswith("output"):
        content[place : place + 2] = np.array([np.nan], "<f2").tobytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    for weights in ("keep", "fp32", "int4"):
        with pytest.raises(CheckpointError, match=f"{tensor}.* holds NaN or infinite"):
            export_checkpoint(path, tmp_path / "bundle", weights=weights)
    assert not (tmp_path / "bundle").exists()


def places():
    """Types that products read, and where float16 or other numbers stand in their blocks."""
    for name in sorted(weight_types().keys() - {"F16", "BF16", "F32", "MXFP4"}):
        for place in HALVES.get(name, {0: 1.0}):
            for value in (np.nan, np.inf, -np.inf):
                yield name, place, np.array([value], "<f2").tobytes()
    yield "F16", 0, np.array([np.nan], "<f2").tobytes()
    yield "BF16", 0, bytes([0x80, 0x7F])
    yield "MXFP4", 0, bytes([253, 0x77])  # 12 times the power of 125


@pytest.mark.parametrize(("name", "place", "content"), [*places()])
def test_scales_and_minima_that_are_no_numbers_are_refused(tmp_path, name, place, content):
    checkpoint = write_checkpoint(tmp_path / "model", hidden=32, ffn=256, layers=1, vocab=100)
    path = write_gguf(tmp_path / "model.gguf", checkpoint, {"ffn_down": name})
    stored = read_header(path).tensors["blk.0.ffn_down.weight"]
    file = bytearray(path.read_bytes())
    place += stored.offset + stored.num_bytes - GGML_QUANT_SIZES[stored.type][1]  # the last block
    file[place : place + len(content)] = content
    path.write_bytes(file)
    for weights in ("keep", "fp32"):
        with pytest.raises(CheckpointError, match=r"ffn_down.* holds NaN or infinite values"):
            export_checkpoint(path, tmp_path / "bundle", weights=weights)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_damaged_files_end_in_an_error_of_ours_or_do_no_harm(tmp_path, original, first):
    content, refused = original.read_bytes(), 0
    for number in range(first, first + 50):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(damaged(content, Random(number)))
        try:
            export_checkpoint(path, tmp_path / f"{number}")
        except CoordgenError:
            refused += 1
            assert not (tmp_path / f"{number}").exists()
    assert refused > 5

"""A GGUF file in parts exports as the whole file does, and what is wrong with a part is named."""

import shutil
import struct
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import write_checkpoint
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.gguf.file import read_header
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import CheckpointError
from coordgen_rs.errors.file_names import PartName
from gguf_files import write_gguf

SMALL = {"hidden": 32, "ffn": 32, "head_dim": 32, "layers": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model whole, in parts, and in as many others; and other models in parts."""
    folder = tmp_path_factory.mktemp("parts")
    for seed, name in enumerate(("model", "other")):
        write_checkpoint(folder / name, seed=seed, **SMALL)
        write_gguf(folder / f"{name}.gguf", folder / name, "Q4_0")
    write_gguf(folder / "parts.gguf", folder / "model", "Q4_0", tensors_per_part=8)
    write_gguf(folder / "few.gguf", folder / "model", "Q4_0", tensors_per_part=12)
    write_checkpoint(folder / "deep", **SMALL | {"layers": 3})
    write_gguf(folder / "deep.gguf", folder / "deep", "Q4_0", tensors_per_part=10)
    first_is_metadata = {"tensors_per_part": 10, "no_tensors_in_first": True}
    write_gguf(folder / "empty.gguf", folder / "model", "Q4_0", **first_is_metadata)
    return folder


def part(folder, name, number, count=3):
    return folder / f"{name}-{number:05}-of-{count:05}.gguf"


@pytest.fixture
def first(models, tmp_path):
    """The first of three parts, to be spoiled."""
    for number in (1, 2, 3):
        shutil.copy(part(models, "parts", number), tmp_path)
    return part(tmp_path, "parts", 1)


@pytest.mark.parametrize("name", ["parts", "empty"])
def test_parts_export_as_the_whole_file_does(models, tmp_path, name):
    headers = [read_header(part(models, name, number)) for number in (1, 2, 3)]
    assert (len(headers[0].tensors) == 0) == (name == "empty")
    assert [len(header.metadata) for header in headers[1:]] == [3, 3]
    for file in ("model", "other"):
        export_checkpoint(models / f"{file}.gguf", tmp_path / file)
    export_checkpoint(part(models, name, 1), tmp_path / "bundle")
    names = ("bundle", "model", "other")
    made, whole, other = (Bundle.open(tmp_path / it).manifest.files for it in names)
    assert made == whole
    assert made != other


def test_another_part_than_the_first_names_the_first(models):
    with pytest.raises(CheckpointError, match="is part 2 of 3: give the first part") as raised:
        open_checkpoint(part(models, "parts", 2))
    assert str(part(models, "parts", 1)) in str(raised.value)


@pytest.mark.parametrize("number", [2, 3])
def test_a_missing_part_is_named(first, number):
    missing = part(first.parent, "parts", number)
    missing.unlink()
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(first)
    assert str(raised.value) == f"{missing} is missing: {first} is the first of 3 parts"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("parts", 3, 3), r"is not part 2 of .*: split\.no is 2, expected 1"),
        (("few", 2, 2), r"is not part 2 of .*: split\.count is 2, expected 3"),
        (("deep", 2, 3), r"split\.tensors\.count is 29, expected 20"),
        (("model", None, None), r"split\.no is None, expected 1"),
        (("empty", 3, 3), r"is not part 2 of .*: split\.no is 2"),
    ],
)
def test_a_part_of_another_file_is_named(models, first, other, message):
    name, number, count = other
    wrong = models / "model.gguf" if number is None else part(models, name, number, count)
    shutil.copy(wrong, part(first.parent, "parts", 2))
    with pytest.raises(CheckpointError, match=rf"parts-00002-of-00003\.gguf .*{message}"):
        open_checkpoint(first)


def test_a_tensor_that_two_parts_hold_is_named_with_both(models, first):
    held = set(read_header(first).tensors) & set(read_header(part(models, "empty", 2)).tensors)
    assert held
    shutil.copy(part(models, "empty", 2), part(first.parent, "parts", 2))
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(first)
    said = str(raised.value)
    assert said.startswith(f"{part(first.parent, 'parts', 2)} holds the tensor ")
    assert said.endswith(f", and so does {first}")


def test_parts_that_hold_too_few_tensors_are_refused(models, tmp_path):
    for number, name in ((1, "empty"), (2, "empty"), (3, "parts")):
        shutil.copy(part(models, name, number), part(tmp_path, "x", number))
    with pytest.raises(CheckpointError, match=r"its 3 parts hold 14 .*tensors\.count is 20"):
        open_checkpoint(part(tmp_path, "x", 1))


def test_a_truncated_part_is_named(first):
    cut = part(first.parent, "parts", 3)
    content = cut.read_bytes()
    for length in (0, 3, 30, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"parts-00003-of-00003\.gguf .* ?truncated"):
            open_checkpoint(first)


def test_a_part_whose_name_does_not_tell_the_others_says_what_to_call_it(first):
    for name in ("model.gguf", "model-00001-of-00002.gguf", "model-00002-of-00003.gguf"):
        with pytest.raises(CheckpointError, match=r"call it NAME-00001-of-00003\.gguf"):
            open_checkpoint(Path(shutil.copy(first, first.with_name(name))))
    second = shutil.copy(part(first.parent, "parts", 2), first.with_name("model.gguf"))
    with pytest.raises(CheckpointError, match="is not the first of its 3 parts"):
        open_checkpoint(Path(second))


def test_a_whole_file_may_be_called_as_a_part_is(models, tmp_path):
    named = shutil.copy(models / "model.gguf", tmp_path / "model-00002-of-00003.gguf")
    assert open_checkpoint(Path(named)).config.num_layers == 2


@pytest.mark.parametrize("count", ["three", -3, 2.0])
def test_a_count_that_is_none_is_refused(models, tmp_path, count):
    written = 3 if count == -3 else count  # the writer takes no negative ones
    file = write_gguf(tmp_path / "x.gguf", models / "model", metadata={"split.count": written})
    if count == -3:
        unsigned, signed = struct.pack("<II", 4, 3), struct.pack("<Ii", 5, -3)
        content, key = file.read_bytes(), b"split.count"
        file.write_bytes(content.replace(key + unsigned, key + signed))
    with pytest.raises(CheckpointError, match=rf"split\.count is {count!r}, expected a number"):
        open_checkpoint(file)


def test_names_of_parts_are_those_of_gguf_split():
    name = PartName.of("a-b-00002-of-00003-00002-of-00012.gguf")
    assert (name.stem, name.number, name.count) == ("a-b-00002-of-00003", 2, 12)
    assert str(name.part(12)) == "a-b-00002-of-00003-00012-of-00012.gguf"
    assert [it.number for it in PartName("x", 1, 3).others()] == [2, 3]
    for other in ("a-1-of-2.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a.gguf"):
        assert PartName.of(other) is None

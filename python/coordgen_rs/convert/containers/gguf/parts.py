"""A GGUF file in parts, as llama.cpp's gguf-split and converter write them.

In: the path of the file, or of the first of its parts. Out: one `GgufHeader`, with the metadata of
the first part and the tensors of all. The first part holds all metadata; the others hold which part
they are, and tensors.
"""

from pathlib import Path
from typing import Any

from coordgen_rs.bundle.file_names import PartName
from coordgen_rs.convert.containers.gguf.header import GgufHeader, GgufTensor, read_header
from coordgen_rs.errors import CheckpointError

_NUMBER, _COUNT, _NUM_TENSORS = "split.no", "split.count", "split.tensors.count"


def read_parts(path: Path) -> GgufHeader:
    """Reads the header of a GGUF file and, where it is the first of several parts, of the others.

    Raises:
        CheckpointError: A part is missing, damaged or another model's; or the path is not that of
            the first part. The message names the part's file.
    """
    header = read_header(path)
    count = header.metadata.get(_COUNT, 0)
    if count in (0, 1):
        return header
    if type(count) is not int or count < 0:
        raise CheckpointError(f"{path}: {_COUNT} is {count!r:.60}, expected a number of parts")
    name = _name_of_first(header, count)
    headers = [header]
    for other in name.others():
        headers.append(_read_part(path, path.with_name(str(other)), other.number, header.metadata))
    return GgufHeader(path, header.metadata, _tensors_of(headers))


def _name_of_first(header: GgufHeader, count: int) -> PartName:
    """The name of the first part, which tells those of the others.

    Raises:
        CheckpointError: The file is another part, or its name does not tell.
    """
    path, name, number = header.path, PartName.of(header.path.name), header.metadata.get(_NUMBER)
    is_named = name is not None and name.count == count
    if number != 0 and name is not None and is_named and type(number) is int and number < count:
        first = path.with_name(str(name.part(1)))
        raise CheckpointError(
            f"{path} is part {number + 1} of {count}: give the first part, {first}"
        )
    if number != 0:
        raise CheckpointError(f"{path} is not the first of its {count} parts: give that")
    if name is None or not is_named or name.number != 1:
        raise CheckpointError(
            f"{path} is the first of {count} parts, which are found by their names: call it "
            f"NAME-00001-of-{count:05}.gguf, as llama-gguf-split does"
        )
    return name


def _read_part(first: Path, path: Path, number: int, expected: dict[str, Any]) -> GgufHeader:
    """The header of a part behind the first.

    Args:
        first: The path of the first part.
        path: The part's own path.
        number: Which part it must be, from 2 on.
        expected: The metadata of the first part.

    Raises:
        CheckpointError: It is missing, damaged or another one.
    """
    if not path.exists():
        count = expected[_COUNT]
        raise CheckpointError(f"{path} is missing: {first} is the first of {count} parts")
    header = read_header(path)
    should_be = {_NUMBER: number - 1, _COUNT: expected[_COUNT]}
    should_be[_NUM_TENSORS] = expected.get(_NUM_TENSORS)
    for key, value in should_be.items():
        found = header.metadata.get(key)
        if found != value:
            raise CheckpointError(
                f"{path} is not part {number} of {first}: {key} is {found!r:.60}, expected "
                f"{value!r:.60}"
            )
    return header


def _tensors_of(headers: list[GgufHeader]) -> dict[str, GgufTensor]:
    """The tensors of all parts.

    Raises:
        CheckpointError: Two parts hold the same one, or there are not as many as they say.
    """
    tensors: dict[str, GgufTensor] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"{header.path} holds the tensor {name}, and so does {tensors[name].path}"
                )
            tensors[name] = tensor
    first = headers[0]
    expected = first.metadata.get(_NUM_TENSORS)
    if len(tensors) != expected:
        raise CheckpointError(
            f"{first.path}: its {len(headers)} parts hold {len(tensors)} tensors, but "
            f"{_NUM_TENSORS} is {expected!r:.60}"
        )
    return tensors

"""The values of a GGUF file's metadata, checked where they are read.

In: the header. Out: a text, or a number of the file's architecture; how many layers it has.
"""

from typing import Any

from coordgen_rs.convert.containers.gguf.header import GgufHeader
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_MOST_LAYERS = 1 << 12


class GgufMetadata:
    """The metadata of one file, by the names that its architecture gives them.

    `read` holds the names of the values that were asked for, whether or not they are there.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.header, self.read = header, set[str]()
        self.architecture = self.text("general.architecture")

    def text(self, key: str, default: str | None = None) -> str:
        """A text.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        value = self.header.metadata.get(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.header.path}: {key} is {value!r:.60}, expected a text")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the architecture, such as `block_count`."""
        self.read.add(name)
        return self.header.metadata.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: float | None = None) -> Any:
        """An integer or float of the architecture.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        return self.of(name, self.get(name, default))

    def same(self, name: str, default: float | None = None) -> Any:
        """A number that a file may tell for each layer, where it is the same in all of them.

        Raises:
            CheckpointError: It is missing, or something else, or not told for each layer.
            UnsupportedModelError: Layers differ.
        """
        value = self.get(name, default)
        if not isinstance(value, list):
            return self.of(name, value)
        if len(value) != num_blocks(self):
            raise CheckpointError(
                f"{self.header.path}: {self.architecture}.{name} has {len(value)} entries, "
                f"expected one for each of {num_blocks(self)} layers"
            )
        if len(set(map(repr, value))) > 1:
            raise UnsupportedModelError(
                f"{self.header.path}: {self.architecture}.{name} is {value!r:.60}: layers that "
                "differ in it are not supported"
            )
        return self.of(name, value[0])

    def of(self, name: str, value: Any) -> Any:
        """The value of `name` if it is an integer or a float.

        Raises:
            CheckpointError: It is something else.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(
                f"{self.header.path}: {self.architecture}.{name} is {value!r:.60}, "
                "expected a number"
            )
        return value


def num_layers(metadata: GgufMetadata) -> int:
    """The number of layers, without those that predict further tokens.

    Raises:
        CheckpointError: It is missing, or more than any model has.
    """
    return num_blocks(metadata) - _num_predicting(metadata)


def num_blocks(metadata: GgufMetadata) -> int:
    """The number of all layers in the file.

    Raises:
        CheckpointError: Same as in `num_layers`.
    """
    blocks = metadata.number("block_count")
    if not isinstance(blocks, int) or not 1 <= blocks <= _MOST_LAYERS:
        raise CheckpointError(f"{metadata.header.path}: block_count is {blocks}")
    return blocks


def _num_predicting(metadata: GgufMetadata) -> int:
    """The number of layers at the end that predict further tokens.

    Raises:
        CheckpointError: It is no number, or not less than that of all layers.
    """
    if metadata.architecture not in ("qwen35", "qwen35moe"):
        return 0
    predicting, blocks = metadata.number("nextn_predict_layers", 0), num_blocks(metadata)
    if not isinstance(predicting, int) or not 0 <= predicting < blocks:
        raise CheckpointError(
            f"{metadata.header.path}: nextn_predict_layers is {predicting}, expected 0 to "
            f"{blocks - 1}"
        )
    return predicting

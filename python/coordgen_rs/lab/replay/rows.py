"""What a target held likely, on a record: behind each token, and behind drafts that it rejected.

In: what verifications saw, or a field of a line of JSON. Out: `RecordedRows`, where the rows of
another drafter's tree are looked up by their paths.
"""

import base64
import zlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

K = 8
"""Entries of a row, as of `_core.top_k`."""

_MOST_ROWS = 1 << 20

TopK = tuple[NDArray[np.uint32], NDArray[np.float32]]
"""Token ids and probabilities, `(rows, 8)` each."""


class SeenStep(NamedTuple):
    """What one verification saw.

    Attributes:
        root: Place of the tree's root in the text.
        tokens: `(nodes,) u32`.
        parents: `(nodes,) u32`.
        top_k: What the target held likely after each node.
    """

    root: int
    tokens: NDArray[np.uint32]
    parents: NDArray[np.uint32]
    top_k: TopK


class RecordedRows:
    """The rows of a text and of what was drafted beside it: one tree, whose trunk is the text.

    Row `i` stands behind token `i` of the text, whose last token has none. Behind these comes a row
    for each token that was drafted and is not the text's, parents first. Of several that say the
    same, the first counts, and what follows any of them follows it.

    Args:
        text: `(tokens,) u32`, prompt and answer.
        branches: Tokens `(branches,) u32` beside the text, and the rows that they follow.
        top_k: Of all rows.
    """

    def __init__(
        self,
        text: NDArray[np.uint32],
        branches: tuple[NDArray[np.uint32], NDArray[np.uint32]],
        top_k: TopK,
    ) -> None:
        self._text, self._branches, self._top_k = text, branches, top_k

    @classmethod
    def of_steps(
        cls, text: NDArray[np.uint32], prompt: Iterable[TopK], steps: Iterable[SeenStep]
    ) -> Self:
        """Rows of a text, from those of its prompt and from verifications of any drafters.

        Raises:
            ValueError: The row of a token is missing.
        """
        chunks = (zip(*chunk, strict=True) for chunk in prompt)
        rows = dict(enumerate(row for chunk in chunks for row in chunk))
        below = _trunk(text)
        branches: list[tuple[int, int]] = []
        for step in steps:
            known = [step.root]
            rows.setdefault(step.root, (step.top_k[0][0], step.top_k[1][0]))
            for node in range(1, len(step.tokens)):
                place = known[step.parents[node]], int(step.tokens[node])
                row = below.setdefault(place, len(text) - 1 + len(branches))
                if row == len(text) - 1 + len(branches):
                    branches.append(place)
                known.append(row)
                rows.setdefault(row, (step.top_k[0][node], step.top_k[1][node]))
        num_rows = len(text) - 1 + len(branches)
        if missing := set(range(num_rows)) - rows.keys():
            raise ValueError(f"nothing is known of what follows token {min(missing)}")
        parents, tokens = np.array(branches, np.uint32).reshape(-1, 2).T.copy()
        held = [rows[row] for row in range(num_rows)]
        return cls(
            text,
            (tokens, parents),
            (np.array([ids for ids, _ in held]), np.array([shares for _, shares in held])),
        )

    @cached_property
    def _below(self) -> dict[tuple[int, int], int]:
        tokens, parents = (array.tolist() for array in self._branches)
        below, rows = _trunk(self._text), list(range(len(self._text) - 1))
        for token, parent in zip(tokens, parents, strict=True):
            rows.append(below.setdefault((rows[parent], token), len(rows)))
        return below

    def places(
        self, root: int, tokens: NDArray[np.uint32], parents: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """The row of each node of a tree, `(nodes,)`, -1 where it is not on the record.

        Args:
            root: Place of the tree's root in the text.
            tokens: `(nodes,) u32`.
            parents: `(nodes,) u32`.
        """
        rows = [root if root < len(self._text) - 1 else -1]
        for token, parent in zip(tokens[1:].tolist(), parents[1:].tolist(), strict=True):
            rows.append(self._below.get((rows[parent], token), -1))
        return np.array(rows)

    def top_k(self, places: NDArray[np.int64]) -> TopK:
        """The rows at these places, all 0 where one is -1."""
        is_known = (places >= 0)[:, np.newaxis]
        ids, probabilities = (values[places] for values in self._top_k)
        return np.where(is_known, ids, np.uint32(0)), np.where(
            is_known, probabilities, np.float32(0)
        )

    def to_json(self) -> dict[str, Any]:
        """The field `top8` of a line."""
        (tokens, parents), (ids, probabilities) = self._branches, self._top_k
        return {
            "rows": len(ids),
            "tokens": _packed(tokens, "<u4"),
            "parents": _packed(parents, "<u4"),
            "ids": _packed(ids, "<u4"),
            "probabilities": _packed(probabilities, "<f4"),
        }

    @classmethod
    def parse(cls, fields: Any, text: NDArray[np.uint32], vocab_size: int) -> Self:
        """Read `to_json` of a text.

        Raises:
            ValueError: It is not that; the message says what is wrong.
        """
        if not isinstance(fields, dict):
            raise ValueError("'top8' is not an object")
        num_rows, num_trunk = fields["rows"], len(text) - 1
        if type(num_rows) is not int or not num_trunk <= num_rows <= _MOST_ROWS:
            raise ValueError(
                f"'rows' of 'top8' must be {num_trunk} or more, one behind each token but the last"
                f", and at most {_MOST_ROWS}, not {num_rows!r}"
            )
        num_branches = num_rows - num_trunk
        tokens = _unpacked(fields, "tokens", "<u4", (num_branches,))
        parents = _unpacked(fields, "parents", "<u4", (num_branches,))
        ids = _unpacked(fields, "ids", "<u4", (num_rows, K))
        probabilities = _unpacked(fields, "probabilities", "<f4", (num_rows, K))
        if (parents >= num_trunk + np.arange(num_branches)).any():
            raise ValueError("'parents' of 'top8' name rows that do not stand before them")
        for name, values in (("tokens", tokens), ("ids", ids)):
            if (values >= vocab_size).any():
                raise ValueError(f"{name!r} of 'top8' hold {values.max()}, of {vocab_size} tokens")
        are_shares = ((probabilities >= 0) & (probabilities <= 1)).all()
        if not (are_shares and (np.diff(probabilities) <= 0).all()):
            raise ValueError("'probabilities' of 'top8' are not from 1 down to 0 in each row")
        return cls(text, (tokens, parents), (ids, probabilities))


def _trunk(text: NDArray[np.uint32]) -> dict[tuple[int, int], int]:
    """The row behind a row and the text's next token."""
    return {(row - 1, token): row for row, token in enumerate(text[:-1].tolist()) if row}


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(zlib.compress(values.astype(kind).tobytes(), 9)).decode()


def _unpacked(fields: dict[str, Any], name: str, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    num_bytes = 4 * int(np.prod(shape))
    try:
        packed = base64.b64decode(fields[name], validate=True)
        values = zlib.decompressobj().decompress(packed, num_bytes + 1)
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"{name!r} of 'top8' is not base64 of zlib: {error}") from error
    if len(values) != num_bytes:
        raise ValueError(f"{name!r} of 'top8' does not hold {shape} values of 4 bytes")
    native = np.uint32 if kind == "<u4" else np.float32
    return np.frombuffer(values, kind).astype(native).reshape(shape)

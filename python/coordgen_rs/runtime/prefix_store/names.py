"""What the files of a store are called: by what they hold, and by all that it depends on.

In: whose tokens they are, and which. Out: names. A block's name depends on all tokens before it, so
that two prompts that begin alike have the same files until they differ, and a file that is found
under a prompt's name needs no list that says what is in it. No name tells a token or a namespace.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 32
"""Tokens of a block. The rest of a prompt is computed again, at most so many less one."""

_NAME_BYTES = 16


class Scope(NamedTuple):
    """Whose prefixes they are, and what computed them: nothing is found across scopes.

    Attributes:
        digest: Of the target, its arithmetic and the namespace, 16 bytes.
        namespace: The namespace, for lists.
    """

    digest: bytes
    namespace: str

    @classmethod
    def of(cls, target: bytes, namespace: str) -> "Scope":
        """The scope of a namespace.

        Args:
            target: Tells apart all that computes other keys and values, or states.
            namespace: Its name.
        """
        return cls(_hashed(b"scope", target, namespace.encode("utf-8", "surrogatepass")), namespace)


def block_names(scope: Scope, token_ids: NDArray[np.uint32]) -> list[bytes]:
    """The names of the whole blocks that tokens `(tokens,) u32` begin with."""
    names, name = [], scope.digest
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        name = _hashed(b"block", name, _bytes(token_ids[start : start + BLOCK_TOKENS]))
        names.append(name)
    return names


def states_name(before: bytes, rest: NDArray[np.uint32]) -> bytes:
    """The name of the states behind some tokens.

    Args:
        before: The name of the last whole block of them; the scope's digest where there is none.
        rest: Those behind it, `(tokens,) u32`.
    """
    return _hashed(b"states", before, _bytes(rest))


def _bytes(token_ids: NDArray[np.uint32]) -> bytes:
    return token_ids.astype("<u4", copy=False).tobytes()


def _hashed(kind: bytes, before: bytes, more: bytes) -> bytes:
    found = hashlib.blake2b(len(before).to_bytes(8, "little"), digest_size=_NAME_BYTES, person=kind)
    found.update(before)
    found.update(more)
    return found.digest()

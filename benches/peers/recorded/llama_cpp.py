"""llama.cpp's n-gram drafting, as rules to be replayed: its own code, by `llama_cpp.cpp`.

In: the text so far. Out: a chain. `make table` builds the library from llama.cpp's sources; without
it, the rules are absent.
"""

import ctypes
import hashlib
import os
from pathlib import Path

import numpy as np

from recorded.rule import Rule

PACKAGE = "llama.cpp"
_PEERS = Path(__file__).resolve().parents[3] / "build" / "peers"
_ASKING = Path(__file__).with_name("llama_cpp.cpp")
BUILT = _PEERS / f"llama-{hashlib.sha256(_ASKING.read_bytes()).hexdigest()[:8]}.so"
SOURCE = _PEERS / "llama.cpp"
"""Where `make table` and `make peers` unpack llama.cpp."""
TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
_MOST_DRAFTED = 4096
"""More than a budget of a replay."""


class LlamaCpp(Rule):
    """One of `TYPES`, for one sequence.

    Args:
        name: Which.
        matched: Tokens that it matches; None for its own default: 12, of ngram-mod 24.
        drafted: Tokens that it drafts, at most 4,096; None for its own default: 48, of ngram-mod 48
            to 64. It is cut to the budget; ngram-cache drafts 8 at most.
        remembering: Whether it is told that a new request begins, as in the server, or made anew
            for each.
    """

    def __init__(self, name, matched=None, drafted=None, *, remembering=False):
        """Raises ModuleNotFoundError without the library."""
        self._rule = None
        if not BUILT.is_file():
            raise ModuleNotFoundError(f"there is no {BUILT}: `make table` builds it", name=PACKAGE)
        self._library = _declared(ctypes.CDLL(str(BUILT), os.RTLD_LAZY))  # it is not whole
        self._made_of = name.encode(), matched or 0, drafted or 0
        self._remembering = remembering
        self._draft = np.zeros(_MOST_DRAFTED, np.int32)
        self._drafted_at = self._draft.ctypes.data

    def begin(self, prompt):
        """Same as in `Rule`."""
        if self._rule is None:
            self._rule = self._library.rule_new(*self._made_of)
        tokens = _int32(prompt)
        self._library.rule_begin(self._rule, tokens.ctypes.data, len(tokens))

    def propose(self, text, budget):
        """Same as in `Rule`."""
        most = min(budget, _MOST_DRAFTED)
        length = self._library.rule_propose(self._rule, most, self._drafted_at)
        return self._draft[:length].tolist(), range(-1, length - 1)

    def accept(self, new_tokens):
        """Same as in `Rule`."""
        tokens = _int32(new_tokens)
        self._library.rule_accept(self._rule, tokens.ctypes.data, len(tokens))

    def end(self):
        """Same as in `Rule`."""
        if not self._remembering:
            self._free()

    def _free(self):
        if self._rule is not None:
            self._library.rule_free(self._rule)
            self._rule = None

    def __del__(self):
        self._free()

    def memory_bytes(self):
        """Same as in `Rule`."""
        return self._library.rule_memory(self._rule)


def version():
    """What is called, with the package whose sources it was built of."""
    packages = [path.name.removesuffix(".tar.gz") for path in SOURCE.glob("*.tar.gz")]
    return f"llama.cpp in {', '.join(packages) or 'a package that is gone'}"


def _int32(tokens):
    return np.ascontiguousarray(tokens).view(np.int32)


def _declared(library):
    """The library, its functions told what they take and return."""
    pointer, count = ctypes.c_void_p, ctypes.c_size_t
    signatures = {
        "rule_new": (pointer, ctypes.c_char_p, ctypes.c_uint16, ctypes.c_uint16),
        "rule_free": (None, pointer),
        "rule_begin": (None, pointer, pointer, count),
        "rule_propose": (count, pointer, count, pointer),
        "rule_accept": (None, pointer, pointer, count),
        "rule_memory": (ctypes.c_int64, pointer),
    }
    for name, (returned, *taken) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, taken
    return library

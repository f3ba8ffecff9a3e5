"""What a fleet's build leaves: an index for each namespace, and a list of them.

In: a directory. Out: what is in it, or an error that says why it is no build. Who drafts needs the
index alone, and finds it by its name; the list is for merging it into another build, and so are the
tables of documents beside it (`lab/fleet/tables.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from coordgen_rs.bundle.json_text import JsonTextError, read_json
from coordgen_rs.bundle.typed_json import FieldError, parse
from coordgen_rs.errors import HistoryError, HistoryMismatchError
from coordgen_rs.store.history.indexes import index_name

LIST_NAME: Final = "fleet.json"
FORMAT: Final = "coordgen-fleet-1"
_MOST_LIST_BYTES = 1 << 30


@dataclass(frozen=True)
class IndexEntry:
    """What the list says of an index.

    Attributes:
        namespace: The namespace of its requests.
        num_requests: The number of its requests.
        num_tokens: Tokens of all requests, including a terminator for each.
        text_start: Byte of the index at which their tokens begin.
        head_sha256: Of the index's header, by which an index of another build is noticed.
    """

    namespace: str
    num_requests: int
    num_tokens: int
    text_start: int
    head_sha256: str


@dataclass(frozen=True)
class BuildList:
    """The content of `fleet.json`.

    Attributes:
        format: The format of all files of the build.
        fingerprint: Identifies the tokenizer.
        vocab_size: Number of ids in the vocabulary.
        max_tokens: The limit of each namespace.
        namespaces: The indexes, by the name of their namespace.
    """

    format: Literal["coordgen-fleet-1"]
    fingerprint: str
    vocab_size: int
    max_tokens: int
    namespaces: list[IndexEntry]

    def check_tokenizer(self, directory: Path, fingerprint: str, vocab_size: int) -> None:
        """Refuse a build of another tokenizer.

        Args:
            directory: Where the build is, for messages.
            fingerprint: The fingerprint that it must have.
            vocab_size: The size of the vocabulary that it must have.

        Raises:
            HistoryMismatchError: It is one.
        """
        if (self.fingerprint, self.vocab_size) != (fingerprint, vocab_size):
            raise HistoryMismatchError(
                f"{directory} was built for another tokenizer: its fingerprint and vocabulary size "
                f"are {self.fingerprint} and {self.vocab_size}, not {fingerprint} and {vocab_size}"
            )


class NotBuiltError(HistoryError):
    """A directory holds no list of a build."""


def index_path(directory: Path, namespace: str) -> Path:
    """Where the index of a namespace is."""
    return directory / index_name(namespace)


def read_list(directory: Path) -> BuildList:
    """The list of a build.

    Raises:
        HistoryError: It is not such a list.
        NotBuiltError: There is none.
    """
    path = directory / LIST_NAME
    try:
        return parse(BuildList, read_json(path, most_bytes=_MOST_LIST_BYTES), str(path))
    except FileNotFoundError as error:
        raise NotBuiltError(f"{directory} is not a built history: no {LIST_NAME}") from error
    except (JsonTextError, FieldError, OSError) as error:
        raise HistoryError(f"{path} cannot be used: {error}") from error

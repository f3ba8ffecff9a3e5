"""Checkpoints by name: `hf:OWNER/NAME`, fetched from the Hugging Face Hub.

In: a name, `hf:OWNER/NAME[/FILE.gguf][@REVISION]`. Out: the path of what was fetched, in the cache
of huggingface_hub, where a second call finds it. Only what an export reads is fetched: the
configuration first, so that a model that cannot be exported costs no gigabytes.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordgen_rs.convert.containers.hugging_face import read_weight_map
from coordgen_rs.errors import CheckpointError, OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.errors.file_names import PartName

_NAME = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@]+\.gguf))?(?:@(?P<revision>[^\s@]+))?"
)
_CONFIG, _INDEX, _WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
_TOKENIZER = "tokenizer.json"
_OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class HubName:
    """A repository of the hub, or a GGUF file in one."""

    repository: str
    file: str | None
    revision: str | None

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"hf:{self.repository}{file}" + (f"@{self.revision}" if self.revision else "")


def hub_name(path: Path) -> HubName | None:
    """The name that a path is, or None if it is a path.

    Raises:
        OptionError: It begins as a name, but is none; or it names a part behind the first.
    """
    name = path.as_posix()
    if not name.startswith("hf:") or path.exists():
        return None
    match = _NAME.fullmatch(name)
    if match is None:
        raise OptionError(f"{name} must be hf:OWNER/NAME, with /FILE.gguf or @REVISION behind it")
    found = HubName(**match.groupdict())
    part = None if found.file is None else PartName.of(PurePosixPath(found.file).name)
    if part is not None and part.number > 1:
        raise OptionError(
            f"{name} is part {part.number} of {part.count}: give the first part, {part.part(1)}"
        )
    return found


def fetch(name: HubName, check: Callable[[Path], object], *, needs_tokenizer: bool = True) -> Path:
    """Fetch a GGUF file with its other parts, if it has any, or a directory with what is read.

    Args:
        name: What to fetch.
        check: Is given the directory when nothing but the configuration is in it; what it raises
            ends the call.
        needs_tokenizer: Whether a directory without a tokenizer is refused.

    Raises:
        OptionError: huggingface_hub is not installed.
        CheckpointError: There is no such thing, or the hub cannot be reached.
        _NoSuchFileError: The same, of a file that is needed.
    """
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{name} needs the package {error.name}: {how_to_install('hub')}"
        ) from error

    logging.getLogger("huggingface_hub").setLevel(
        logging.ERROR
    )  # it tells of each retry; an error of ours ends them

    def download(file: str, revision: str | None) -> Path:
        with _errors(name, file):
            return Path(hf_hub_download(name.repository, file, revision=revision))

    if name.file is not None:
        path, folder = download(name.file, name.revision), PurePosixPath(name.file).parent
        part = PartName.of(path.name)
        commit = path.parents[len(folder.parts)].name
        for other in [] if part is None else part.others():
            download(str(folder / str(other)), commit)
        return path
    directory = download(_CONFIG, name.revision).parent

    # The directory is named after the commit: a push meanwhile does not mix two of them.
    def fixed(file: str) -> Path:
        known = try_to_load_from_cache(name.repository, file, revision=directory.name)
        if known is None:
            return download(file, directory.name)
        if not isinstance(known, str):  # it is known to be missing
            raise _NoSuchFileError(f"{name}: the repository has no file {file}")
        return Path(known)

    _if_there(fixed, _OPTIONAL[0])
    check(directory)
    for file in _OPTIONAL[1:]:
        _if_there(fixed, file)
    if not _if_there(fixed, _TOKENIZER) and needs_tokenizer:
        raise _NoSuchFileError(f"{name}: the repository has no file {_TOKENIZER}")
    shards = [_WEIGHTS]
    if _if_there(fixed, _INDEX):
        shards = sorted(set(read_weight_map(directory / _INDEX).values()))
    for shard in shards:
        fixed(shard)
    return directory


def _if_there(download: Callable[[str], Path], file: str) -> bool:
    """Fetch a file that a repository may lack; whether it has it."""
    try:
        download(file)
    except _NoSuchFileError:
        return False
    return True


class _NoSuchFileError(CheckpointError):
    """The repository has no such file."""


@contextmanager
def _errors(name: HubName, file: str) -> Iterator[None]:
    """The errors of huggingface_hub as ours, in one line.

    Raises:
        CheckpointError: The file cannot be fetched; the message says why.
        _NoSuchFileError: There is no such file.
    """
    from huggingface_hub import errors

    meanings = {
        errors.GatedRepoError: " is gated: accept its terms on the hub, then log in with "
        "`hf auth login`",
        errors.RepositoryNotFoundError: ": the hub has no such repository, or it is private "
        "(`hf auth login`)",
        errors.RevisionNotFoundError: ": the repository has no such revision",
        errors.LocalEntryNotFoundError: f": {file} cannot be fetched, because the hub cannot be "
        "reached, nor is it in the cache: check the network (HF_ENDPOINT, HF_HUB_OFFLINE)",
    }
    try:
        yield
    except Exception as error:  # of files, of the network, of the package
        what = next((told for kind, told in meanings.items() if isinstance(error, kind)), None)
        if what is None and isinstance(error, errors.EntryNotFoundError):
            raise _NoSuchFileError(f"{name}: the repository has no file {file}") from error
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        what = what or f": {file} cannot be fetched: {first_line}"
        raise CheckpointError(f"{name}{what}") from error

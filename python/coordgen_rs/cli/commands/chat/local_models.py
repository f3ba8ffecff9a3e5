"""The models of this machine: what `coordgen chat` can open, where no model was named.

In: the working directory, the cache of conversions, and where other programs keep GGUF files. Out:
a list, and on a terminal the one that is chosen. Nothing is downloaded, and of a file only its
beginning is read.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coordgen_rs.cli.terminal.text import printable, show_bytes
from coordgen_rs.errors.file_names import is_further_part, with_parts
from coordgen_rs.errors.json_text import JsonTextError, read_object
from coordgen_rs.store.cache import cache_directory, conversions

_MOST_LISTED = 40
_MOST_LOOKED_AT = 20_000
"""Entries of a folder of another program, after which no more is looked for there."""
_MOST_MANIFEST_BYTES = 1 << 20
_GGUF_MAGIC = b"GGUF"


class LocalModel(NamedTuple):
    """A model.

    Attributes:
        name: What `coordgen chat` is given.
        num_bytes: The size of its files.
        kind: What it is.
    """

    name: str
    num_bytes: int
    kind: str


def chosen() -> str | None:
    """List the models, and ask which one, if somebody can answer; None where there is none."""
    found = list(local_models())
    if not found:
        print(
            "There is no model here. A GGUF file, a Hugging Face directory, or a name such as\n"
            "hf:HuggingFaceTB/SmolLM2-135M-Instruct, which is downloaded:\n\n"
            "  coordgen chat MODEL"
        )
        return None
    print("Models of this machine:\n")
    shown = [shlex.quote(printable(it.name)) for it in found[:_MOST_LISTED]]
    width = max(map(len, shown))
    for number, (name, it) in enumerate(zip(shown, found, strict=False), start=1):
        print(f"  {number:2}  {name:{width}}  {show_bytes(it.num_bytes):>12}  {it.kind}")
    if len(found) > _MOST_LISTED:
        print(f"      and {len(found) - _MOST_LISTED} more")
    print("\nTo talk with one:\n\n  coordgen chat", shown[0], flush=True)
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    try:
        typed = input(f"\nWhich one now? (1 to {len(shown)}; Enter leaves) ").strip()
    except (EOFError, KeyboardInterrupt):
        print(flush=True)
        return None
    is_one = typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(shown)
    return found[int(typed) - 1].name if is_one else None


def local_models() -> Iterator[LocalModel]:
    """The models of the working directory, then those that were converted, then others' files."""
    seen = set[str]()
    for it in (*_in_directory(Path()), *_converted(), *_of_others()):
        place = os.path.realpath(it.name)
        if place not in seen:
            seen.add(place)
            yield it


def _in_directory(folder: Path) -> Iterator[LocalModel]:
    """Bundles, Hugging Face directories and GGUF files of a directory, and of those in it."""
    with suppress(OSError):
        entries = sorted(folder.iterdir())
        folders = [it for it in entries if it.is_dir() and not it.name.startswith(".")]
        for entry in (*entries, *(it for one in folders for it in _entries(one))):
            kind = _kind(entry)
            if kind is not None:
                yield LocalModel(str(entry), _num_bytes(entry), kind)


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())[:_MOST_LOOKED_AT]
    return []


def _kind(path: Path) -> str | None:
    if path.suffix == ".gguf":
        is_none = is_further_part(path.name) or "mmproj" in path.name
        return "GGUF" if not is_none and _is_gguf(path) else None
    if (path / "manifest.json").is_file():
        return "bundle" if _is_chat(path) else None
    has_weights = (path / "config.json").is_file() and any(path.glob("*.safetensors"))
    return "Hugging Face directory" if has_weights else None


def _is_gguf(path: Path) -> bool:
    if path.is_file():  # no pipe, which would be waited for
        with suppress(OSError), path.open("rb") as stream:
            return stream.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    return False


def _is_chat(bundle: Path) -> bool:
    """Whether a bundle has a chat template."""
    with suppress(OSError, JsonTextError):
        manifest = read_object(bundle / "manifest.json", most_bytes=_MOST_MANIFEST_BYTES)
        chat = manifest.get("chat")
        return isinstance(chat, dict) and bool(chat.get("templates"))
    return False


def _converted() -> Iterator[LocalModel]:
    """What was opened before, by the name that it was opened by."""
    cache = cache_directory()
    with suppress(OSError):
        for it in () if cache is None else conversions(cache):
            if not it.is_source_gone and _is_chat(it.bundle):
                yield LocalModel(it.source, it.num_bytes, "opened before")


def _of_others() -> Iterator[LocalModel]:
    """GGUF files that other programs have downloaded."""
    for folder in _folders_of_others():
        num_looked_at = 0
        for parent, folders, names in os.walk(folder):
            folders.sort()
            num_looked_at += len(names) + 1
            if num_looked_at > _MOST_LOOKED_AT:
                break
            for name in sorted(names):
                path = Path(parent, name)
                if name.endswith(".gguf") and _kind(path) is not None:
                    yield LocalModel(str(path), _num_bytes(path), "GGUF")


def _folders_of_others() -> list[Path]:
    """Where Hugging Face's hub, llama.cpp and LM Studio keep models."""
    with suppress(RuntimeError):
        home, said = Path.home(), os.environ
        cache = Path(said.get("XDG_CACHE_HOME") or home / ".cache")
        hub = said.get("HF_HUB_CACHE") or Path(said.get("HF_HOME") or cache / "huggingface", "hub")
        llama = said.get("LLAMA_CACHE") or cache / "llama.cpp"
        return [Path(hub), Path(llama), home / ".lmstudio" / "models", cache / "lm-studio/models"]
    return []


def _num_bytes(path: Path) -> int:
    with suppress(OSError):
        if path.is_file():
            return sum(it.stat().st_size for it in with_parts(path) if it.is_file())
        return sum(it.stat().st_size for it in path.iterdir() if it.is_file())
    return 0

"""Opening a store of prefixes for a session: its key has all that decides what is computed.

In: an open session, and how it was opened. Out: its store. Whatever is not certain to leave the
same bits counts as another target: then prompts are computed once more.
"""

import hashlib
import platform
from pathlib import Path

import numpy as np

from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.loading.options import OpenOptions, chosen_provider
from coordgen_rs.runtime.caches.kv_cache import KvCache
from coordgen_rs.runtime.machine import cpu_model
from coordgen_rs.runtime.onnx_runtime import kernel_library
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.store.prefixes.directory import DEFAULT_BYTES
from coordgen_rs.store.prefixes.store import PrefixStore, TargetIdentity


def store_opened(session: OrtSession, options: OpenOptions) -> PrefixStore | None:
    """The store of a session's prefixes; None where none was asked for.

    Args:
        session: Whose.
        options: How it was opened.

    Raises:
        OptionError: The session reuses no prompt, or the directory is open to everybody.
        OSError: The directory cannot be created.
        ProviderError: Same as in `ProviderChoice.conditions`.
    """
    path = options["prefix_store"]
    if path is None:
        return None
    if not session.is_exact_after_prefill:
        raise OptionError(
            f"prefix_store is {str(path)!r}, but {session.bundle.shown} reuses nothing of earlier "
            "prompts: its prefill graphs and decode graphs were not equal when it was tested"
        )
    size = options["prefix_store_size"] or DEFAULT_BYTES
    return PrefixStore(path, _identity(session, options), size)


def _identity(session: OrtSession, options: OpenOptions) -> TargetIdentity:
    """What computes: the bundle's content, the code, and how and where it runs."""
    bundle, cache, digest = session.bundle, session.cache, hashlib.blake2b(digest_size=32)
    form = cache.form if isinstance(cache, KvCache) else "integers"
    facts = [
        hashlib.sha256(bundle.identity()).hexdigest(),
        package_version(),
        _kernels() if session.device.is_host else "",
        np.__version__,  # it makes the tables of rotations
        platform.machine(),
        cpu_model(),
        *chosen_provider(options).conditions(bundle),
        form,
    ]
    if session.device.reads_tokens:  # a folder of another tool tells only sizes of its weights,
        facts += [f"{name} {_changed(bundle.file(name))}" for name in sorted(bundle.manifest.files)]
        facts.append(str(session.threads))  # and its operators may round by how many compute
    for fact in facts:
        digest.update(f"{len(fact)} {fact}".encode("utf-8", "surrogatepass"))
    return TargetIdentity(digest.digest(), bundle.shown, form, package_version())


def _kernels() -> str:
    """The kernels' code; unlike `kernel_build`, the same wherever and whenever it was installed."""
    with kernel_library().open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _changed(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns}"

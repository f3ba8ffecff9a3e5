"""Loading a bundle for generation: verify it, test it once on this machine, keep its prefixes."""

import hashlib
import platform
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleDamagedError, MemoryBudgetError, OptionError, arguments
from coordgen_rs.errors.extras import package_version
from coordgen_rs.errors.json_text import parse
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.options import (
    OpenOptions,
    SessionOptions,
    chosen_provider,
    found_profile,
    open_options,
)
from coordgen_rs.loading.self_test import SelfTest, run_self_test
from coordgen_rs.runtime.caches.kv_cache import KvCache
from coordgen_rs.runtime.machine import cpu_model
from coordgen_rs.runtime.onnx_runtime import kernel_build, kernel_library, set_threads
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.store.cache import cache_directory, keep_record, read_record
from coordgen_rs.store.prefixes.directory import DEFAULT_BYTES
from coordgen_rs.store.prefixes.store import PrefixStore, TargetIdentity

_Stamps = dict[str, list[int]]
"""Size and time of the last change, in ns, of each file."""


def open_session(path: Path | str, **options: Unpack[SessionOptions]) -> OrtSession:
    """Open a bundle for generation: verify its files, test its exactness once, load its graphs.

    Args:
        path: The bundle's directory, a checkpoint or another tool's folder; same as in
            `open_bundle`.
        options: See `SessionOptions`.

    Returns:
        A session that uses only exact widths, and knows the cost of each.

    Raises:
        BundleError, BundleDamagedError: The bundle is incomplete, altered or of another version;
            the message names the file. SHA-256 sums are computed on the first opening and
            whenever a file's size or modification time differs from the record.
        CheckpointError, ExportError: A checkpoint cannot be converted.
        BlockLoadError: A block's graph cannot be loaded; the message names block and file.
        OptionError: `threads` cannot be set, the strategy is unknown, a number is out of range, or
            the model's heads are too small for `kv_cache`.
        MemoryBudgetError: The budget is too small; the message says how much is needed. Or the
            machine's memory is.
        ProfileError: The profile is for other blocks; a stale one causes a warning.
        ProviderError: The provider is missing, cannot run here, or rejects a graph.
        NonFiniteLogitsError: The model computes NaN.
    """
    arguments.known("open_session", options, SessionOptions.__annotations__)
    return session_opened(path, open_options("open_session", options))


def session_opened(path: Path | str, options: OpenOptions) -> OrtSession:
    """The same as `open_session`, by a record of its options.

    Raises:
        MemoryBudgetError: The machine's memory is too small; other errors are those of
            `open_session`, and of `Profile.find`.
    """
    arguments.path("path", path)
    profile = found_profile(options)
    bundle, files, result = _whole_bundle(path, options)
    costs = None
    if profile is not None:
        from coordgen_rs.loading.profile import fitting_costs

        costs = fitting_costs(profile, bundle, set_threads(options["threads"]))
    with bundle.named_in_errors():
        session = _loaded(bundle, options, costs)
        if result is None or not result.tells_of(session.widths):
            result = run_self_test(session, files, options["on_progress"])
            if (record := _record_path(bundle, options)) is not None:
                keep_record(record, asdict(result))
    widths = [w for w in session.widths if w in result.exact_widths]
    if len(widths) < len(session.widths):
        inexact = sorted(set(session.widths) - set(widths))
        warnings.warn(
            f"{bundle.shown}: widths {inexact} are not bit-equal to width {widths[0]} on this "
            "machine and are left out",
            stacklevel=3,
        )
    if options["width"] is not None:
        widths = [w for w in widths if w <= options["width"]] or widths[:1]
    session.is_exact_after_prefill = result.exact_prefill
    session.is_exact_on_branches = result.exact_branches
    session.is_exact_at_any_rows = result.exact_any_rows
    session.select(widths, [result.cost(w) for w in widths])
    return session


def _loaded(bundle: Bundle, options: OpenOptions, costs: list[BlockCost] | None) -> OrtSession:
    """The session of a bundle, with all its widths.

    Raises:
        MemoryBudgetError: The machine's memory is too small; other errors are those of
            `open_session`.
    """
    try:
        return OrtSession(
            chosen_provider(options).device(bundle, kv_cache=options["kv_cache"]),
            threads=options["threads"],
            switch=options["switch"],
            memory_budget=options["memory_budget"],
            costs=costs,
        )
    except MemoryError as error:
        raise MemoryBudgetError(
            f"{bundle.shown}: its graphs, and caches for {bundle.manifest.context} tokens, do not "
            "fit into memory; export it with a smaller context"
        ) from error


def recorded_self_test(bundle: Bundle) -> SelfTest | None:
    """What was found when a bundle was first opened on this machine; None if nothing is kept.

    That is with the options that it has by default, keys and values in float32 included.

    Raises:
        OptionError: Same as in `open_session`.
        ProviderError: The bundle is for QNN, which is not installed or cannot run here.
    """
    return _recorded(_record_path(bundle, open_options("open_session", {})), _stamps(bundle))


def _whole_bundle(
    path: Path | str, options: OpenOptions
) -> tuple[Bundle, _Stamps, SelfTest | None]:
    """The bundle, verified where that was not done yet; a damaged conversion is made once more.

    Returns:
        The bundle, the stamps that its files had before, and what was found when it was tested.

    Raises:
        BundleDamagedError: It is damaged, and cannot be made anew; other errors are those of
            `open_bundle`.
    """
    found = partial(
        open_bundle, path, context=options["context"], on_progress=options["on_progress"]
    )
    bundle = found()
    try:
        return _verified(bundle, options)
    except BundleDamagedError:
        if not bundle.discard():
            raise
    return _verified(found(), options)


def _verified(bundle: Bundle, options: OpenOptions) -> tuple[Bundle, _Stamps, SelfTest | None]:
    files = _stamps(bundle)
    result = _recorded(_record_path(bundle, options), files)
    if result is None:
        bundle.verify(options["on_progress"])
    return bundle, files, result


def _record_path(bundle: Bundle, options: OpenOptions) -> Path | None:
    """Where the result is kept; the name depends on everything that can change it.

    None for a user without a home directory: each opening then tests the bundle again.
    """
    threads, budget = set_threads(options["threads"]), options["memory_budget"]
    records = cache_directory()
    if records is None:
        return None
    conditions = [
        str(bundle.path.resolve()),
        hashlib.sha256(bundle.identity()).hexdigest(),
        platform.processor() or platform.machine(),
        cpu_model(),
        *chosen_provider(options).conditions(bundle),
        str(threads),
        f"{options['switch']} within {budget}",
        *([kernel_build(), options["kv_cache"]] if bundle.manifest.provider == "cpu" else []),
    ]
    name = hashlib.sha256("\n".join(conditions).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return records / f"{name}.json"


def _stamps(bundle: Bundle) -> _Stamps:
    stats = {name: bundle.file(name).stat() for name in bundle.manifest.files}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _recorded(record: Path | None, files: _Stamps) -> SelfTest | None:
    """What was found when these files were tested; None if nothing is kept, or it is damaged."""
    try:
        found = None if record is None else parse(SelfTest, read_record(record), "the record")
    except (OSError, ValueError):
        return None
    return found if found is not None and found.files == files else None


def store_opened(session: OrtSession, options: OpenOptions) -> PrefixStore | None:
    """The store of a session's prefixes; None where none was asked for.

    Its key has all that decides what is computed: whatever is not certain to leave the same bits
    counts as another target, whose prompts are computed once more.

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
        facts += [f"{name} {size} {ns}" for name, (size, ns) in sorted(_stamps(bundle).items())]
        facts.append(str(session.threads))  # and its operators may round by how many compute
    for fact in facts:
        digest.update(f"{len(fact)} {fact}".encode("utf-8", "surrogatepass"))
    return TargetIdentity(digest.digest(), bundle.shown, form, package_version())


def _kernels() -> str:
    """The kernels' code; unlike `kernel_build`, the same wherever and whenever it was installed."""
    with kernel_library().open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""Opening a bundle for generation: verify it, test it once on this machine, load it."""

import hashlib
import platform
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Unpack

from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleDamagedError, MemoryBudgetError, arguments
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.options import (
    OpenOptions,
    SessionOptions,
    chosen_provider,
    found_profile,
    opening,
)
from coordgen_rs.loading.self_test import SelfTest, run_self_test
from coordgen_rs.runtime.machine import cpu_model
from coordgen_rs.runtime.onnx_runtime import kernel_build, set_threads
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.store.cache import cache_directory, keep_record, read_record

_Stamps = dict[str, tuple[int, int]]
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
    return session_opened(path, opening("open_session", options))


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
        from coordgen_rs.loading.costs import fitting_costs

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
    return _recorded(_record_path(bundle, opening("open_session", {})), _stamps(bundle))


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
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _recorded(record: Path | None, files: _Stamps) -> SelfTest | None:
    """What was found when these files were tested; None if nothing is kept."""
    found = None if record is None else _load(record)
    return found if found is not None and found.files == files else None


def _load(record: Path) -> SelfTest | None:
    try:
        fields = read_record(record)
        return SelfTest(
            tuple(fields["exact_widths"]),
            bool(fields["exact_prefill"]),
            bool(fields["exact_branches"]),
            bool(fields["exact_any_rows"]),
            _by_width(fields["step_us"]),
            int(fields["few_tokens"]),
            _by_width(fields["long_step_us"]),
            int(fields["long_tokens"]),
            _by_width(fields["experts"]),
            float(fields["expert_us"]),
            {name: (int(size), int(ns)) for name, (size, ns) in fields["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # missing or unreadable: test again


def _by_width(field: dict[str, float]) -> dict[int, float]:
    return {int(width): float(us) for width, us in field.items()}

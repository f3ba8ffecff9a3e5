"""What a bundle does on the machine at hand: which widths are exact, what each costs; kept on disk.

Losslessness rests on one fact: a row's bits do not depend on the width of the graph that computes
it, nor on the other rows, nor on the number of slots. Arithmetic libraries may break it on some
processor, so it is measured when a bundle is first opened on a machine, together with the time of a
step of each width. Widths that fail are not used for drafting.
"""

import hashlib
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.profile.file import Profile
from coordgen_rs.target.costs import fitting_costs
from coordgen_rs.target.kv_cache import KvCache
from coordgen_rs.target.onnx_runtime import set_threads
from coordgen_rs.target.provider import ProviderChoice
from coordgen_rs.target.session import OrtSession, StepCost

_CONTEXT_TOKENS = 24
_CHAIN_TOKENS = 8
_TIMED_SECONDS = 1.0
_TIMED_ROUNDS = (3, 40)


@dataclass(frozen=True)
class SelfTest:
    """Result of the self-test of one bundle, machine and number of threads.

    Attributes:
        exact_widths: Widths whose rows are bit-equal to those of the narrowest graph.
        exact_slots: Whether they are so whatever the number of slots.
        step_us: Width to the shortest measured time of a step behind a few tokens, microseconds.
        full_step_us: The same behind as many as the cache holds.
        files: File name to its size in bytes and its time of change in ns when its SHA-256 was
            last found right.
    """

    exact_widths: tuple[int, ...]
    exact_slots: bool
    step_us: dict[int, float]
    full_step_us: dict[int, float]
    files: dict[str, tuple[int, int]]

    def cost(self, width: int, capacity: int) -> StepCost:
        """What a step of a width costs, by a line through the two measured times."""
        few, full = self.step_us[width], self.full_step_us[width]
        per_token = max(full - few, 0.0) / max(capacity - _CONTEXT_TOKENS, 1)
        return StepCost(few, per_token)


def open_session(
    path: Path | str,
    *,
    threads: int | None = None,
    width: int | None = None,
    memory_budget: int | None = None,
    profile: Profile | None = None,
    provider: ProviderChoice | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> OrtSession:
    """Open a bundle for generation: verify its files, test its exactness once, load its graphs.

    Args:
        path: The bundle's directory.
        threads: Compute threads of the process; None takes one a core.
        width: Use only decode graphs up to this width; None uses all.
        memory_budget: Most bytes that the graphs of its blocks may hold, already while it is
            tested; None for no limit.
        profile: What its blocks cost, for plans; None guesses by their sizes.
        provider: What shall run it; None leaves all to the bundle.
        on_progress: Called with what is being done, how much of it is, and how much there is; only
            where a bundle is verified or tested.

    Returns:
        A session whose widths are all exact, and which knows the cost of each.

    Raises:
        BundleError, BundleDamagedError: The bundle is incomplete, altered or of another version;
            the message names the file. SHA-256 sums are computed on the first opening and
            whenever a file's size or time of change differs from the kept record.
        OptionError: `threads` cannot be set.
        MemoryBudgetError: The budget is too small; the least that would do is named.
        ProfileError: The profile is of other blocks; a stale one is told by a warning.
        ProviderError: The provider is missing, cannot run here, or refuses a graph.
    """
    bundle, provider = Bundle.open(Path(path)), provider or ProviderChoice()
    record = _record_path(bundle, provider, set_threads(threads), memory_budget)
    result = _load(record)
    files = _stamps(bundle)
    fresh = result is None or result.files != files
    if fresh:
        bundle.verify(on_progress)
    costs = None if profile is None else fitting_costs(profile, bundle, set_threads(threads))
    session = provider.open(bundle, threads=threads, memory_budget=memory_budget, costs=costs)
    if result is None or fresh:
        result = run_self_test(session, files, on_progress)
        _keep(record, result)
    widths = [w for w in session.widths if w in result.exact_widths]
    if len(widths) < len(session.widths):
        inexact = sorted(set(session.widths) - set(widths))
        warnings.warn(
            f"{bundle.path}: widths {inexact} are not bit-equal to width {widths[0]} on this "
            "machine and are left out",
            stacklevel=2,
        )
    if width is not None:
        widths = [w for w in widths if w <= width] or widths[:1]
    if not result.exact_slots and isinstance(session.cache, KvCache):
        session.cache.attend_to_all()
    session.select(widths, [result.cost(w, session.capacity) for w in widths])
    return session


def run_self_test(
    session: OrtSession,
    files: dict[str, tuple[int, int]],
    on_progress: Callable[[str, int, int], None] | None = None,
) -> SelfTest:
    """Measure exactness and step times of all widths of `session`; its cache is emptied."""
    tokens = np.random.default_rng(0).integers(session.vocab_size, size=_CONTEXT_TOKENS)
    context, chain = np.split(tokens.astype(np.uint32), [-_CHAIN_TOKENS])
    expected = decode_chain(session, session.widths[0], context, chain)
    exact = []
    for done, width in enumerate(session.widths):
        if on_progress is not None:
            on_progress(f"trying width {width}", done, len(session.widths))
        if np.array_equal(decode_chain(session, width, context, chain), expected):
            exact.append(width)
    step_us = full_step_us = _step_us(session, on_progress)
    exact_slots = True
    if isinstance(session.cache, KvCache):  # elsewhere their number is fixed
        with session.cache.attending_to_all():
            found = decode_chain(session, session.widths[0], context, chain)
            full_step_us = _step_us(session, on_progress)
        exact_slots = np.array_equal(found, expected)
    session.rewind(0)
    return SelfTest(tuple(exact), exact_slots, step_us, full_step_us, files)


def decode_chain(
    session: OrtSession,
    width: int,
    context: NDArray[np.uint32],
    chain: NDArray[np.uint32],
    graphs: Literal["prefill", "decode"] = "decode",
) -> NDArray[np.float32]:
    """Logits `(len(chain), vocab_size)` of a chain decoded at one width behind a context.

    The context is computed by the prefill graph or the decode graphs. Rows that the chain leaves
    free hold other tokens as a second branch, as they do in a draft tree.
    """
    session.rewind(0)
    session.prefill(context, graphs)
    rows = []
    for start in range(0, len(chain), width):
        part = chain[start : start + width]
        logits = session.step(_chain_inputs(session, width, part))
        rows.append(logits[: len(part)].copy())
        session.commit(np.arange(len(part), dtype=np.uint32))
    return np.concatenate(rows)


def _chain_inputs(session: OrtSession, width: int, chain: NDArray[np.uint32]) -> StepInputs:
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)
    spare = np.arange(1, width - len(chain) + 1, dtype=np.uint32) % session.vocab_size
    token_ids = np.concatenate([chain, spare])
    parents = np.maximum(np.arange(width) - 1, 0).astype(np.uint32)
    parents[len(chain) : len(chain) + 1] = 0  # the spare rows start a second branch at the root
    inputs.fill(token_ids, parents, session.length)
    return inputs


def _step_us(
    session: OrtSession, on_progress: Callable[[str, int, int], None] | None
) -> dict[int, float]:
    """The shortest time of a step of each width, measured in turns.

    Other processes must not make some widths look dear for good. Where this thread computes, the
    time that it is not given does not count; and no step costs more than narrower ones that have
    as many rows.
    """
    computes_here = isinstance(session.cache, KvCache) and not session.switching.is_streaming
    clock = time.thread_time if computes_here else time.perf_counter
    times: dict[int, float] = dict.fromkeys(session.widths, float("inf"))
    begin = time.perf_counter()
    for done in range(_TIMED_ROUNDS[1]):
        if done >= _TIMED_ROUNDS[0] and time.perf_counter() - begin > _TIMED_SECONDS:
            break
        if on_progress is not None:
            on_progress("timing steps", done, _TIMED_ROUNDS[1])
        for width in session.widths:
            inputs = _chain_inputs(session, width, np.zeros(1, np.uint32))
            start = clock()
            session.step(inputs)
            times[width] = min(times[width], 1e6 * (clock() - start))
    for width in session.widths[1:]:
        in_parts = (-(-width // other) * times[other] for other in session.widths if other < width)
        times[width] = min(times[width], *in_parts)
    return {width: round(us, 1) for width, us in times.items()}


def _record_path(
    bundle: Bundle, provider: ProviderChoice, threads: int, memory_budget: int | None
) -> Path:
    """Where the result is kept: named by all that can change it."""
    conditions = [
        str(bundle.path.resolve()),
        bundle.file("manifest.json").read_text("utf-8"),
        platform.processor() or platform.machine(),
        _cpu_model(),
        *provider.conditions(bundle),
        str(threads),
        "" if memory_budget is None else str(memory_budget),
    ]
    name = hashlib.sha256("\n".join(conditions).encode()).hexdigest()[:32]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "coordgen_rs" / f"{name}.json"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))


def _stamps(bundle: Bundle) -> dict[str, tuple[int, int]]:
    stats = {name: bundle.file(name).stat() for name in bundle.manifest.files}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _load(record: Path) -> SelfTest | None:
    try:
        fields = json.loads(record.read_text())
        return SelfTest(
            tuple(fields["exact_widths"]),
            bool(fields["exact_slots"]),
            _by_width(fields["step_us"]),
            _by_width(fields["full_step_us"]),
            {name: (int(size), int(ns)) for name, (size, ns) in fields["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent or unreadable: test again


def _by_width(field: dict[str, float]) -> dict[int, float]:
    return {int(width): float(us) for width, us in field.items()}


def _keep(record: Path, result: SelfTest) -> None:
    beside = record.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # a full or read-only disk costs a test at the next opening
        record.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(json.dumps(asdict(result)))
            beside.replace(record)
        finally:
            beside.unlink(missing_ok=True)

"""CoordGen's items in the time of its phone: answers on a simulated device, and its own formula.

In: a model, and prompts. Out: figures of Qwen2.5-1.5B on the Redmi K60 Pro, whose times are those
of a packaged profile. The tokens, and so what drafts bring, are those of the given model. Prompts
are filled with others of their task, as far as the model's context goes, to four chunks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.bench.switching import VARIANTS, Variant
from coordgen_rs.lab.energy import EnergyMeter
from coordgen_rs.lab.loads.plans import simulate_decode, step_us
from coordgen_rs.lab.loads.simulated import SimulatedAnswer, figure_8, simulate, with_decode_rows
from coordgen_rs.lab.papers.items import Found, Measurement, Wanted, items
from coordgen_rs.lab.tables import NOT_POSSIBLE
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import Profile

PHONE, MODEL = "Redmi K60 Pro", "Qwen2.5-1.5B"
PROFILES = {rows: f"redmi-k60-pro-qwen2.5-1.5b{name}" for rows, name in (
    (32, "-g2-32"), (64, ""), (128, "-g2-128")
)}  # fmt: skip
"""Packaged profiles by rows of their decode graph."""
STRATEGIES = ("sync", "async", "greedy", "just_in_time")

_ROWS = 64
"""A quarter of the chunk (section 3.2)."""
_PROMPT_LEN, _NEW_TOKENS = 1_024, 64
_DRAFTING_US, _CALIBRATION_US = 3_000, 2_000
"""A step, and a token of the prompt (sections 4.4 and 3.3)."""
_FIGURE_5_TOKENS = 4.2
"""Tokens per step of section 2.3."""

_TABLE_4 = {"sam": "summary, SAM, Q1.5B", "coordgen": "summary, SAM+Ours, Q1.5B"}

EAGLE_TOKENS = 5.5
"""Of a step (section 4.1)."""
EAGLE_WEIGHTS = 46.8 + 233.4
"""Millions of weights of one layer and the head of Qwen2.5-1.5B, by its config.json."""
EAGLE_SHARE = EAGLE_WEIGHTS / (28 * 46.8 + 233.4)
"""What they take of a step."""


def eagle_us(step_us_by_width: Mapping[int, float], rows: int) -> float:
    """Microseconds per token of EAGLE, as CoordGen simulates it (section 4.1).

    The target verifies `rows` rows, and a draft model of one layer and the head runs once for each
    of the 5.5 tokens that a step brings.
    """
    drafting_us = EAGLE_SHARE * step_us(step_us_by_width, 1)
    return step_us(step_us_by_width, rows) / EAGLE_TOKENS + drafting_us


def figure_8_live(wanted: Wanted) -> Iterator[Found]:
    """Figure 8 by sessions: computations of a block until decoding begins."""
    bundle = open_bundle(wanted.model)
    profile = figure_8(bundle.manifest.prefill_rows, bundle.manifest.decode_rows)
    prompt = np.zeros(2 * bundle.manifest.prefill_rows + 1, np.uint32)
    for name in STRATEGIES:
        (given,) = simulate(
            *(bundle, profile, [prompt]),
            strategy=name,
            memory_budget=_one_graph(profile),
            max_new_tokens=1,
        )
        took = 1e3 * given.makespan_ms / profile.blocks[0].prefill.compute_us
        yield Found("CoordGen Figure 8, live", name, round(took, 6), "simulated")


def _one_graph(profile: Profile) -> int:
    """Bytes of one graph of each block."""
    pairs = ((one.prefill.num_bytes, one.decode.num_bytes) for one in profile.blocks)
    return sum(map(max, pairs))


def chunk_sizes(wanted: Wanted) -> Iterator[Found]:
    """Figures 5 and 6: one graph for prefill and decoding, and steps by their rows."""
    bundle, prompt = open_bundle(wanted.model), np.zeros(257, np.uint32)
    for rows, name in PROFILES.items():
        profile = Profile.find(name)
        (given,) = simulate(
            *(with_decode_rows(bundle, rows), profile, [prompt]),
            strategy="single",
            start="decode",
            widths=[rows],
            max_new_tokens=2,
        )
        for part, ms in (
            ("prefill", given.makespan_ms / (len(prompt) - 1)),
            ("decode", given.ms_per_token / _FIGURE_5_TOKENS),
        ):
            name = f"{PHONE}, {part} at chunk {rows}, ms/token"
            why = "by Figure 6's times; the paper's Figure 5 is of the Redmi K70 Pro"
            yield Found("CoordGen Figure 5", name, ms, "simulated", why)
    bundle, profile = with_decode_rows(bundle, _ROWS), Profile.find(PROFILES[_ROWS])
    per_row = {}
    for rows in (8, _ROWS):
        (given,) = simulate(bundle, profile, [prompt], widths=[rows], max_new_tokens=2)
        per_row[rows] = given.ms_per_token / rows
    named = "throughput of 8 rows, below that of 64, %"
    below = 100 * (1 - per_row[_ROWS] / per_row[8])
    yield Found("CoordGen Figure 6", named, below, "simulated")


COLUMNS = dict(zip(VARIANTS, ("NPU", "+G", "+SD", "+G+SD", "Ours"), strict=False))
"""Columns of Table 3 by our names of them; variants without one are ours alone."""
_CPU = Variant("plain", "sync", "prefill")


def phones(wanted: Wanted) -> Iterator[Found]:
    """Table 3, and Figures 10 and 11: whole answers, prefill and switching included."""
    prompts = _filled_prompts(wanted)
    times: dict[tuple[str, str], float] = {}
    for task, prompt in prompts.items():
        is_ablated = task == ("summary" if "summary" in prompts else next(iter(prompts)))
        for name, variant in VARIANTS.items():
            if is_ablated or name in ("one graph", "+ drafts (sam)", "coordgen"):
                given = _simulated(wanted, Profile.find(PROFILES[_ROWS]), prompt, variant)
                times[task, name] = given.answer_ms_per_token
                if is_ablated:
                    why = f"{len(prompt) - 1} tokens of prompt, {_NEW_TOKENS} of answer"
                    column = COLUMNS.get(name, name)
                    cell = f"{MODEL}, {column}", times[task, name]
                    yield Found("CoordGen Table 3", *cell, "simulated", why)
                    if variant.method in _TABLE_4:
                        name = f"at Table 4's tokens per step, {column}"
                        ms = given.makespan_ms / _NEW_TOKENS + _decode_ms(variant.method)
                        yield Found("CoordGen Table 3", name, ms, "simulated", why)
        given = _simulated(wanted, _without_loads(Profile.find(PROFILES[_ROWS])), prompt, _CPU)
        times[task, "CPU vanilla"] = given.answer_ms_per_token
        decode_ms = eagle_us(Profile.find(PROFILES[_ROWS]).step_us_by_width, 32) / 1e3
        times[task, "EAGLE"] = given.makespan_ms / _NEW_TOKENS + decode_ms
    yield from _gains(
        times, has_meter=EnergyMeter.find(root=wanted.settings.power_root) is not None
    )


def eagle_memory(wanted: Wanted) -> Iterator[Found]:
    """Figure 12's drafter: a layer and the head, in float16 and float32."""
    for name, num_bytes in (("least", 2), ("most", 4)):
        why = f"a layer and the head of {MODEL} in float{8 * num_bytes}"
        gigabytes = EAGLE_WEIGHTS * num_bytes / 1e3
        named = f"EAGLE, over vanilla, {name}, GB"
        yield Found("CoordGen Figure 12", named, gigabytes, "simulated", why)


def _decode_ms(method: str) -> float:
    """Milliseconds per token with the tokens per step of Table 4, at the best width."""
    tokens = items()["CoordGen Table 4"].published[_TABLE_4[method]]
    figures = simulate_decode(
        Profile.find(PROFILES[_ROWS]).step_us_by_width,
        (4, 8, 16, 32),
        acceptance_rate=1 - 1 / (tokens or 1.0),
        drafting_us=_DRAFTING_US,
    )
    return min(width.ms_per_token for width in figures)


def _gains(times: Mapping[tuple[str, str], float], *, has_meter: bool) -> Iterator[Found]:
    """Figures 10 and 11: the least and the most over tasks."""
    tasks = list(dict.fromkeys(task for task, _ in times))
    step, formula = "a step on CPU as one of 1 row on NPU (section 2.3)", "by the formula of 4.1"
    for name, over, why in (
        ("over NPU vanilla", "one graph", ""),
        ("over SAM", "+ drafts (sam)", ""),
        ("over CPU vanilla", "CPU vanilla", step),
        ("over EAGLE", "EAGLE", formula),
    ):
        gains = {task: times[task, over] / times[task, "coordgen"] for task in tasks}
        is_measured = name in ("over NPU vanilla", "over SAM")
        shown = f"{PHONE}, {name}" if is_measured else name
        yield from _spread("CoordGen Figure 10", shown, gains.values(), why)
        if not is_measured and "summary" in gains:
            yield from _spread("CoordGen Figure 10", f"summary, {name}", [gains["summary"]], why)
        if over != "CPU vanilla":
            shown = f"{PHONE}, {name}" if has_meter else name
            same = "; ".join(filter(None, ("at the same power, the gain in time", why)))
            yield from _spread("CoordGen Figure 11", shown, gains.values(), same)
    no_power = "the paper tells the power of none of its phones"
    for name in (
        *("over CPU vanilla, least", "over CPU vanilla, most"),
        *(f"{MODEL}, first phone, J a request", f"{MODEL}, second phone, J a request"),
    ):
        yield Found("CoordGen Figure 11", name, None, NOT_POSSIBLE, no_power)


def _spread(item: str, name: str, gains: Iterable[float], why: str) -> Iterator[Found]:
    known = [*gains]
    yield Found(item, f"{name}, least", min(known), "simulated", why)
    yield Found(item, f"{name}, most", max(known), "simulated", why)


def _filled_prompts(wanted: Wanted) -> dict[str, NDArray[np.uint32]]:
    """A prompt of each task, with others of the task before it."""
    session = wanted.bench().session
    most = min(_PROMPT_LEN + 1, session.capacity - _NEW_TOKENS)
    read = read_prompts(wanted.data) if wanted.data is not None else []
    encoded = encode_prompts(session, read, _NEW_TOKENS)
    return {task: np.concatenate(of_task[::-1])[-most:] for task, of_task in encoded.items()}


def _simulated(
    wanted: Wanted, profile: Profile, prompt: NDArray[np.uint32], variant: Variant
) -> SimulatedAnswer:
    """An answer under a variant, switched within the memory of one graph of each block."""
    (given,) = simulate(
        with_decode_rows(open_bundle(wanted.model), profile.decode_rows),
        profile,
        [prompt],
        strategy=variant.switch,
        memory_budget=_one_graph(profile),
        start=variant.start,
        method=variant.method,
        max_new_tokens=_NEW_TOKENS,
        drafting_us=_DRAFTING_US,
        calibration_us=_CALIBRATION_US if variant.method == "coordgen" else 0,
    )
    return given


def _without_loads(profile: Profile) -> Profile:
    """A profile of another processor's decode graph, which is in memory all along."""
    blocks = [replace(block, decode=replace(block.decode, load_us=0.0)) for block in profile.blocks]
    return replace(profile, blocks=blocks)


MEASUREMENTS = (
    Measurement(("CoordGen Figure 8, live",), figure_8_live, needs=()),
    Measurement(("CoordGen Figure 5", "CoordGen Figure 6"), chunk_sizes, needs=()),
    Measurement(("CoordGen Figure 12",), eagle_memory, needs=()),
    Measurement(("CoordGen Table 3", "CoordGen Figure 10", "CoordGen Figure 11"), phones),
)

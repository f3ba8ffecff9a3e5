"""What the papers' own numbers say of each other: arithmetic on what they print.

In: the published figures (`items`), and a few numbers that stand in their text alone, as they are
written there. Out: remarks, each with what comes out and what the paper has for it. Nothing is
measured.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from coordgen_rs.lab.loads.plans import plan_prompt
from coordgen_rs.lab.papers.items import items
from coordgen_rs.lab.papers.phone import EAGLE_TOKENS, MODEL, PROFILES, eagle_us
from coordgen_rs.loading.profile import Profile


class Remark(NamedTuple):
    """What numbers of a paper give together.

    Attributes:
        paper: The paper.
        places: Where the numbers stand.
        name: What is computed of them, and how.
        figure: What comes out.
        published: What the paper has for it; None where it has nothing, or a word.
    """

    paper: str
    places: str
    name: str
    figure: float
    published: float | None = None


def told(item: str, name: str) -> float:
    """A published figure.

    Raises:
        KeyError: There is none of that name.
    """
    figure = items()[item].published[name]
    if figure is None:
        raise KeyError(name)
    return figure


def remarks() -> list[Remark]:
    """All remarks, in the order of the papers."""
    return [
        *(Remark("CoordGen", *one) for one in _coordgen()),
        *(Remark("EdgeLLM", *one) for one in _edgellm()),
        *(Remark("DIAA", *one) for one in _diaa()),
    ]


_Line = tuple[str, str, float] | tuple[str, str, float, float | None]


def _coordgen() -> Iterator[_Line]:
    yield from _steps()
    yield from _switching()
    yield from _shares()


def _steps() -> Iterator[_Line]:
    """What a step takes: Figures 5 and 6 beside Tables 3 and 4."""
    table = {
        name: told("CoordGen Table 3", f"{MODEL}, {name}")
        for name in ("NPU", "+G", "+SD", "+G+SD", "Ours")
    }
    place = "Table 3"
    yield place, "+G saves without drafts, ms/token: NPU - (+G)", table["NPU"] - table["+G"]
    saved = table["+SD"] - table["+G+SD"]
    yield place, "+G saves with drafts, ms/token: no step gets quicker", saved
    sam, ours = (
        told("CoordGen Table 4", f"summary, {name}, Q1.5B") for name in ("SAM", "SAM+Ours")
    )
    step_ms = (table["+G"] - table["+G+SD"]) / (1 - 1 / sam)
    share = table["+G"] - step_ms
    place = "Tables 3, 4"
    yield place, "a step, ms: s of p + s = (+G), p + s/3.60 = (+G+SD)", step_ms
    yield place, "prefill and switching, ms/token: p", share
    yield place, "Ours, ms/token: p + s/4.21", share + step_ms / ours, table["Ours"]
    gain = table["+G+SD"] / table["Ours"]
    most = told("CoordGen Table 4, gains", "SAM, most")
    yield place, "Ours over +G+SD; beside it the most that Table 4 gains", gain, most
    one, last = told("CoordGen Figure 6", "step of 1 row, ms/row"), 32 * 5.7
    yield (
        "Figure 6, Table 3",
        "a step of 32 rows at 4.21 tokens, ms/token",
        last / ours,
        table["Ours"],
    )
    slope = (last - one) / 31
    of_8, of_64 = (one + (rows - 1) * slope for rows in (8, 64))
    lost = 100 * (1 - (8 / of_8) / (64 / of_64))
    yield "1, Figure 6", "throughput of 8 rows below that of 64, on Figure 6's line, %", lost, 50
    speed = 256e3 / (one + 255 * slope)
    yield "2.1, Figure 6", "prefill by 256 rows, on Figure 6's line, tokens/s", speed, 1_000
    per_run = 32 * told("CoordGen Figure 5", "prefill at chunk 32, ms/token")
    decoding = told("CoordGen Figure 5", "decode at chunk 32, ms/token")
    yield (
        "Figure 5",
        "a run of 32 rows by its prefill, ms; by 160 ms x 4.2",
        per_run,
        4.2 * decoding,
    )


def _switching() -> Iterator[_Line]:
    """What loads take, and what hides them, by the packaged profiles."""
    prefill_s, decoding = 2, told("CoordGen Figure 1", "decoding, share of inference, %") / 100
    load_s = 0.949 * prefill_s / (1 - decoding)
    yield "1", "loads, s: 94.9 % of the latency, of which a prefill of 2 s is 26.5 %", load_s
    yield "1", "what of these loads a prefill of 2 s can hide, %", 100 * prefill_s / load_s, 100
    for rows in (64, 128):
        profile = Profile.find(PROFILES[rows])
        pieces = profile.prefill_rows // rows
        chunk_us = sum(one.prefill.compute_us for one in profile.blocks)
        times = pieces * profile.step_us_by_width[rows] / chunk_us
        yield "2.1, 3.2", f"a chunk in pieces of {rows} rows, times its own graph", times
    for rows, profile in ((rows, Profile.find(name)) for rows, name in PROFILES.items()):
        for kind, instance in (("94.9 % of 2 s", profile), ("two blocks", _loads_of_two(profile))):
            for strategy in ("sync", "greedy"):
                plan = plan_prompt(instance, 1_024, strategy=strategy)
                name = f"{strategy}, 1,024 tokens, G2 of {rows} rows, loads of {kind}, ms"
                yield "1, 2.1, Figures 6, 8", name, plan.makespan_us / 1e3


def _loads_of_two(profile: Profile) -> Profile:
    """A profile whose loads take as long as two blocks' chunks, as Figure 8 supposes."""
    blocks = [
        replace(one, decode=replace(one.decode, load_us=2 * one.prefill.compute_us))
        for one in profile.blocks
    ]
    return replace(profile, blocks=blocks)


def _shares() -> Iterator[_Line]:
    """What the parts of an answer allow."""
    share = told("CoordGen Figure 13", "decoding of vanilla, most, %") / 100
    most = told("CoordGen Figure 13", "decoding reduced, most")
    place, claimed = "Figures 10, 13", told("CoordGen Figure 10", "over NPU vanilla, most")
    yield place, "speedup, if decoding, 74 % of the time, took none", 1 / (1 - share), claimed
    yield place, "speedup, if decoding took 1/8.15", 1 / (1 - share + share / most), claimed
    yield "2.1, 3.3", "calibration of 1,024 tokens at 2 ms, times their prefill", 2 * 1_024 / 1_024
    steps = Profile.find(PROFILES[32]).step_us_by_width
    least = told("CoordGen Figure 10", "over EAGLE, most") * told(
        "CoordGen Table 3", f"{MODEL}, Ours"
    )
    name = "EAGLE, ms/token: (a step of 32 rows)/5.5 + one layer and head; 1.80 x Ours"
    yield "4.1, 4.2, Figure 6", name, eagle_us(steps, 32) / 1e3, least
    name = "of it the verification alone, ms/token"
    yield "4.1, Figure 6", name, steps[32] / EAGLE_TOKENS / 1e3


def _edgellm() -> Iterator[_Line]:
    g, v, p = (told("EdgeLLM Figure 20", f"LLaMA-2, {name}, s") for name in "GVP")
    right = 1 - told("EdgeLLM Figure 21", "verifications with an error, least, %") / 100
    drafting = g * v / p
    gain = (v + drafting) / (v + drafting - right * drafting)
    most = told("EdgeLLM Figure 22", "provisional (PP), most")
    name = "provisional generation, LLaMA-2: V/P tokens for nothing in 47.2 % of verifications"
    yield "Figures 20, 21, 22", name, gain, most
    parts = [
        told("EdgeLLM Figure 22", f"{name}, least") for name in ("branches (BNV)", "fallback (SF)")
    ]
    least = told("EdgeLLM Figure 16", "over SP, least")
    name = "over SP by branches and fallback, least: 1.4 x 1.08; Figure 16's least"
    yield "Figures 16, 22", name, parts[0] * parts[1], least
    for end in ("least", "most"):
        tokens = told("EdgeLLM Figure 21", f"tokens for a long wait, {end}")
        waits = told("EdgeLLM Figure 21", f"verifications for a long wait, {end}")
        drafted = told("EdgeLLM Figure 10", f"tokens drafted for a verification, {end}")
        yield "Figures 10, 21", f"tokens for a verification, {end}", tokens / waits, drafted
    slower = told("EdgeLLM Figure 20", "mT5, P, s") / told("EdgeLLM Figure 20", "mT5, G, s")
    yield "IV-G", "mT5, P over G; in the text of mT5", slower, 1.92
    most = told("EdgeLLM Figure 20", "V over G, most")
    yield "IV-C, Figure 20", "a verification over a draft step, most; in IV-C over", most, 100


_TASKS = ("Sum", "Math", "MT", "QA", "RAG", "Trans")


def _diaa() -> Iterator[_Line]:
    table, tables = "DIAA Table 1", "Tables 1, 2"
    for method in ("SpS", "SWIFT", "SAM-D", "TR", "DIAA"):
        ratios = [
            told(table, f"7B, Vanilla, {task}, ms") / told(table, f"7B, {method}, {task}, ms")
            for task in _TASKS
        ]
        name = f"{method}, 7B, by latency, as the text defines it and the others are"
        yield tables, name, fmean(ratios), told("DIAA Table 2", f"{method}, 7B")
    mean = {
        name: fmean(told("DIAA Table 3", f"{task}, {name}, tokens/s") for task in _TASKS)
        for name in ("w/o CO", "DIAA")
    }
    hidden = sum(told("DIAA Figure 10", f"update of the {name}, %") for name in ("tree", "tables"))
    name = "the most that overlap can gain: 100 / (100 - 0.15 - 2.7); Table 3's gain"
    yield "Table 3, Figure 10", name, 100 / (100 - hidden), mean["DIAA"] / mean["w/o CO"]
    name = "1B, SAM-D, QA, tokens/s: 1000 / 45.64 ms"
    speed = 1e3 / told(table, "1B, SAM-D, QA, ms")
    yield "Table 1", name, speed, told(table, "1B, SAM-D, QA, tokens/s")

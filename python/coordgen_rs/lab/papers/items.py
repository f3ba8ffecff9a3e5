"""What the papers publish (`published.toml`), what is found beside it, and what it is found with.

In: a model, and perhaps a draft model and prompts. Out: a `Row` for each published figure and for
each of ours, with how ours came about, or why there is none.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN, draft_method
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.bench.workbench import Settings, Tallies, Workbench, tallied
from coordgen_rs.lab.tables import NOT_POSSIBLE, How

PAPERS = ("CoordGen", "EdgeLLM", "DIAA")
"""The papers; the name of an item begins with its paper's."""

NOT_MEASURED = "of another model, or of a task without prompts"
NEEDS_DATA = "needs prompts: --data"
NEEDS_DRAFT = "needs a draft model: --draft-model"
ONLY_FULL = "takes long: only with --full"

ABSENT = {
    "Std": "loads go on beside computing here, as in SPL",
    "STI|BLD": "it loses tokens, so it is not built",
    "SI": "it has several tuned draft models, so it is not built",
    "SWIFT": "it skips sub-layers within a pass, and a block is one graph here",
    "EAGLE on CPU": "the paper has no times of a CPU's step of several rows",
    "EAGLE": "a trained draft head, which there is none of for these models",
    "Redmi K70 Pro": "the paper has two times of this phone, which contradict each other",
    "loading beside drafting": "loads wait on a timer here, which drafting does not slow down",
    "Qwen2.5-0.5B|LLaMA3.2-3B": "the paper tells no times of this model but its results",
    "CPU vanilla": "one processor for prefill and decoding here, as in NPU vanilla",
    "w/o CO": "nothing is computed elsewhere here: see the bound beside the overlap of computation",
    "mT5|mT5-small": "the paper's model, an encoder-decoder",
    "GPT2": "the paper's model, an architecture that is not exported",
    "LLaMA-2": "the paper's model, too large here",
    "Qwen2.5-1.5B": "the paper's model on its phones: ours is below",
    "vocabulary of 128,256": ONLY_FULL,
    "Redmi|phone|Xiaomi|Orin|TX2|A100": "the paper's device",
}
"""Words of names of figures that are not measured, and why."""


class Item(NamedTuple):
    """An equation, an algorithm, a table or a figure.

    Attributes:
        place: The section of the paper.
        published: Its figures by name; None where the text has none.
        grid: The names of its rows and columns, which are joined to those of figures; or none.
        derived: Names of figures that are read off a rule or a picture, not printed in the text.
        why: Why nothing is measured for it, where nothing is.
    """

    place: str
    published: dict[str, float | None]
    grid: tuple[list[str], list[str]]
    derived: tuple[str, ...]
    why: str


@cache
def items() -> dict[str, Item]:
    """All items by name, in the order of the papers."""
    text = resources.files(__package__).joinpath("published.toml").read_text("utf-8")
    found = {}
    for name, of in tomllib.loads(text).items():
        grid = of.get("grid", {"rows": [], "columns": []})
        derived = tuple(of.get("derived", ()))
        found[name] = Item(
            *(of["place"], dict(_published(of)), (grid["rows"], grid["columns"]), derived),
            why=of.get("why", ""),
        )
    return found


def _published(item: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name, *figure in item.get("rows", ()):
        yield name, figure[0] if figure else None
    grid = item.get("grid", {"rows": (), "values": ()})
    for row, values in zip(grid["rows"], grid["values"], strict=True):
        for column, value in zip(grid["columns"], values, strict=True):
            yield f"{row}, {column}", value


class Found(NamedTuple):
    """A figure of ours, or why there is none.

    Attributes:
        item: Where it belongs.
        name: That of the published figure beside it, or one of its own.
        ours: The figure.
        how: How it came about.
        why: Why there is none, or what must be known of it.
    """

    item: str
    name: str
    ours: float | None
    how: How = "measured"
    why: str = ""


@dataclass(frozen=True)
class Row:
    """A published figure and ours; one line of the page."""

    paper: str
    item: str
    name: str
    published: float | None
    ours: float | None
    how: How
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row without its reason, which stands apart."""
        return {name: value for name, value in asdict(self).items() if name != "why"}


def rows_of(name: str, found: Iterable[Found], why: str = "") -> list[Row]:
    """The rows of an item: its published figures in order, then those of ours that have none.

    Args:
        name: The item's.
        found: What was found for it.
        why: Why nothing was, if so; in place of the item's own reason.
    """
    item, by_name = items()[name], {one.name: one for one in found}
    whole = why or item.why or (NOT_MEASURED if by_name else "not measured")
    rows = []
    for known in dict.fromkeys((*item.published, *by_name)):
        words = (of for of in ABSENT if re.search(rf"\b({of})\b", known))
        reason = next((ABSENT[of] for of in words), whole)
        one = by_name.get(known, Found(name, known, None, NOT_POSSIBLE, reason))
        how = NOT_POSSIBLE if one.ours is None else one.how
        figure = item.published.get(known)
        rows.append(Row(name.split()[0], name, known, figure, one.ours, how, one.why))
    return rows


@dataclass(frozen=True)
class Wanted:
    """What is measured with; paths as given."""

    model: Path
    draft_model: Path | None
    data: Path | None
    is_full: bool
    threads: int | None

    @property
    def settings(self) -> Settings:
        """Those of the bench: two prompts a task, and short answers unless all is asked for."""
        tokens, repeats = (64, 3) if self.is_full else (40, 1)
        return Settings(
            *(self.model, self.data),
            repeats=repeats,
            max_new_tokens=tokens,
            limit=2,
            draft_model=self.draft_model,
            threads=self.threads,
            prompt_len=512 if self.is_full else 256,
        )

    def bench(self, **changes: Any) -> Workbench:
        """An open workbench with these settings, but for the changes."""
        return _opened(replace(self.settings, **changes))

    def tallies(self, names: Iterable[str], repeats: int | None = None, **changes: Any) -> Tallies:
        """The sums of plain decoding, and of the methods of `names` that there are."""
        bench = self.bench(**changes)
        known = [PLAIN, *(name for name in names if name != PLAIN and not self.lack(name))]
        return tallied(bench.answers(known, bench.drafter, repeats=repeats))

    def lack(self, method: str) -> str:
        """Why a method cannot be measured; nothing where it can be."""
        if method == PLAIN:
            return ""
        try:
            needs_model = draft_method(method).needs_draft_model
        except OptionError:
            return f"there is no method {method}"
        return NEEDS_DRAFT if needs_model and self.draft_model is None else ""

    def other_texts(self, bench: Workbench) -> list[NDArray[np.uint32]]:
        """Prompts that no method answers: those behind the first of each task."""
        if self.data is None:
            return []
        encoded = encode_prompts(bench.session, read_prompts(self.data), 0)
        most = self.settings.limit
        return [prompt for of_task in encoded.values() for prompt in of_task[most:]]

    def beside(self, sizes: Iterable[str]) -> str:
        """The model of a paper that the measured one stands beside: its size, or the smallest."""
        by_size = {float(_billions(size)): size for size in sizes}
        own = float(_billions(self.model.resolve().name))
        return by_size.get(own, by_size[min(by_size)])


def _billions(name: str) -> str:
    found = re.search(r"(\d+(?:\.\d+)?)B(?![a-z])", name, re.IGNORECASE)
    return "0" if found is None else found[1]


@lru_cache(maxsize=1)
def _opened(settings: Settings) -> Workbench:
    return Workbench.open(settings)


class Measurement(NamedTuple):
    """What is measured at once.

    Attributes:
        items: The items that it finds figures for.
        find: Finds them.
        only_full: Whether it takes long.
        needs: What it needs beside a model: "data", "draft_model".
    """

    items: tuple[str, ...]
    find: Callable[[Wanted], Iterator[Found]]
    only_full: bool = False
    needs: tuple[str, ...] = ("data",)

    def lack(self, wanted: Wanted) -> str:
        """Why it cannot be made; nothing where it can be."""
        if self.only_full and not wanted.is_full:
            return ONLY_FULL
        reasons = {"data": NEEDS_DATA, "draft_model": NEEDS_DRAFT}
        return next((reasons[name] for name in self.needs if getattr(wanted, name) is None), "")

    @property
    def name(self) -> str:
        """The name of what it finds, for messages and tables."""
        return ", ".join(self.items)

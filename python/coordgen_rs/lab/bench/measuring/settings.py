"""What was asked for of the bench: settings that travel to other processes, too.

In: the options of `coordgen bench`. Out: `Settings`, which refuse what cannot work.
"""

from dataclasses import dataclass, field
from pathlib import Path

from coordgen_rs._core import PLAIN, draft_method, draft_methods
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.lab.bench.measuring.switching import STRATEGIES
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS

MOST_LOAD_DELAY_S = 3_600.0

METHODS = (PLAIN, *(method.name for method in draft_methods()))
"""Every method that can be measured, plain decoding first."""


MTP = "mtp"
"""The method that drafts with the target's own head alone, where it has one."""


def needs_draft_model(name: str) -> bool:
    """Whether one of `METHODS` drafts from nothing but a draft model."""
    if name == PLAIN:
        return False
    method = draft_method(name)
    return method.needs_draft_model and not method.takes_mtp


@dataclass(frozen=True)
class Settings:
    """What was asked for.

    Attributes:
        bundle: The target's directory.
        data: A file of prompts; None where only sections are wanted that need none.
        repeats: Times that everything is measured; medians are of so many.
        max_new_tokens: Longest answer.
        ignore_eos: Whether every answer is that long, whatever end tokens it holds.
        limit: Prompts of each task, at most; None for all.
        methods: Methods of the section `methods`; empty for all that can run.
        draft_model: A bundle, for the methods that have one.
        lookup_table: What a look-up table starts with; None for an empty one.
        remembering: Whether earlier prompts of a task may be drawn on.
        is_free: Whether drafts are made as if rows cost nothing, as on an NPU.
        width: Rows of a step, at most; None for all widths of the bundle.
        threads: Compute threads; None takes one a core.
        provider: What runs it.
        memory_budget: Bytes of graphs and experts: the target keeps to it and is streamed. In the
            section `switching` it binds the strategies.
        kv_cache: How keys and values are held, also of the draft model.
        prompt_len: Tokens of the prompt of the sections that have one of their own.
        strategies: Strategies of the section `switching`.
        load_delay_s: Seconds added to each load of a block: in the section `switching`, and
            wherever the target is streamed.
        pin_loads: Whether loads have a core of their own where the target is streamed.
        profile: What the blocks cost, for plans; None measures it.
        power_root: Where sysfs is mounted, which tells the power.
    """

    bundle: Path
    data: Path | None = None
    repeats: int = 5
    max_new_tokens: int = 96
    ignore_eos: bool = False
    limit: int | None = None
    methods: tuple[str, ...] = ()
    draft_model: Path | None = None
    lookup_table: Path | None = None
    remembering: bool = True
    is_free: bool = False
    width: int | None = None
    threads: int | None = None
    provider: ProviderChoice = field(default_factory=ProviderChoice)
    memory_budget: int | None = None
    kv_cache: str = KV_FORMS[0]
    prompt_len: int = 512
    strategies: tuple[str, ...] = STRATEGIES
    load_delay_s: float = 0.0
    pin_loads: bool = False
    profile: str | None = None
    power_root: Path = Path("/sys")

    def check(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            OptionError: A number is out of its range, there is no such method or strategy, or a
                method needs a draft model where there is none; it is named.
        """
        least = {"repeats": 1, "max_new_tokens": 1, "limit": 1, "width": 1, "prompt_len": 2}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None:
                arguments.count(name, value, least=number)
        arguments.number("load_delay_s", self.load_delay_s, least=0, most=MOST_LOAD_DELAY_S)
        arguments.one_of("kv_cache", self.kv_cache, KV_FORMS)
        for strategy in self.strategies:
            arguments.one_of("strategy", strategy, STRATEGIES)
        for name in self.methods:
            if name not in METHODS:
                raise OptionError(f"method is {name!r}, but must be one of {', '.join(METHODS)}")
            if self.draft_model is None and needs_draft_model(name):
                raise OptionError(f"method {name!r} needs a draft model")

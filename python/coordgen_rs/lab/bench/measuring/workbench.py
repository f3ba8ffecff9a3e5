"""What all sections of the bench measure with: an open session, encoded prompts, methods in turn.

In: settings. Out: a `Workbench`, which answers every prompt by
every method in turn, and compares the tokens on the way.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN, Drafter, LookupTable, draft_method
from coordgen_rs.drafting.draft_model import DraftModel, ModelDrafter
from coordgen_rs.drafting.drafter import make_drafter
from coordgen_rs.drafting.proposer import DraftProposer
from coordgen_rs.drafting.warm_up import open_table
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.measuring.answers import Answered, answer, check_same
from coordgen_rs.lab.bench.measuring.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.bench.measuring.repeats import rotated
from coordgen_rs.lab.bench.measuring.settings import METHODS, MTP, Settings, needs_draft_model
from coordgen_rs.lab.bench.measuring.slow_loads import keep_a_core, slow_loads
from coordgen_rs.lab.bench.reporting.section import How
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.ort_session import OrtSession

OnProgress = Callable[[str, int, int], None]

SHOWN = (PLAIN, "sam", "coordgen")
"""The methods of the sections that look into an answer: those of the papers' figures."""


_D = TypeVar("_D", bound=DraftProposer | None)


class Given(NamedTuple, Generic[_D]):
    """One answer of one method.

    Attributes:
        repeat: Number of the repeat, from 0.
        task: The prompt's task.
        method: Its name.
        drafter: What drafted; None for plain decoding.
        answered: The answer.
    """

    repeat: int
    task: str
    method: str
    drafter: _D
    answered: Answered


class Workbench:
    """An open session, prompts, and the methods to answer them by.

    Args:
        settings: What was asked for.
        session: The target.
        prompts: Encoded, by task.
        draft_model: The draft model, for the methods that have one.
        on_progress: Called with what is being done, how much of it is, and how much there is.
    """

    def __init__(
        self,
        settings: Settings,
        session: OrtSession,
        prompts: dict[str, list[NDArray[np.uint32]]],
        draft_model: DraftModel | None = None,
        on_progress: OnProgress = lambda what, done, total: None,
    ) -> None:
        self.settings, self.session, self.prompts = settings, session, prompts
        self.draft_model, self.on_progress = draft_model, on_progress
        self.costs = None if settings.is_free else session.step_costs
        self._open_table: Callable[[], LookupTable] = LookupTable
        if settings.lookup_table is not None:
            self._open_table = partial(open_table, settings.lookup_table, session.bundle)

    @classmethod
    def open(
        cls, settings: Settings, on_progress: OnProgress = lambda what, done, total: None
    ) -> Self:
        """Open the bundle, the draft model and the prompts.

        Raises:
            OptionError: A setting cannot be, or no prompt leaves room for an answer.
            PromptsError: The file of prompts cannot be used.
            BundleError, ProviderError, MemoryBudgetError, DraftModelError: See `open_session`,
                `DraftModel.open`.
        """
        settings.check()
        prompts = [] if settings.data is None else read_prompts(settings.data, limit=settings.limit)
        core = keep_a_core() if settings.pin_loads else None
        session = open_session(
            settings.bundle,
            threads=settings.threads,
            width=settings.width,
            memory_budget=settings.memory_budget,
            kv_cache=settings.kv_cache,
            provider=settings.provider,
            on_progress=on_progress,
        )
        if settings.memory_budget is not None and (settings.load_delay_s or settings.pin_loads):
            slow_loads(session, settings.load_delay_s, core)
        encoded = encode_prompts(session, prompts, settings.max_new_tokens)
        if prompts and not encoded:
            raise OptionError(
                f"no prompt of {settings.data} leaves room for {settings.max_new_tokens} new tokens"
            )
        model = None
        if settings.draft_model is not None:
            model = DraftModel.open(settings.draft_model, session)
            if settings.is_free:
                model = DraftModel(model.session)
        return cls(settings, session, encoded, model, on_progress)

    @property
    def how(self) -> How:
        """Whether times are this machine's own."""
        return "simulated" if self.session.device.is_emulator() else "measured"

    @property
    def methods(self) -> tuple[str, ...]:
        """Plain decoding, and what was asked for beside it, or else all that can run.

        All methods leave out the target's own head where it has none.
        """
        lacks = set[str]() if self.session.bundle.manifest.has_draft_head else {MTP}
        if self.draft_model is None:
            lacks |= {name for name in METHODS if needs_draft_model(name)}
        asked = self.settings.methods or [name for name in METHODS if name not in lacks]
        if set(METHODS) <= set(asked):
            asked = [name for name in asked if name not in lacks]
        return tuple(dict.fromkeys((PLAIN, *asked)))

    @property
    def num_prompts(self) -> dict[str, int]:
        """Prompts of each task."""
        return {task: len(of_task) for task, of_task in self.prompts.items()}

    def drafter(self, name: str) -> Drafter | ModelDrafter | None:
        """A new drafter of a method; None for plain decoding."""
        if name == PLAIN:
            return None
        model = self.draft_model if name != MTP else None
        if model is not None:  # a tree of its own for each method, which learns when it is enough
            model = DraftModel(model.session, least_that_pays=model.least_that_pays)
        method = draft_method(name)
        sources = method.sources(
            free_rows=self.costs is None,
            draft_model=model is not None or method.takes_mtp,
            earlier_requests=self.settings.remembering,
        )
        return make_drafter(
            self.session,
            name,
            lookup_table=self._open_table() if "lookup-table" in sources else None,
            draft_model=model if "draft-model" in sources else None,
            earlier_requests=self.settings.remembering,
            free_rows=self.settings.is_free,
        )

    def answers(
        self,
        names: Sequence[str],
        drafter_of: Callable[[str], _D],
        before: Callable[[str], object] = lambda name: None,
    ) -> Iterator[Given[_D]]:
        """Answer every prompt by every method, in turns, so that a slow moment slows all.

        A method has a new drafter for each task and repeat, which serves all prompts of the task,
        one after another: it learns, and remembers where it may.

        Args:
            names: The names of the methods.
            drafter_of: Makes the drafter of one; `drafter` where nothing is to be added.
            before: Called with the method before each of its answers.

        Raises:
            NotLosslessError: A method gave other tokens than the one before it.
        """
        expected: dict[tuple[str, int], list[int]] = {}
        total = self.settings.repeats * sum(self.num_prompts.values())
        done = 0
        self.warm_up()
        for repeat in range(self.settings.repeats):
            for task, prompts in self.prompts.items():
                drafters = {name: drafter_of(name) for name in names}
                for number, prompt in enumerate(prompts):
                    self.on_progress(f"{task}, {', '.join(names):.40}", done, total)
                    for name in rotated(names, repeat + number):
                        before(name)
                        answered = self.answer(prompt, drafters[name])
                        same = expected.setdefault((task, number), answered.tokens)
                        check_same(answered.tokens, same, name, task, number)
                        yield Given(repeat, task, name, drafters[name], answered)
                    done += 1

    def answer(self, prompt: NDArray[np.uint32], drafter: DraftProposer | None) -> Answered:
        """One answer, as long as the settings allow."""
        limit, ignore_eos = self.settings.max_new_tokens, self.settings.ignore_eos
        return answer(self.session, prompt, drafter, max_new_tokens=limit, ignore_eos=ignore_eos)

    def warm_up(self) -> None:
        """Answer a prompt that does not count: the first run of a graph takes longer."""
        for prompts in list(self.prompts.values())[:1]:
            self.answer(prompts[0], None)

"""The decoding loop that `generate` is given, for one request after the other."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import ROWS, HostStep, StepCosts, generate, make_drafter
from coordgen_rs.adapters.transformers.arguments import (
    given_cache,
    hand_on_what_was_given,
    refuse_what_is_not_done,
)
from coordgen_rs.adapters.transformers.host import TransformersHost, draftable_len
from coordgen_rs.errors import OptionError, arguments

if TYPE_CHECKING:
    import torch

_Answer = TypeVar("_Answer")

_MEASURED_LEN = 160
_CHANGED = 1.25
"""How far a step's cost, compared with that of one row, may move before drafts reckon anew."""


class _Reckoned(NamedTuple):
    """A drafter, and the costs that it reckons with."""

    drafter: HostDrafter
    costs: Sequence[float] | None


class Drafted:
    """A decoding loop for `generate(custom_generate=..)`; keep one to keep what it learned.

    What it learns is kept for each model: what its sources are worth, and what steps cost, which is
    measured now and then as long as it is used. Use one for each thread.

    Args:
        trees: Whether to verify trees, or chains.
        rows: Rows that a step may have, ascending.
        costs: Cost of a step of each; "measured" measures them, at a model's first request and
            between steps of later ones, None where rows are free, as on a GPU.
        history: Finished requests to draft from; new ones are added to it.

    Attributes:
        num_steps: Runs of the model in the last request, the prompt's left out, and those that
            measured costs.

    Raises:
        OptionError: `costs` is a word other than "measured".
    """

    def __init__(
        self,
        *,
        trees: bool = True,
        rows: Sequence[int] = ROWS,
        costs: Sequence[float] | str | None = "measured",
        history: SharedHistory | None = None,
    ) -> None:
        if isinstance(costs, str):
            arguments.one_of("costs", costs, ("measured",))
        self._trees, self._rows, self._costs, self._history = trees, rows, costs, history
        self._drafters: WeakKeyDictionary[Any, dict[tuple[int, ...], _Reckoned]]
        self._drafters = WeakKeyDictionary()
        self._measured: WeakKeyDictionary[Any, StepCosts] = WeakKeyDictionary()
        self._last_costs: StepCosts | None = None
        self._at_work = dict[int, object]()  # under 0, if a request is
        self.num_steps = 0
        hand_on_what_was_given(Drafted)

    @property
    def costs(self) -> dict[int, float] | None:
        """Rows to what a step of so many costs: in microseconds, as last measured, or as given.

        None where rows are free, or nothing was measured yet. Of several models, the last one's.
        """
        costs = self._costs if self._last_costs is None else self._last_costs.us
        if costs is None or isinstance(costs, str):
            return None
        return dict(zip(self._rows, costs, strict=True))

    def __call__(
        self,
        model: Any,
        input_ids: "torch.Tensor",
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        synced_gpus: bool = False,
        streamer: Any = None,
        tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> "torch.Tensor":
        """Generate, and return the request's tokens, prompt included, `(1, tokens) i64`.

        The tokenizer is not used: stopping criteria have it.

        Raises:
            OptionError: Something is asked for that this loop does not do, by name; or another
                thread is in it.
            EmptyPromptError, PromptTooLongError, TokenOutOfRangeError: The prompt cannot be used.
        """
        config = generation_config or model.generation_config
        given = {**model_kwargs, "synced_gpus": synced_gpus}
        refuse_what_is_not_done(model, input_ids, config, given)
        until = draftable_len(model.config, config.max_length)
        cache = given_cache(model_kwargs)
        host = TransformersHost(
            model,
            logits_processor=logits_processor,
            do_sample=bool(config.do_sample),
            takes_trees=self._trees,
            capacity=config.max_length,
            cache=cache if getattr(cache, "_is_user_defined", False) else None,
        )
        said = self._alone(
            lambda: self._answer(model, host, input_ids, config, until, stopping_criteria, streamer)
        )
        if self._history is not None:
            self._history.remember(said[0].cpu().numpy().astype(np.uint32))
        if streamer is not None:
            streamer.end()
        return said

    def _answer(
        self,
        model: Any,
        host: TransformersHost,
        said: "torch.Tensor",
        config: Any,
        until: int,
        stopping_criteria: Any,
        streamer: Any,
    ) -> "torch.Tensor":
        """The prompt and its answer; the cache then holds all tokens but the last."""
        ends = _end_token_ids(config)
        steps = generate(
            host,
            said[0].cpu().numpy(),
            drafter=self._drafter_of(model, host, ends),
            max_new_tokens=config.max_length - said.shape[1],
            end_token_ids=ends,
            draft_until=until,
        )
        try:
            measured = self._measuring(steps, model, host, said.shape[1], until)
            for text in self._texts(measured, said, stopping_criteria, streamer):
                said = text
        finally:
            steps.close()
            host.cut(said.shape[1] - 1)
        return said

    def _measuring(
        self,
        steps: Iterator[HostStep],
        model: Any,
        host: TransformersHost,
        text_len: int,
        until: int,
    ) -> Iterator[HostStep]:
        """The steps; between two of them, what steps cost is measured now and then."""
        costs = self._measured.get(model)
        for step in steps:
            yield step
            text_len += len(step.token_ids)
            has_room = text_len - 1 + max(self._rows) <= min(until, host.capacity)
            if costs is not None and costs.count_step() and has_room:
                costs.measure(host, np.array(step.token_ids, np.uint32), host.scores)

    def _texts(
        self, steps: Any, said: "torch.Tensor", stopping_criteria: Any, streamer: Any
    ) -> Iterator["torch.Tensor"]:
        """The text after each token, up to the one at which a criterion ends it."""
        import torch

        self.num_steps = 0
        for self.num_steps, step in enumerate(steps):
            for token in step.token_ids:
                new = torch.tensor([token], device=said.device)
                said = torch.cat([said, new[None]], dim=1)
                yield said
                ends = stopping_criteria and bool(stopping_criteria(said, None).all())
                if streamer is not None:
                    streamer.put(new.cpu())
                if ends:
                    return

    def _alone(self, request: Callable[[], _Answer]) -> _Answer:
        """Answer a request, and refuse a second one meanwhile: they would share a drafter.

        Raises:
            OptionError: Another thread, or a callback, is in a request.
        """
        mine = object()
        # One call begins, and one ends: an interrupt between a lock and its `try` would leave it,
        # and one within a context manager would, too, as long as its traceback is kept.
        try:
            if self._at_work.setdefault(0, mine) is not mine:
                raise OptionError(
                    "this Drafted is answering another request: use one for each thread"
                )
            return request()
        finally:
            if 0 in self._at_work and self._at_work[0] is mine:
                self._at_work.clear()

    def _drafter_of(
        self, model: Any, host: TransformersHost, end_token_ids: set[int]
    ) -> HostDrafter:
        """The drafter of a model, for its vocabulary and these end tokens, at today's costs."""
        drafters = self._drafters.setdefault(model, {})
        key = (host.vocab_size, *sorted(end_token_ids))
        costs = self._costs_of(model)
        if key not in drafters or _are_others(drafters[key].costs, costs):
            drafter = make_drafter(
                host,
                rows=self._rows,
                costs=costs,
                end_token_ids=end_token_ids,
                history=self._history,
            )
            drafters[key] = _Reckoned(drafter, costs)
        return drafters[key].drafter

    def _costs_of(self, model: Any) -> Sequence[float] | None:
        """Costs as given, or as measured with the model, without processors or drawing."""
        if not isinstance(self._costs, str):
            return self._costs
        if model not in self._measured:
            most = draftable_len(model.config, 1)
            capacity = min(_MEASURED_LEN, most) if most > 1 else _MEASURED_LEN
            host = TransformersHost(model, takes_trees=False, capacity=capacity)
            measured = StepCosts(self._rows)
            measured.begin(host)
            self._measured[model] = measured
        self._last_costs = self._measured[model]
        return self._last_costs.us


def _are_others(before: Sequence[float] | None, costs: Sequence[float] | None) -> bool:
    """Whether what steps cost, compared with those of the fewest rows, has changed."""
    if before is costs or before is None or costs is None:
        return before is not costs
    was, now = (np.array(each) / each[0] for each in (before, costs))
    return bool((np.maximum(was / now, now / was) > _CHANGED).any())


def _end_token_ids(config: Any) -> set[int]:
    ends = config.eos_token_id
    return set() if ends is None else {ends} if isinstance(ends, int) else {*ends}

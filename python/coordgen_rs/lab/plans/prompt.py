"""Plans of a prompt's prefill: which graph of which block is loaded and released when.

In: a profile and the length of a prompt. Out: the core's `Plan`, by one strategy or by all. The
planning itself is in `src/load/plan`.
"""

from collections.abc import Sequence
from typing import Any

from coordgen_rs._core import Action, Plan, Run, strategies
from coordgen_rs._core import plan as plan_blocks
from coordgen_rs.errors import MemoryBudgetError
from coordgen_rs.loading.profile import Profile

_RUN = ("block", "chunk", "graph", "start_us", "end_us")
_ACTION = ("kind", "block", "graph", "after_runs", "start_us", "end_us")


def plan_prompt(
    profile: Profile,
    prompt_len: int,
    *,
    strategy: str = "auto",
    start: str = "prefill",
    memory_budget: int | None = None,
) -> Plan:
    """The plan of one strategy.

    Args:
        profile: What the blocks cost.
        prompt_len: Tokens of the prompt that are computed.
        strategy: One of `strategies()`.
        start: What is in memory of every block, one of `_core.starts()`.
        memory_budget: Most bytes that the graphs may take at once; None for no limit.

    Raises:
        OptionError: A name is unknown, or `prompt_len` is below 1 or needs too many chunks.
        MemoryBudgetError: No plan fits into the budget; the message says how much is needed.
    """
    return plan_blocks(
        profile.block_costs(),
        profile.prefill_rows,
        profile.decode_rows,
        prompt_len,
        strategy=strategy,
        start=start,
        memory_budget=memory_budget,
    )


def plan_by_all(
    profile: Profile, prompt_len: int, *, start: str = "prefill", memory_budget: int | None = None
) -> dict[str, Plan | MemoryBudgetError]:
    """The plan of every strategy by name, or the error if it has none within the budget.

    Raises:
        OptionError: Same as in `plan_prompt`.
    """
    plans: dict[str, Plan | MemoryBudgetError] = {}
    for strategy in strategies():
        try:
            plans[strategy] = plan_prompt(
                profile, prompt_len, strategy=strategy, start=start, memory_budget=memory_budget
            )
        except MemoryBudgetError as error:
            plans[strategy] = error
    return plans


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A plan under the names that `coordgen plan --json` prints."""
    return {
        "makespan_us": plan.makespan_us,
        "prefill_us": plan.prefill_us,
        "exposed_load_us": plan.exposed_load_us,
        "peak_bytes": plan.peak_bytes,
        "lower_bound_us": plan.lower_bound_us,
        "schedule": {
            "runs": [_named(_RUN, run) for run in plan.runs],
            "actions": [_named(_ACTION, action) for action in plan.actions],
        },
    }


def _named(names: Sequence[str], item: Run | Action) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}

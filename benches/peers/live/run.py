"""Engines in processes of their own: opened when they are needed first, and closed together.

In: engines, and for a whole run prompts by task. Out: their contestants, or a `Run`. An engine that
cannot be opened, or fails later, is left out with its reason.
"""

from dataclasses import dataclass
from functools import cached_property

from contest import Contest, ContestantFailedError, hold
from live.process import EngineProcess


@dataclass(frozen=True)
class Run:
    """All that was measured with a number of threads.

    Attributes:
        threads: Compute threads of every engine.
        rows: `Row`s that were asked for.
        facts: Of the engine of each row that was opened, by name.
        contest: What they answered.
        failures: Why a row has no figures, by name.
    """

    threads: int
    rows: list
    facts: dict[str, dict]
    contest: Contest
    failures: dict[str, str]


class Running:
    """The processes of some engines.

    Args:
        engines: `Engine`s, each of which gets a process.
        logs: A folder for what they print.
        label: Of the logs, beside the name of an engine's first row.
        limit_s: Seconds that one answer may take.
        is_cpu_time: Whether they measure by the clock of their cores.

    Attributes:
        facts: Of the engine of each row that was opened, by the row's name.
        failures: Why a row's engine could not be.
    """

    def __init__(self, engines, logs, label, limit_s, *, is_cpu_time=False):
        self._engines, self._logs, self._label = engines, logs, label
        self._limit_s, self._is_cpu_time = limit_s, is_cpu_time
        self._processes, self.facts, self.failures = [], {}, {}

    @cached_property
    def contestants(self):
        """Those of the rows whose engines could be opened."""
        self._logs.mkdir(parents=True, exist_ok=True)
        return [contestant for engine in self._engines for contestant in self._opened(engine)]

    def _opened(self, engine):
        log = self._logs / f"{engine.rows[0].name.replace(' ', '-')}-{self._label}.log"
        log.write_bytes(b"")
        options = engine.options, log, self._limit_s
        try:
            process = EngineProcess(engine.open_engine, *options, is_cpu_time=self._is_cpu_time)
        except ContestantFailedError as error:
            self.failures |= {row.name: str(error) for row in engine.rows}
            return []
        self._processes.append(process)
        self.facts |= {row.name: process.facts for row in engine.rows}
        return [process.contestant(row.kind, row.name) for row in engine.rows]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.close()


def measure(engines, threads, prompts, *, rounds, max_new_tokens, logs, limit_s, on_progress):
    """Let all engines answer all prompts.

    Args:
        engines: `Engine`s, each of which gets a process.
        threads: What they were told.
        prompts: `Prompt`s by task.
        rounds: How often each prompt is answered.
        max_new_tokens: Longest answer.
        logs: A folder for what the engines print.
        limit_s: Seconds that one answer may take.
        on_progress: Called with a task, the prompts done and those in all.

    Returns:
        A `Run`.
    """
    token_ids = {task: [prompt.token_ids for prompt in of] for task, of in prompts.items()}
    with Running(engines, logs, threads, limit_s) as running:
        contest = hold(running.contestants, token_ids, rounds, max_new_tokens, on_progress)
    rows = [row for engine in engines for row in engine.rows]
    return Run(threads, rows, running.facts, contest, running.failures | contest.failures)

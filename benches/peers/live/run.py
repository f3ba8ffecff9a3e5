"""One run: all engines are opened, answer in turns, and are closed.

In: engines, prompts by task. Out: a `Run`. An engine that cannot be opened, or fails later, is left
out with its reason.
"""

from dataclasses import dataclass

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
    processes, contestants, facts, failures = [], [], {}, {}
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for engine in engines:
            log = logs / f"{engine.rows[0].name.replace(' ', '-')}-{threads}.log"
            log.write_bytes(b"")
            try:
                process = EngineProcess(engine.open_engine, engine.options, log, limit_s)
            except ContestantFailedError as error:
                failures |= {row.name: str(error) for row in engine.rows}
                continue
            processes.append(process)
            for row in engine.rows:
                facts[row.name] = process.facts
                contestants.append(process.contestant(row.kind, row.name))
        token_ids = {task: [prompt.token_ids for prompt in of] for task, of in prompts.items()}
        contest = hold(contestants, token_ids, rounds, max_new_tokens, on_progress)
    finally:
        for process in processes:
            process.close()
    rows = [row for engine in engines for row in engine.rows]
    return Run(threads, rows, facts, contest, failures | contest.failures)

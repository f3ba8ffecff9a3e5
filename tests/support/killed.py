"""Processes that are killed at random points, and small disks that run full."""

import multiprocessing
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["histories", "fault_workers", "stored_prefixes"])
"""Starts processes fast, from a server that has imported everything."""


def at_once(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int | None]:
    """Run `work` in a process for each of the arguments; how they ended."""
    workers = [processes.Process(target=work, args=each) for each in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [worker.exitcode for worker in workers]


def kill_at_random(work: Callable[..., None], *arguments: Any, rng: random.Random) -> list[Any]:
    """Run `work(*arguments, told)` in a process, and kill it at a random point of a round.

    `work` sends something after each of its rounds, and goes on for ever.

    Returns:
        What it sent before it was killed.
    """
    receiving, sending = processes.Pipe(duplex=False)
    worker = processes.Process(target=work, args=(*arguments, sending))
    worker.start()
    sending.close()
    assert receiving.poll(600), "the worker did not begin"
    begun = time.perf_counter()
    told = [receiving.recv()]  # the begin
    if rng.random() < 0.5:  # as long as a round takes, it is killed in the next one
        assert receiving.poll(600), "the worker did nothing"
        told.append(receiving.recv())
    round_s = max(0.02, min(0.3, time.perf_counter() - begun))
    time.sleep(rng.random() * round_s)
    worker.kill()
    worker.join()
    try:
        while True:
            told.append(receiving.recv())
    except EOFError:
        return told[1:]


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """A file system of that size at `folder`; skips where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"NO SMALL DISK CAN BE MOUNTED HERE: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def limited(what: str, most: int) -> Iterator[None]:
    """Within the block, this process has at most so much of what a limit is for, as `FSIZE`."""
    resource = pytest.importorskip("resource", reason="needs limits of a process")
    which = getattr(resource, f"RLIMIT_{what}")
    usual, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (usual, hard))

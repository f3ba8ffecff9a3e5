"""The option `--ray`, of commands whose parts may run on other machines."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from coordgen_rs.cli.options import option
from coordgen_rs.lab.fleet.tasks import RayTasks, Sequential, Tasks

RAY = option.text("--ray ADDRESS", may_be_empty=False).help(
    "run on Ray: auto, HOST:PORT or ray://HOST:PORT for a cluster, whose workers must see "
    "the same files; local or local:N for N workers here; default: one after the other"
)


@contextmanager
def chosen(options: argparse.Namespace, *, cores: int = 1) -> Iterator[Tasks]:
    """Where calls run, for the block; on Ray each has `cores` cores."""
    if options.ray is None:
        yield Sequential()
        return
    tasks = RayTasks(options.ray, cores=cores)
    try:
        yield tasks
    finally:
        tasks.close()

#!/usr/bin/env python3
"""Runs the Python target that FUZZ_TARGET names under atheris; takes the options of libFuzzer.

Only modules of coordgen_rs are instrumented: what others do with a file is theirs. A target is a
module in `targets` with `run(data)`, which returns where the input is refused by name and
raises where anything else happens. `IS_JSON` asks for changes of JSON values, behind the first
`PREFIX` bytes.
"""

import importlib
import os
import resource
import sys
from pathlib import Path
from types import ModuleType

import atheris

_MOST_BYTES = 384 << 20
"""Of address space beyond what the process has when the target is loaded; then MemoryError."""


def _mutator(target: ModuleType) -> dict[str, object]:
    if not getattr(target, "IS_JSON", False):
        return {}
    from mutate_json import mutate

    prefix = getattr(target, "PREFIX", 0)

    def custom_mutator(data: bytes, max_size: int, seed: int) -> bytes:
        if len(data) <= prefix or seed % 16 == 0:
            return bytes(atheris.Mutate(data, max_size))
        return data[:prefix] + mutate(data[prefix:], max_size - prefix, seed)

    return {"custom_mutator": custom_mutator}


def main() -> None:
    with atheris.instrument_imports(include=["coordgen_rs"]):
        target = importlib.import_module(f"targets.{os.environ['FUZZ_TARGET']}")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    atheris.Setup(sys.argv, target.run, **_mutator(target))
    atheris.Fuzz()


main()

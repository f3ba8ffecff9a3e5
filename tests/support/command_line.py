"""The command `coordgen`, run as a user runs it."""

import subprocess
import sys

MODULE = [sys.executable, "-m", "coordgen_rs"]


def coordgen(*arguments, **options):
    command = [*MODULE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def refused(*arguments, **options):
    """Run a command that must fail with one clear line; return that line."""
    done = coordgen(*arguments, **options)
    assert done.returncode == 2, done
    assert done.stderr.startswith("coordgen: error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr

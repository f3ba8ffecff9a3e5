"""What commands that measure refuse."""

import pytest


@pytest.fixture
def refused(coordgen):
    """Runs a command in this process, which must fail with one clear line; gives that line."""

    def run(*arguments):
        said = coordgen(*arguments, code=2).err
        assert said.startswith("coordgen: error: "), said
        assert said.count("\n") == 1, said
        return said

    return run

"""Errors of the `tokenizers` package as ours: it raises bare Exception, and panics on some files.

In: what is done with the package. Out: the same, or an error of a named class. What is wrong with a
file is the package's to say.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from coordgen_rs.errors import CoordgenError


@contextmanager
def package_errors_as(error_class: type[CoordgenError], message: str) -> Iterator[None]:
    """Raise `error_class` where the package fails, with `message` before what it says.

    Raises:
        CoordgenError: The package failed; it is an `error_class`.
        MemoryError: Passed on, it is the machine's.
        OverflowError: Passed on, the caller's argument is at fault.
        TypeError: Passed on, the caller's argument is at fault.
    """
    try:
        yield
    except (MemoryError, OverflowError, TypeError):  # of the machine, or the caller's arguments
        raise
    except Exception as error:
        raise error_class(f"{message}: {error}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception, nor importable
            raise
        raise error_class(f"{message}: {error}") from error

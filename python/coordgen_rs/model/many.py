"""Many prompts, answered by one thread.

In: streams that have not begun. Out: their answers, in order. As many as the model has places for
are open at a time, and one that waits, so that no place is empty.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from coordgen_rs.errors import CoordgenError
from coordgen_rs.model.answer import Answer
from coordgen_rs.model.events import LONGEST_SLEEP_S
from coordgen_rs.model.stream import Stream

_Reading = Generator[Answer | CoordgenError | None]


def answered(
    begin: Iterable[Callable[[], Stream]],
    num_places: int,
    *,
    keep_errors: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Answer | CoordgenError]:
    """The answers of streams.

    Args:
        begin: Make the streams, one each.
        num_places: How many are answered at a time.
        keep_errors: Put the error of a stream in its answer's place, rather than raise it.
        on_progress: Called with how many answers there are, and will be, whenever there is one
            more.

    Raises:
        CoordgenError: Errors of a stream; all others are closed then.
    """
    waiting, is_open = deque(enumerate(begin)), dict[int, _Reading]()
    done, num_all = dict[int, Answer | CoordgenError](), len(waiting)
    news = SimpleQueue[None]()
    try:
        while len(done) < num_all:
            while waiting and len(is_open) <= num_places:
                number, make = waiting.popleft()
                is_open[number] = _reading(make, partial(news.put, None))
            ends = {number: next(reading) for number, reading in is_open.items()}
            for number, end in ends.items():
                if end is None:
                    continue
                if isinstance(end, CoordgenError) and not keep_errors:
                    end.add_note(f"by prompt {number + 1} of {num_all}")
                    raise end
                del is_open[number]
                done[number] = end
                if on_progress is not None:
                    on_progress(len(done), num_all)
            if len(is_open) == len(ends):  # none has ended
                with suppress(Empty):
                    news.get(timeout=LONGEST_SLEEP_S)
    finally:
        for reading in is_open.values():
            reading.close()
    return [done[number] for number in range(num_all)]


def _reading(make: Callable[[], Stream], wake: Callable[[], object]) -> _Reading:
    """How a stream has ended; before, None whenever there is nothing to read.

    Args:
        make: Makes it. When this is closed, its request ends.
        wake: Called when there is something to read.
    """
    try:
        with make() as stream:
            stream.events.wake, stream.events.is_whole = wake, True
            while True:
                while not stream.is_ready:
                    yield None
                if stream.step() is None:
                    break
            yield stream.answer
    except CoordgenError as error:
        yield error

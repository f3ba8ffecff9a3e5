"""Many prompts, answered by one thread.

In: streams that have not begun. Out: their answers, in order. As many as the model has places for
are open at a time.
"""

from collections import deque
from collections.abc import Callable, Iterable

from coordgen_rs.errors import CoordgenError
from coordgen_rs.model.answer import Answer, Stream


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
        num_places: How many are open at a time.
        keep_errors: Put the error of a stream in its answer's place, rather than raise it.
        on_progress: Called with how many answers there are, and will be, whenever there is one
            more.

    Raises:
        CoordgenError: Errors of a stream; all others are closed then.
    """
    waiting = deque(enumerate(begin))
    done: list[Answer | CoordgenError | None] = [None] * len(waiting)
    is_open, num_done = deque[tuple[int, Stream]](), 0
    try:
        while waiting or is_open:
            number = -1
            ended: Answer | CoordgenError | None = None
            try:
                if waiting and len(is_open) < num_places:
                    number, make = waiting.popleft()
                    is_open.append((number, make()))
                    continue
                number, stream = is_open[0]
                if stream.step() is None:
                    ended = stream.answer
                else:
                    is_open.rotate(-1)
            except CoordgenError as error:
                if not keep_errors:
                    error.add_note(f"by prompt {number + 1} of {len(done)}")
                    raise
                ended = error
            if ended is not None:
                if is_open and is_open[0][0] == number:
                    is_open.popleft()[1].close()
                done[number], num_done = ended, num_done + 1
                if on_progress is not None:
                    on_progress(num_done, len(done))
    finally:
        for _, stream in is_open:
            stream.close()
    return [it for it in done if it is not None]

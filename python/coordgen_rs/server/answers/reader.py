"""What a model says, read once: thinking, text and calls, with how likely the text's tokens were.

In: the steps of one answer, and the answer. Out: the same as parts, for whatever dialect writes
them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.content_tokens import ContentTokens
from coordgen_rs.server.answers.thinking import ThinkingReader
from coordgen_rs.server.requests.record import Request
from coordgen_rs.server.tools.calls import AnswerEvent
from coordgen_rs.server.tools.formats import call_reader

_FINISH = {"stop": "stop", "length": "length", "capacity": "length", "grammar": "stop"}


class Delta(NamedTuple):
    """What is certain with a step.

    Attributes:
        said: Thinking, text and calls, in order.
        logprobs: How likely the text's tokens were, as far as they are certain.
        gain: The step.
        is_call_open: Whether a call goes on.
    """

    said: list[AnswerEvent]
    logprobs: Sequence[TokenLogprob]
    gain: Gain
    is_call_open: bool


class Ended(NamedTuple):
    """The end of an answer.

    Attributes:
        said: What is left; of an answer that is written whole, all of it.
        logprobs: The same.
        answer: The answer.
        reason: "stop", "length" or "tool_calls".
        queued_s: Seconds that it waited for its turn.
        gains: Its steps, where an answer that is written whole shows them.
    """

    said: list[AnswerEvent]
    logprobs: Sequence[TokenLogprob]
    answer: Answer
    reason: str
    queued_s: float
    gains: Sequence[Gain] = ()


class AnswerReader:
    """Reads one answer.

    Args:
        request: What was asked for.
    """

    def __init__(self, request: Request) -> None:
        def reader() -> ThinkingReader:
            return ThinkingReader(request.thinking, call_reader(request.calling))

        self._said, self._content = reader(), None
        if request.spelling is not None and (request.thinking or request.calling):
            shown = request.options.get("special_tokens", ())
            self._content = ContentTokens(reader(), request.spelling, shown)

    def read(self, gain: Gain) -> Delta:
        """What is certain with a step."""
        said = self._said.read("".join(piece.text for piece in gain.pieces))
        likely = gain.logprobs if self._content is None else self._content.read(gain.logprobs)
        return Delta(said, likely, gain, self._said.is_open)

    def end(self, answer: Answer, queued_s: float) -> Ended:
        """What is left at the end of the answer, all of whose steps were read."""
        finish = _FINISH.get(answer.finish_reason or "", "stop")
        is_cut = finish == "length" or answer.stats.stop_string is not None
        said = self._said.end(is_cut=is_cut)
        likely = [] if self._content is None else self._content.end(is_cut=is_cut)
        if finish == "stop" and self._said.num_calls:  # one that a stop string cuts is not whole
            finish = "length" if self._said.is_open else "tool_calls"
        return Ended(said, likely, answer, finish, queued_s)

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain]) -> Ended:
        """All that an answer says; `gains` are its steps, where they are to be shown."""
        first, told = self._said.read(answer.text), answer.logprobs or ()
        likely = told if self._content is None else self._content.read(told)
        end = self.end(answer, queued_s)
        return end._replace(
            said=[*first, *end.said], logprobs=[*likely, *end.logprobs], gains=gains
        )

"""A dialogue: what was said so far, and whose turn it is. It does not know the terminal.

In: what the user says. Out: a stream of the answer, which joins the dialogue as far as it was
given. After an answer that was stopped, or that failed, user and assistant still take turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.model.stream import Stream

_IS_CUT = (None, "length", "capacity")


class Dialogue:
    """The messages of one dialogue with a model.

    Args:
        model: Answers; it is not closed here.
        system: What the model is told before everything else; None leaves it to the template.
        template_variables: Same as in `Model.chat`.
        options: See `RequestOptions`; for every answer.

    Attributes:
        messages: What was said, oldest first, as `Model.chat` takes it.
        answer: The last answer, stopped or not; None before the first. Of one that was gone on
            with, what was added last.
        options: The `options` argument; what is set here holds from the next answer on.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> None:
        arguments.known("Dialogue", options, REQUEST)
        arguments.of_type("template_variables", template_variables, Mapping)
        self._model, self.options = model, options
        self._variables = template_variables
        self.messages: list[dict[str, str]] = []
        self.answer: Answer | None = None
        self._prompt_ids: list[int] = []  # of the last answer
        self._said_ids: list[int] = []  # all of it, also what was gone on with
        self.system = system

    @property
    def system(self) -> str | None:
        """What the model is told before everything else; setting it keeps what was said."""
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, system: str | None) -> None:
        """Set it: `system` is the same as in `Dialogue`."""
        if system is not None:
            arguments.text("system", system)
        first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*first, *self.turns]
        self._said_ids = []

    @property
    def turns(self) -> list[dict[str, str]]:
        """What was said, without the system message."""
        return self.messages[0 if self.system is None else 1 :]

    @contextmanager
    def ask(self, text: str) -> Iterator[Stream]:
        """Say something, and stream the answer within the block.

        What was given of the answer when the block ends is what the model has said. If that is
        nothing, the question is taken back. Errors are the same as in `Model.stream_chat`.
        """
        if self.messages and self.messages[-1]["role"] == "user":  # loaded, and never answered
            self.take_back()
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = self._model.chat_prompt(asked, template_variables=self._variables)
        prompt_ids = self._model.tokenizer.encode(prompt, special_tokens=False).tolist()
        stream = self._model.stream_tokens(prompt_ids, **self.options)
        try:
            with stream:
                yield stream
        finally:
            self.answer = stream.answer
            if self.answer.text or self.answer.finish_reason is not None:
                self.messages = [*asked, {"role": "assistant", "content": self.answer.text}]
                self._prompt_ids, self._said_ids = prompt_ids, [*self.answer.token_ids]

    @contextmanager
    def go_on(self) -> Iterator[Stream]:
        """Go on with the last answer where a limit cut it, or where its stream was left.

        At temperature 0 the tokens are those that a higher limit had given, unless presence or
        frequency are penalized: these count within what is added. What comes joins the answer.

        Raises:
            OptionError: There is no answer, it is complete, it was loaded, or it follows a grammar,
                which cannot be entered half-way. Others are the same as in `Model.stream_tokens`.
        """
        if self.answer is None or not self._said_ids:
            raise OptionError("there is no answer to go on with")
        if self.answer.finish_reason not in _IS_CUT:
            raise OptionError("the answer is complete: there is nothing to go on with")
        if self.options.get("grammar") is not None:
            raise OptionError("an answer that follows a grammar cannot be gone on with")
        ids, num_said = [*self._prompt_ids, *self._said_ids], len(self._said_ids)
        stream = self._model.stream_tokens(ids, num_said=num_said, **self.options)
        try:
            with stream:
                yield stream
        finally:
            before = self._said()
            self.answer = stream.answer
            self._said_ids += self.answer.token_ids
            said = self._said()
            if self.answer.finish_reason == "stop":  # without the stop string
                said = before + self.answer.text
            self.messages = [*self.messages[:-1], {"role": "assistant", "content": said}]

    def _said(self) -> str:
        """The text of the last answer, without a last character that is incomplete."""
        return "".join(map(self._model.tokenizer.stream(), self._said_ids))

    def take_back(self) -> str | None:
        """Forget the last question and its answer; the question, None where there is none."""
        places = [at for at, it in enumerate(self.messages) if it["role"] == "user"]
        if not places:
            return None
        question = self.messages[places[-1]]["content"]
        self.messages, self.answer, self._said_ids = self.messages[: places[-1]], None, []
        return question

    def load(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Go on with what was said elsewhere, in place of what was said here.

        Args:
            messages: As `messages`.

        Raises:
            OptionError: They are not a system message, if any, and user and assistant in turns.
        """
        loaded = [{"role": it["role"], "content": it["content"]} for it in messages]
        num_first = 1 if loaded and loaded[0]["role"] == "system" else 0
        for number, message in enumerate(loaded[num_first:]):
            expected = ("user", "assistant")[number % 2]
            if message["role"] != expected:
                raise OptionError(
                    f"messages[{num_first + number}].role is {arguments.shown(message['role'])}, "
                    f"but must be {expected!r}: user and assistant take turns"
                )
        self.messages, self.answer, self._said_ids = loaded, None, []

    def reset(self) -> None:
        """Forget what was said; the system message stays."""
        self.messages = self.messages[: 0 if self.system is None else 1]
        self.answer, self._said_ids = None, []

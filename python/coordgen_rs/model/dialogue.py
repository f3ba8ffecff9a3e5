"""A dialogue: what was said so far, and whose turn it is. It does not know the terminal.

In: what the user says. Out: a stream of the answer, which joins the dialogue as far as it was
given. After an answer that was stopped, or that failed, user and assistant still take turns.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

from coordgen_rs.errors import arguments
from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer, Stream
from coordgen_rs.model.options import RequestOptions, check_names


class Dialogue:
    """The messages of one dialogue with a model.

    Args:
        model: Answers; it is not closed here.
        system: What the model is told before everything else; None leaves it to the template.
        template_variables: Same as in `Model.chat`.
        options: See `RequestOptions`; for every answer.

    Attributes:
        messages: What was said, oldest first, as `Model.chat` takes it.
        answer: The last answer, stopped or not; None before the first.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> None:
        check_names("Dialogue", options)
        arguments.of_type("template_variables", template_variables, Mapping)
        if system is not None:
            arguments.text("system", system)
        self._model, self._options = model, options
        self._variables = template_variables
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self._first)
        self.answer: Answer | None = None

    @contextmanager
    def ask(self, text: str) -> Iterator[Stream]:
        """Say something, and stream the answer within the block.

        What was given of the answer when the block ends is what the model has said. If that is
        nothing, the question is taken back. Errors are the same as in `Model.stream_chat`.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self._model.stream_chat(asked, template_variables=self._variables, **self._options)
        try:
            with stream:
                yield stream
        finally:
            self.answer = stream.answer
            if self.answer.text or self.answer.finish_reason is not None:
                said = {"role": "assistant", "content": self.answer.text}
                self.messages = [*asked, said]

    def reset(self) -> None:
        """Forget what was said; the system message stays."""
        self.messages, self.answer = list(self._first), None

"""The user's side of a dialogue: messages are answered, commands obeyed, until the user leaves.

In: lines; settings, as the command line has them and `/set` changes them. Out: answers as they
come. What a dialogue is, and how it goes on after an answer that was stopped, is in
`model/dialogue.py`.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType

from coordgen_rs.cli import model_options
from coordgen_rs.cli.commands.chat.dialogue_file import with_files
from coordgen_rs.cli.commands.chat.line_editor import Lines
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.text import SourceColours, printable
from coordgen_rs.errors import ChatTemplateError, OptionError, PromptTooLongError
from coordgen_rs.model.dialogue import Dialogue
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.model.stream import Stream

_KNOWN = {option.dest: option for option in model_options.SETTABLE}
_DEFAULTS = {name: option.keywords.get("default") for name, option in _KNOWN.items()}


class Settings:
    """The settings of a chat.

    Args:
        options: As the command line gave them.
        recommended: What the model's makers recommend, by the names of settings.

    Attributes:
        recommended: The `recommended` argument.
    """

    def __init__(self, options: argparse.Namespace, recommended: Mapping[str, float]) -> None:
        self.recommended = recommended
        self._options = options

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Names and values."""
        return ((name, getattr(self._options, name)) for name in _KNOWN)

    def set(self, typed_name: str, typed: str) -> RequestOptions:
        """Change a setting; `default` is what it is without the option.

        Returns:
            The keywords of the next answers.

        Raises:
            OptionError: There is no such setting, or the value is wrong; nothing changes.
        """
        name = typed_name.strip("-").replace("-", "_")
        if name not in _KNOWN:
            raise OptionError(f"there is no setting {typed_name}: /set lists them")
        value, parse = _DEFAULTS[name], _KNOWN[name].parse
        if typed != "default" and parse is not None:
            value = parse(name, typed)
            if self._options.temperature == 0 and name in model_options.OF_SAMPLING:
                raise OptionError(f"{name} is for sampling: /set temperature above 0 first")
        return self._changed({name: value})

    def follow_recommended(self) -> RequestOptions:
        """Change what the model's makers recommend, and nothing else.

        Returns:
            The keywords of the next answers.

        Raises:
            OptionError: They recommend nothing.
        """
        if not self.recommended:
            raise OptionError("the model's makers recommend no sampling")
        return self._changed(self.recommended)

    def _changed(self, settings: Mapping[str, object]) -> RequestOptions:
        """Change settings; what is for sampling waits until there is a temperature."""
        changed = argparse.Namespace(**vars(self._options) | dict(settings))
        waiting = {} if changed.temperature else model_options.OF_SAMPLING
        asked = {name: _DEFAULTS[name] for name in waiting}
        keywords = model_options.request(argparse.Namespace(**vars(changed) | asked))
        self._options = changed
        return keywords


class Conversation:
    """A chat.

    Args:
        dialogue: What is said.
        settings: What `/set` changes.
        lines: What a person types; None where lines come from a pipe.
        commands: What is run for words that begin with a slash; None leaves the chat.
        model_name: What files of dialogues call the model.

    Attributes:
        dialogue: The `dialogue` argument.
        settings: The `settings` argument.
        model_name: The `model_name` argument.
        colours: Those of sources.
        files: Names and texts that go with the next message.
        file: Where the dialogue was saved last, or loaded from; None for neither.
    """

    def __init__(
        self,
        dialogue: Dialogue,
        settings: Settings,
        lines: Lines | None,
        commands: "Mapping[str, Callable[[Conversation, str], None] | None]",
        model_name: str = "",
    ) -> None:
        self.dialogue, self.settings, self._lines = dialogue, settings, lines
        self._commands, self.model_name = commands, model_name
        self.colours = SourceColours(sys.stdout)
        self.files: list[tuple[str, str]] = []
        self.file: Path | None = None
        self._was_interrupted = False

    @property
    def is_interactive(self) -> bool:
        """Whether a person types."""
        return self._lines is not None

    def run(self) -> None:
        """Read lines, and answer them."""
        if self.is_interactive:
            self._greet()
        for line in _piped() if self._lines is None else self._typed(self._lines):
            name, _, rest = line.strip().partition(" ")
            if line.startswith("/") and "\n" not in line.strip():
                if name not in self._commands:
                    text.tell(f"there is no command {name}: /help lists them")
                elif (command := self._commands[name]) is None:
                    return
                else:
                    self._obey(command, rest.strip())
            elif line.strip():
                self.ask(line.strip())

    def _greet(self) -> None:
        text.tell(f"{self.model_name}: Enter sends, /help lists commands, Ctrl-D leaves")
        recommended = self.settings.recommended
        if recommended.get("temperature") and dict(self.settings)["temperature"] == 0:
            told = ", ".join(f"{name} {value:g}" for name, value in recommended.items())
            text.tell(f"(the likeliest answers; its makers recommend {told}: /set recommended)")

    def ask(self, question: str) -> bool:
        """Answer a message and the files that go with it; whether that began."""
        asked = with_files(question, self.files)
        before = self.dialogue.messages
        self._answer(self.dialogue.ask(asked))
        is_asked = self.dialogue.messages is not before
        if is_asked:
            self.files = []
        return is_asked

    def go_on(self) -> None:
        """Go on with an answer that was cut."""
        self._answer(self.dialogue.go_on())

    def ask_again(self, question: str) -> None:
        """Put a question in the place of the last one; if it cannot be asked, that stays."""
        before, answer, is_asked = self.dialogue.messages, self.dialogue.answer, False
        self.dialogue.take_back()
        try:
            is_asked = self.ask(question)
        finally:
            if not is_asked:
                self.dialogue.load(before)
                self.dialogue.answer = answer

    def edited(self, line: str) -> str | None:
        """A line as the user changes it; None where that is given up, or nobody types.

        Raises:
            OptionError: It is not valid text.
        """
        typed = self._read(line)
        return text.from_argument("the line", typed).strip() or None

    def agrees(self, question: str) -> bool:
        """Whether the user says yes to a question; no where nobody types."""
        if self.is_interactive:
            text.tell(f"({question} `yes` does, anything else does not)")
        return self._read().strip().lower() in ("y", "yes")

    def _read(self, line: str = "") -> str:
        """A line; empty where the user gives that up, or nobody types."""
        if self._lines is None:
            return ""
        try:
            return self._lines.read(line)
        except (EOFError, KeyboardInterrupt):
            print(flush=True)
            return ""

    def _obey(self, command: "Callable[[Conversation, str], None]", rest: str) -> None:
        """Run a command; what it refuses is told, and Ctrl-C ends it alone where somebody types.

        Raises:
            OptionError, PromptTooLongError, ChatTemplateError: Nobody types.
            KeyboardInterrupt: The same.
        """
        try:
            command(self, rest)
        except (OptionError, OSError) as error:
            text.tell(f"coordgen: error: {_told(error)}")
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
            print(flush=True)

    def _typed(self, lines: Lines) -> Iterator[str]:
        """What a person types."""
        while True:
            try:
                if self._was_interrupted:
                    print(flush=True)
                    text.tell("(Ctrl-C again, Ctrl-D or /quit leaves)")
                line = lines.read()
            except EOFError:
                print(flush=True)
                return
            except KeyboardInterrupt:
                if self._was_interrupted:
                    print(flush=True)
                    return
                self._was_interrupted = True
                continue
            self._was_interrupted = False
            try:
                yield text.from_argument("the line", line)
            except OptionError as error:
                text.tell(f"coordgen: error: {error}")

    def _answer(self, answering: AbstractContextManager[Stream]) -> None:
        """Show an answer; Ctrl-C stops that, and nothing else.

        Raises:
            PromptTooLongError: The dialogue is too long, and nobody types who could start anew.
            ChatTemplateError: The template refuses the dialogue, and nobody types.
        """
        try:
            with _interrupts_counted(self.is_interactive) as interrupts:
                self.dialogue.options["on_read"] = partial(_heed, interrupts)
                unseen = nullcontext() if self._lines is None else self._lines.kept_for_later()
                with unseen, answering as stream:
                    for piece in stream:
                        print(self.colours.shown(piece), end="", flush=True)
                        if interrupts:
                            break
                print(flush=True)
        except (PromptTooLongError, ChatTemplateError) as error:
            if not self.is_interactive:
                raise
            is_too_long = isinstance(error, PromptTooLongError)
            hint = "; /reset starts anew" if is_too_long else ""
            if is_too_long and self.files:
                names = ", ".join(name for name, _ in self.files)
                hint, self.files = f"; {printable(names)} does not go with the next message", []
            text.tell(f"coordgen: error: {error}{hint}")
            return
        answer = self.dialogue.answer
        if interrupts and answer is not None and not answer.text:
            text.tell("(stopped before the answer began)")
        if answer is not None and answer.finish_reason in ("length", "capacity"):
            limit = "--max-new-tokens" if answer.finish_reason == "length" else "the context"
            hint = "; /continue goes on" if answer.finish_reason == "length" else ""
            text.tell(f"(cut by {limit}{hint if self.is_interactive else ''})")


def _told(error: OptionError | OSError) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _piped() -> Iterator[str]:
    """The lines of stdin.

    Raises:
        OptionError: One is not UTF-8, or stdin is closed.
    """
    for line in text.stdin_bytes():
        yield text.decoded(line, "stdin").rstrip("\n")


def _heed(interrupts: list[int], num_read: int) -> None:
    """Stop behind a chunk of a prompt.

    Raises:
        KeyboardInterrupt: There was an interrupt.
    """
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def _interrupts_counted(is_interactive: bool) -> Iterator[list[int]]:
    """The interrupts within the block, the first of which does not end it at once.

    A first Ctrl-C is heeded between steps and chunks of a prompt, when nothing is half done; a
    second one raises KeyboardInterrupt where it finds the program.
    """
    found: list[int] = []
    if not is_interactive:
        yield found
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        found.append(number)
        if len(found) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield found
    except KeyboardInterrupt:
        print(flush=True)
    finally:
        signal.signal(signal.SIGINT, before)

"""What a person types in a chat: a line, or several rows of one message.

In: keys. Out: messages. With prompt_toolkit what is pasted is one message, Alt-Enter begins a new
row, Tab completes commands and files, and the arrow keys bring back what was typed before. Without
it, or where the terminal cannot place its cursor, `input` reads a line.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coordgen_rs.cli.terminal import text
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.store.files import write_file

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_MARKS_PASTES, _MARKS_NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
_PROMPT, _NEXT_ROW = "> ", "  "
_MOST_HISTORY_BYTES = 1 << 20


class Lines(Protocol):
    """Reads what a person types."""

    def read(self, line: str = "") -> str:
        """The next line.

        Args:
            line: What stands there already, to be changed.

        Raises:
            EOFError: Ctrl-D, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C.
        """

    def kept_for_later(self) -> AbstractContextManager[None]:
        """Within the block, what is typed is not shown; `read` has it afterwards, as it was."""


def typed_lines(
    commands: Collection[str], settings: Collection[str], *, keeps_history: bool
) -> Lines:
    """What a person types, as well as this terminal allows.

    Args:
        commands: Words that begin with a slash, to be completed.
        settings: What may follow `/set`.
        keeps_history: Whether what is typed is offered in later chats.
    """
    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return _PlainLines()
    try:
        import prompt_toolkit  # noqa: F401 (whether it is there)
    except ImportError:
        text.tell(f"(pasted lines are one message each: {how_to_install('chat')} for more)")
        return _PlainLines()
    completer = _completer(commands, settings)
    return _EditedLines(completer, history_file() if keeps_history else None)


def history_file() -> Path | None:
    """Where what was typed is kept; None where there is no home directory."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        folder = (
            Path(state) if state and Path(state).is_absolute() else Path.home() / ".local/state"
        )
    except RuntimeError:
        return None
    return folder / "coordgen_rs" / "chat_history"


class _PlainLines:
    """Lines by `input`, with the editing and history of readline where Python has it."""

    def __init__(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401 (importing it is what changes `input`)

    def read(self, line: str = "") -> str:
        if line:
            print(f"(was: {line})", flush=True)
        return input(_PROMPT)

    def kept_for_later(self) -> AbstractContextManager[None]:
        return _without_echo(as_keys=False)


class _EditedLines:
    """Lines by prompt_toolkit.

    Args:
        completer: Completes what is typed.
        history: A file for what was typed; None keeps it for this chat alone.
    """

    def __init__(self, completer: "Completer", history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import ThreadedCompleter

        self._is_edit = False
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            multiline=True,
            key_bindings=_keys(lambda: self._is_edit),
            completer=ThreadedCompleter(completer),
            complete_while_typing=False,
            prompt_continuation=lambda width, number, is_soft: _NEXT_ROW,
            enable_suspend=True,
        )

    def read(self, line: str = "") -> str:
        self._is_edit = bool(line)
        return self._session.prompt(_PROMPT, default=line)

    def kept_for_later(self) -> AbstractContextManager[None]:
        return _without_echo(as_keys=True)


@contextmanager
def _without_echo(*, as_keys: bool) -> Iterator[None]:
    """Within the block, the terminal does not show what is typed; Ctrl-C interrupts as ever.

    Args:
        as_keys: Whether it hands out keys afterwards, with an Enter that is one, and not lines.
    """
    try:
        import termios
    except ImportError:  # Windows, whose console shows what is typed when it is read
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    input_flags, _, _, local_flags, *_ = quiet = termios.tcgetattr(sys.stdin)
    quiet[3] = (local_flags & ~termios.ECHO) | termios.NOFLSH  # Ctrl-C drops nothing
    if as_keys:
        quiet[0], quiet[3] = input_flags & ~termios.ICRNL, quiet[3] & ~termios.ICANON
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    print(_MARKS_PASTES if as_keys else "", end="", flush=True)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
        print(_MARKS_NO_PASTES if as_keys else "", end="", flush=True)


def _keys(is_edit: Callable[[], bool]) -> "KeyBindings":
    """Enter sends, Alt-Enter and Ctrl-J begin a new row, Ctrl-C clears what was typed.

    What is pasted is no key.

    Args:
        is_edit: Whether a message is changed: then Ctrl-C gives that up.
    """
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: "KeyPressEvent") -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("c-c")
    def _clear(event: "KeyPressEvent") -> None:
        if is_edit() or not event.current_buffer.text:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")
        event.current_buffer.reset()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _new_row(event: "KeyPressEvent") -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer(commands: Collection[str], settings: Collection[str]) -> "Completer":
    """Completes commands, and what follows them: files, and names of settings."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(
            self, document: "Document", complete_event: "CompleteEvent"
        ) -> "Iterable[Completion]":
            typed = document.text_before_cursor
            name, space, rest = typed.partition(" ")
            if not typed.startswith("/") or "\n" in typed:
                return
            if not space:
                yield from (Completion(it, -len(name)) for it in commands if it.startswith(name))
            elif name in ("/file", "/save", "/load"):
                yield from paths.get_completions(Document(rest, len(rest)), complete_event)
            elif name == "/set" and " " not in rest:
                yield from (Completion(it, -len(rest)) for it in settings if it.startswith(rest))

    return Commands()


def _history(path: Path | None) -> "History":
    """What was typed in earlier chats, readable by its owner only.

    A file that cannot be made or read is done without.
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is None:
        return InMemoryHistory()

    class Kept(FileHistory):
        def load_history_strings(self) -> Iterator[str]:
            with suppress(OSError):
                yield from super().load_history_strings()

        def store_string(self, string: str) -> None:
            with suppress(OSError):
                super().store_string(string)

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        if path.stat().st_size > _MOST_HISTORY_BYTES:
            write_file(path, path.read_bytes()[-_MOST_HISTORY_BYTES // 2 :], private=True)
    except OSError as error:
        text.tell(f"(what is typed is not kept: {path}: {error.strerror or error})")
        return InMemoryHistory()
    return Kept(path)

"""`coordgen chat`: a dialogue with an instruct model, in a terminal or from a pipe.

In: lines of the user. Out: answers as they come, and what `/stats` and the like ask for. What a
dialogue is, and how it goes on after an answer that was stopped, is in `model/dialogue.py`.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from coordgen_rs.cli.options import grammar as grammar_options
from coordgen_rs.cli.options import model as model_options
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.options import request as request_options
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.colours import SourceColours, wants_colours
from coordgen_rs.cli.terminal.counted import counted
from coordgen_rs.cli.terminal.warned import warnings_told
from coordgen_rs.errors import ChatTemplateError, OptionError, PromptTooLongError
from coordgen_rs.model.answer import Piece
from coordgen_rs.model.dialogue import Dialogue

EXAMPLES = """\
Each line is a message; /help lists the commands. Ctrl-C stops an answer. Where a message is
expected, Ctrl-D leaves, and so does Ctrl-C if it is pressed twice.

examples:
  coordgen chat SmolLM2-135M-Instruct.Q4_0.gguf
  coordgen chat bundle --system "Answer in one sentence." --temperature 0.7 --min-p 0.05
  coordgen chat bundle --json-schema answer.json
  printf 'Is a lion an animal?\\nAnd a tulip?\\n' | coordgen chat bundle
"""

_HELP = """\
/stats  what the last answer took, and where its tokens came from
/reset  start a new dialogue
/help   this list
/quit   leave; Ctrl-D does too
A line that begins with a space is a message, whatever follows."""

_PROMPT = "> "


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(
        option.path("model BUNDLE").help(
            f"{shared.BUNDLE_HELP}; with a chat template, or --chat-template"
        )
    )
    request_options.add_arguments(parser)
    model_options.add_arguments(parser)
    parser.declare_alternatives(*grammar_options.ALTERNATIVES)
    parser.declare(
        option.flag("--no-reuse").help(
            "compute the whole dialogue for every answer, for comparison"
        ),
        option.flag("--no-remember").help(
            "draft from the dialogue alone, not from others before /reset"
        ),
    )


def run(options: argparse.Namespace) -> int:
    """Talk until the user leaves.

    Raises:
        ChatTemplateError: The bundle has no chat template.
        UnsupportedGrammarError: The grammar cannot be followed; said at the first message.
    """
    request = request_options.request(options)
    request["grammar"] = grammar_options.chosen(options)
    request["reuse_prefix"] = not options.no_reuse
    remember = not options.no_remember
    with warnings_told(), model_options.opened(options, remember=remember) as model:
        model.check_chat()
        dialogue = Dialogue(model, options.system, **request)
        _Talk(dialogue, is_interactive=sys.stdin is not None and sys.stdin.isatty()).run()
    return 0


class _Talk:
    """The user's side of a dialogue.

    Args:
        dialogue: What is said.
        is_interactive: Whether a person types.
    """

    def __init__(self, dialogue: Dialogue, *, is_interactive: bool) -> None:
        self._dialogue, self._is_interactive = dialogue, is_interactive
        self._colours = SourceColours() if wants_colours(sys.stdout) else None
        self._commands: dict[str, Callable[[], None]] = {
            "/stats": self._stats,
            "/reset": self._reset,
            "/help": lambda: print(_HELP, flush=True),
        }
        self._was_interrupted = False

    def run(self) -> None:
        """Read lines, and answer them."""
        for line in self._typed() if self._is_interactive else _piped():
            command = line.rstrip()
            if command == "/quit":
                return
            if command in self._commands:
                self._commands[command]()
            elif command.startswith("/"):
                text.tell(f"there is no command {command}: /help lists them")
            elif command:
                self._answer(line.strip())

    def _typed(self) -> Iterator[str]:
        """What a person types, with the editing and history of readline where Python has it."""
        with suppress(ImportError):
            import readline  # noqa: F401 (importing it is what changes `input`)
        while True:
            try:
                if self._was_interrupted:
                    print(flush=True)
                    text.tell("(Ctrl-C again, Ctrl-D or /quit leaves)")
                line = input(_PROMPT)
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

    def _answer(self, question: str) -> None:
        """Answer a question; Ctrl-C stops that, and nothing else.

        Raises:
            PromptTooLongError: The dialogue is too long, and nobody types who could start anew.
            ChatTemplateError: The template refuses the dialogue, and nobody types.
        """
        try:
            with _interrupts_counted(self._is_interactive) as interrupts:
                with self._dialogue.ask(question) as stream:
                    for piece in stream:
                        print(self._shown(piece), end="", flush=True)
                        if interrupts:
                            break
                print(flush=True)
        except (PromptTooLongError, ChatTemplateError) as error:
            if not self._is_interactive:
                raise
            hint = "; /reset starts anew" if isinstance(error, PromptTooLongError) else ""
            text.tell(f"coordgen: error: {error}{hint}")
            return
        self._was_interrupted = bool(interrupts)
        answer = self._dialogue.answer
        if answer is not None and answer.finish_reason in ("length", "capacity"):
            limit = "--max-new-tokens" if answer.finish_reason == "length" else "the context"
            text.tell(f"(cut by {limit})")

    def _shown(self, piece: Piece) -> str:
        return piece.text if self._colours is None else self._colours.painted(piece)

    def _reset(self) -> None:
        self._dialogue.reset()
        if self._is_interactive:
            text.tell("(a new dialogue)")

    def _stats(self) -> None:
        answer = self._dialogue.answer
        if answer is None:
            text.tell("there is no answer yet")
            return
        stats = answer.stats
        print(
            f"prompt: {counted(stats.prompt_tokens, 'token')}, {stats.reused_tokens:,} reused; "
            f"first token after {1000 * stats.first_token_s:.0f} ms\n"
            f"answer: {counted(stats.new_tokens, 'token')} in {counted(stats.steps, 'step')}, "
            f"{stats.tokens_per_step:.2f} tokens_per_step, {stats.tokens_per_s:.0f} tokens/s"
        )
        if answer.sources:
            colours = self._colours or SourceColours()
            print(colours.legend(answer.sources, painted=self._colours is not None))
        sys.stdout.flush()


def _piped() -> Iterator[str]:
    """The lines of stdin.

    Raises:
        OptionError: One is not UTF-8, or stdin is closed.
    """
    for line in text.stdin_bytes():
        yield text.decoded(line, "stdin").rstrip("\n")


@contextmanager
def _interrupts_counted(is_interactive: bool) -> Iterator[list[int]]:
    """The interrupts within the block, the first of which does not end it at once.

    A first Ctrl-C is heeded between steps, when nothing is half done; a second one, as while a long
    prompt is read, raises KeyboardInterrupt where it finds the program.
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

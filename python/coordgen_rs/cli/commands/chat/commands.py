"""What begins with a slash: the commands of a chat, and what each does.

In: a chat, and what was typed behind the command. Out: the chat is changed, or something told.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coordgen_rs.cli.commands.chat import dialogue_file
from coordgen_rs.cli.commands.chat.conversation import Conversation
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.text import counted, printable
from coordgen_rs.errors import OptionError

_MOST_FILE_BYTES = 1 << 22


class Command(NamedTuple):
    """A command.

    Attributes:
        takes: What follows it.
        help: What it does.
        run: Does it; None leaves the chat.
    """

    takes: str
    help: str
    run: Callable[[Conversation, str], None] | None


def _file(chat: Conversation, rest: str) -> None:
    path = _path(rest)
    if path.exists() and not path.is_file():  # one of them may wait for somebody who writes
        raise OptionError(f"{path} is no regular file")
    if path.exists() and path.stat().st_size > _MOST_FILE_BYTES:
        raise OptionError(f"{path} is longer than {_MOST_FILE_BYTES:,} bytes")
    chat.files.append((path.name, text.read_file(path)))
    text.tell(f"({path.name} goes with the next message)")


def _system(chat: Conversation, rest: str) -> None:
    if rest:
        chat.dialogue.system = rest
    else:
        text.tell(chat.dialogue.system or "there is no system message: /system TEXT sets one")


def _set(chat: Conversation, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not name:
        for setting, current in chat.settings:
            print(setting, "drawn anew" if current is None else current)
        print(end="", flush=True)
        return
    if name == "recommended" and not value:
        chat.dialogue.options |= chat.settings.follow_recommended()
        _set(chat, "")
        return
    if not value:
        raise OptionError(f"/set {name} needs a value; `default` is what it is without the option")
    chat.dialogue.options |= chat.settings.set(name, value.strip())


def _retry(chat: Conversation, rest: str) -> None:
    question = _last_question(chat)
    if dict(chat.settings)["temperature"] == 0:
        text.tell("(at temperature 0 the answer is always the same: /set temperature 0.7)")
    chat.ask_again(question)


def _edit(chat: Conversation, rest: str) -> None:
    question = _last_question(chat)
    edited = rest or chat.edited(question)
    if edited is None:
        text.tell("(nothing was changed; /edit TEXT asks TEXT in place of the last message)")
    else:
        chat.ask_again(edited)


def _last_question(chat: Conversation) -> str:
    questions = [it["content"] for it in chat.dialogue.messages if it["role"] == "user"]
    if not questions:
        raise OptionError("nothing was asked yet")
    return questions[-1]


def _continue(chat: Conversation, rest: str) -> None:
    chat.go_on()


def _save(chat: Conversation, rest: str) -> None:
    path = _path(rest)
    if not chat.dialogue.turns:
        raise OptionError("nothing was said yet: there is nothing to save")
    if path.exists() and path.resolve() != chat.file:
        dialogue_file.check_replaceable(path)
        if not chat.agrees(f"{path} holds another dialogue: write over it?"):
            raise OptionError(f"{path} holds another dialogue, which stays: choose another name")
    dialogue_file.save(path, chat.dialogue.messages, chat.model_name)
    chat.file = path.resolve()
    text.tell(f"({counted(len(chat.dialogue.turns), 'message')} saved in {path})")


def _load(chat: Conversation, rest: str) -> None:
    path = _path(rest)
    chat.dialogue.load(dialogue_file.load(path))
    chat.file = path.resolve()
    for message in chat.dialogue.messages:
        mark = {"user": "> ", "system": "(system) "}.get(message["role"], "")
        shown = map(printable, message["content"].split("\n"))  # it steers no terminal
        print(mark + "\n".join(shown), flush=True)


def _reset(chat: Conversation, rest: str) -> None:
    chat.dialogue.reset()
    chat.files, chat.file = [], None
    if chat.is_interactive:
        text.tell("(a new dialogue)")


def _stats(chat: Conversation, rest: str) -> None:
    answer = chat.dialogue.answer
    if answer is None:
        text.tell("there is no answer yet")
        return
    stats = answer.stats
    print(
        f"prompt: {counted(stats.prompt_tokens, 'token')}, {stats.reused_tokens:,} reused; "
        f"first token after {1000 * stats.first_token_s:.0f} ms\n"
        f"answer: {counted(stats.new_tokens, 'token')} in {counted(stats.steps, 'step')}, "
        f"{stats.tokens_per_step:.2f} tokens a step, {stats.tokens_per_s:.0f} tokens/s"
    )
    if answer.sources:
        print(chat.colours.legend(answer.sources, painted=chat.colours.is_on))
    sys.stdout.flush()


def _help(chat: Conversation, rest: str) -> None:
    shown = [f"{name} {command.takes}".rstrip() for name, command in COMMANDS.items()]
    width = max(map(len, shown))
    for line, command in zip(shown, COMMANDS.values(), strict=True):
        print(f"{line:{width}}  {command.help}")
    print("A line that begins with a space is a message, whatever follows.", flush=True)


def _path(typed: str) -> Path:
    """A path as it was typed, with or without quotes.

    Raises:
        OptionError: There is none, or it names nothing that there could be.
    """
    if len(typed) > 1 and typed[0] == typed[-1] and typed[0] in "'\"":
        typed = typed[1:-1]
    if not typed:
        raise OptionError("the name of a file must follow")
    if "\0" in typed:
        raise OptionError("the name of a file holds no NUL")
    try:
        return Path(typed).expanduser()
    except RuntimeError as error:  # of a user that is not known here
        raise OptionError(f"{typed}: {error}") from error


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/stats": Command("", "what the last answer took, and where its tokens came from", _stats),
    "/continue": Command("", "go on with an answer that a limit or Ctrl-C has cut", _continue),
    "/retry": Command("", "answer the last message again", _retry),
    "/edit": Command("[TEXT]", "change the last message, and ask again", _edit),
    "/file": Command("PATH", "send a file's text with the next message", _file),
    "/system": Command("[TEXT]", "show or change what the model is told first", _system),
    "/set": Command("[NAME VALUE]", "list the settings, or change one; `/set recommended`", _set),
    "/save": Command("FILE", "write the dialogue to a file, which the page can import", _save),
    "/load": Command("FILE", "go on with a dialogue of a file, also one of the page", _load),
    "/reset": Command("", "start a new dialogue; the system message stays", _reset),
    "/quit": Command("", "leave; Ctrl-D and /exit do too", None),
    "/exit": Command("", "leave", None),
}
"""The commands by what is typed, in the order of their help."""

"""`coordgen chat`: a dialogue with an instruct model, in a terminal or from a pipe.

In: lines of the user. Out: answers as they come, and what commands such as `/stats` ask for.
`conversation.py` is the dialogue, `commands.py` what begins with a slash, `line_editor.py` the line
that a person edits, `dialogue_file.py` its file, `local_models.py` the models of this machine.
"""

import argparse
import sys
from pathlib import Path

from coordgen_rs.cli import model_options, option
from coordgen_rs.cli.commands.chat import local_models
from coordgen_rs.cli.commands.chat.commands import COMMANDS
from coordgen_rs.cli.commands.chat.conversation import Conversation, Settings
from coordgen_rs.cli.commands.chat.line_editor import typed_lines
from coordgen_rs.cli.parser import Parser
from coordgen_rs.loading.directory import check_template
from coordgen_rs.model.dialogue import Dialogue

EXAMPLES = """\
Each line is a message, and so is what is pasted, however many lines it has; Alt-Enter begins a
new line. /help lists the commands. Ctrl-C stops an answer. Where a message is expected, Ctrl-D
leaves, and so does Ctrl-C if it is pressed twice. Without BUNDLE, the models of this machine are
listed.

examples:
  coordgen chat
  coordgen chat SmolLM2-135M-Instruct.Q4_0.gguf
  coordgen chat bundle --system "Answer in one sentence." --temperature 0.7 --min-p 0.05
  coordgen chat bundle --json-schema answer.json
  printf 'Is a lion an animal?\\nAnd a tulip?\\n' | coordgen chat bundle
"""


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(
        option.path("model BUNDLE", nargs="?").help(
            f"{option.BUNDLE_HELP}; with a chat template, or --chat-template"
        )
    )
    model_options.add_request_arguments(parser)
    parser.declare(
        option.flag("--no-input-history").help(
            "neither offer what was typed in earlier chats, nor keep what is typed"
        )
    )
    model_options.add_arguments(
        parser,
        [
            option.flag("--no-reuse").help(
                "compute the whole dialogue for every answer, for comparison"
            ),
            option.flag("--no-remember").help(
                "draft from the dialogue alone, not from others before /reset"
            ),
        ],
    )


def run(options: argparse.Namespace) -> int:
    """Conversation until the user leaves.

    Raises:
        ChatTemplateError: The bundle has no chat template.
        UnsupportedGrammarError: The grammar cannot be followed; said at the first message.
    """
    if options.model is None:
        options.model = local_models.chosen()
        if options.model is None:
            return 0
    if options.chat_template is None:
        check_template(options.model, context=options.context)
    request = model_options.request(options)
    request["grammar"] = model_options.grammar(options)
    request["reuse_prefix"] = not options.no_reuse
    is_interactive = sys.stdin is not None and sys.stdin.isatty()
    remember = not options.no_remember
    with model_options.opened(options, remember=remember) as model:
        model.check_chat()
        dialogue = Dialogue(model, options.system, **request)
        settings, lines = Settings(options, model.recommended), None
        if is_interactive:
            names = [*dict(settings), "recommended"]
            lines = typed_lines(COMMANDS, names, keeps_history=not options.no_input_history)
        runs = {name: command.run for name, command in COMMANDS.items()}
        Conversation(dialogue, settings, lines, runs, Path(options.model).stem).run()
    return 0

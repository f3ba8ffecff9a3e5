"""The chat templates of a bundle: what the checkpoint has, or what the user gives.

In: an opened checkpoint. Out: a file for each template, and their entry in the manifest. Every
exporter calls `write_chat`. Nothing is rendered here; a given template is parsed, to see whether it
is one.
"""

from pathlib import Path

from coordgen_rs.bundle.manifest import ChatFiles
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.writer import Staging
from coordgen_rs.errors import ChatTemplateError, CheckpointError
from coordgen_rs.text.chat_files import DEFAULT, read_template_file
from coordgen_rs.text.chat_template import ChatTemplate

TEMPLATE_NAME = "chat_template.jinja"


def write_chat(
    staging: Staging, checkpoint: Checkpoint, given: Path | None = None
) -> ChatFiles | None:
    """Write the chat templates; None if there are none.

    Args:
        staging: The bundle in the making.
        checkpoint: Says which templates, and the texts of special tokens where its files do.
        given: A file to take in place of the checkpoint's templates.

    Raises:
        CheckpointError: What the checkpoint says about chat is damaged.
        ChatTemplateError: The given file cannot be read, or is malformed.
        ExportError: A file cannot be written.
    """
    try:
        chat = checkpoint.read_chat()
    except ChatTemplateError as error:
        raise CheckpointError(str(error)) from error
    sources = chat.sources
    if given is not None:
        sources = {DEFAULT: read_template_file(given)}
        ChatTemplate(sources[DEFAULT], name=str(given)).check()
    if not sources:
        return None
    files = {}
    for number, (name, source) in enumerate(sorted(sources.items())):
        files[name] = TEMPLATE_NAME if name == DEFAULT else f"chat_template.{number}.jinja"
        staging.write(files[name], source.encode())
    return ChatFiles(files, chat.tokens)

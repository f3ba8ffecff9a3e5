"""A checkpoint that chats: one of the repository's, with a chat template beside its files.

In: the name of a checkpoint, and a folder. Out: a directory that `coordgen export` reads.
"""

import shutil
from pathlib import Path

from checkpoints import CHECKPOINTS

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}\n"
    "{% if m.role == 'user' %}Answer:\n{% endif %}{% endfor %}"
)


def chat_checkpoint(name: str, folder: Path) -> Path:
    """Make `folder` a copy of a checkpoint that has a chat template."""
    shutil.copytree(CHECKPOINTS[name], folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder

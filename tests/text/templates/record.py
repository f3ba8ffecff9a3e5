"""Records what `transformers` makes of the templates in this folder: `rendered` in expected.json.

Run by hand when a template or a dialogue (in `dialogues` there) is added, with
transformers >= 5.23 installed:

    python tests/text/templates/record.py
"""

import json
from datetime import datetime
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils

FOLDER = Path(__file__).parent
RECORD = FOLDER / "expected.json"


def rendered(source: str, dialogue: dict, tokens: dict) -> dict:
    """The text, or the error, that transformers gives."""
    try:
        (text,), _ = chat_template_utils.render_jinja_template(
            conversations=[dialogue["messages"]],
            tools=dialogue.get("tools"),
            chat_template=source,
            add_generation_prompt=dialogue.get("add_generation_prompt", True),
            **tokens,
            **dialogue.get("variables", {}),
        )
    except Exception as error:
        return {"error": str(error)}
    return {"text": text}


def main() -> None:
    record = json.loads(RECORD.read_text("utf-8"))

    class Fixed(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromisoformat(record["now"])

    chat_template_utils.datetime = Fixed
    record["transformers"] = transformers.__version__
    record["rendered"] = {
        path.stem: {
            name: rendered(path.read_text("utf-8"), given, record["tokens"])
            for name, given in record["dialogues"].items()
        }
        for path in sorted(FOLDER.glob("*.jinja"))
    }
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

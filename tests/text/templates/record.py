"""Records what `transformers` makes of the templates in this folder: expected.json.

Run by hand when a template or a dialogue is added, with transformers >= 5.23 installed:

    python tests/text/templates/record.py
"""

import json
from datetime import datetime
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils

FOLDER = Path(__file__).parent
NOW = datetime(2026, 11, 22)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place <now>",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Town & land"}},
            "required": ["place"],
        },
    },
}
SYSTEM = {"role": "system", "content": "Answer in one word: \u201cyes\u201d or no."}
USER = {"role": "user", "content": "Is a lion an animal?\n  Think <b>hard</b>."}
ASSISTANT = {"role": "assistant", "content": "Yes."}
THOUGHT = {"role": "assistant", "content": "<think>\nLions eat.\n</think>\n\nYes."}
AGAIN = {"role": "user", "content": " And a t\u00fclip \U0001f337? "}
DIALOGUES = {
    "one question": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "three turns": {"messages": [USER, ASSISTANT, AGAIN]},
    "system, three turns": {"messages": [SYSTEM, USER, ASSISTANT, AGAIN]},
    "a thought before": {"messages": [USER, THOUGHT, AGAIN]},
    "no thinking": {"messages": [USER], "variables": {"enable_thinking": False}},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "finished": {"messages": [USER, ASSISTANT], "add_generation_prompt": False},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    "two users": {"messages": [USER, AGAIN]},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class _Now(datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def rendered(source: str, dialogue: dict) -> dict:
    """The text, or the error, that transformers gives."""
    try:
        (text,), _ = chat_template_utils.render_jinja_template(
            conversations=[dialogue["messages"]],
            tools=dialogue.get("tools"),
            chat_template=source,
            add_generation_prompt=dialogue.get("add_generation_prompt", True),
            **TOKENS,
            **dialogue.get("variables", {}),
        )
    except Exception as error:
        return {"error": str(error)}
    return {"text": text}


def main() -> None:
    chat_template_utils.datetime = _Now
    templates = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
    recorded = {
        "transformers": transformers.__version__,
        "now": NOW.isoformat(),
        "tokens": TOKENS,
        "dialogues": DIALOGUES,
        "rendered": {
            family: {name: rendered(source, given) for name, given in DIALOGUES.items()}
            for family, source in templates.items()
        },
    }
    text = json.dumps(recorded, indent=1, ensure_ascii=False) + "\n"
    (FOLDER / "expected.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()

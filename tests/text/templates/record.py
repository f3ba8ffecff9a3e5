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
            "properties": {
                "place": {"type": "string", "description": "Town & land"},
                "unit": {"enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "wind": {"type": ["boolean", "null"]},
            },
            "required": ["place"],
        },
    },
}
KINDS = {
    "type": "function",
    "function": {
        "name": "many",
        "description": "Takes all kinds",
        "parameters": {
            "type": "object",
            "properties": {
                "one": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                "any": {"oneOf": [{"type": "object"}, {"type": "null"}], "description": "Or none"},
                "inner": {"type": "object", "properties": {"x": {"type": "number"}}},
                "perhaps": {"type": "string", "nullable": True, "default": "\u201cno\u201d"},
            },
        },
    },
}
SYSTEM = {"role": "system", "content": "Answer in one word: \u201cyes\u201d or no."}
USER = {"role": "user", "content": "Is a lion an animal?\n  Think <b>hard</b>."}
ASSISTANT = {"role": "assistant", "content": "Yes."}
THOUGHT = {"role": "assistant", "content": "<think>\nLions eat.\n</think>\n\nYes."}
AGAIN = {"role": "user", "content": " And a t\u00fclip \U0001f337? "}
CALL = {
    "id": "a1b2c3d4e",
    "type": "function",
    "function": {"name": "weather", "arguments": {"place": "K\u00f6ln", "days": [1, 2]}},
}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "It's 9 \u00b0C", "tool_call_id": "a1b2c3d4e"}
DOCUMENTS = [
    {"doc_id": 7, "title": "Lions", "text": " Lions eat.\r\nThey sleep. "},
    {"title": "Tulips", "text": None, "year": 1593, "tags": {"b": [1], "a": "\u201cred\u201d"}},
    {"title": "Bees", "text": "Bees hum."},
]
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
    "a call": {"messages": [USER, CALLS, RESULT], "tools": [TOOL]},
    "two calls": {
        "messages": [USER, CALLS | {"tool_calls": [CALL, CALL]}, RESULT, RESULT, ASSISTANT, AGAIN],
        "tools": [TOOL, TOOL],
    },
    "a call with text": {"messages": [USER, CALLS | {"content": "Let me see."}], "tools": [TOOL]},
    "a call as text": {
        "messages": [USER, CALLS | {"tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}]
    },
    "a thought after a call": {
        "messages": [USER, CALLS, RESULT, THOUGHT],
        "add_generation_prompt": False,
    },
    "a thought beside": {
        "messages": [USER, ASSISTANT | {"reasoning_content": "\nLions eat.\n"}],
        "add_generation_prompt": False,
    },
    "a thought beside, by its older name": {
        "messages": [USER, CALLS | {"thinking": "Lions eat."}, RESULT],
        "tools": [TOOL],
    },
    "documents": {"messages": [USER], "variables": {"documents": DOCUMENTS}},
    "documents and tools": {
        "messages": [SYSTEM, USER],
        "tools": [TOOL],
        "variables": {"documents": DOCUMENTS[:1], "thinking": True},
    },
    "all but a system message": {
        "messages": [USER],
        "tools": [TOOL],
        "variables": {
            "documents": DOCUMENTS,
            "thinking": True,
            "python_tools": ["def f():\n    pass"],
            "date_string": "1 May 2025",
            "reasoning_effort": "high",
        },
    },
    "a switch in the system message": {
        "messages": [
            SYSTEM | {"content": "Be kind. /no_think "},
            USER,
            THOUGHT,
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ]
    },
    "a system message in parts": {
        "messages": [SYSTEM | {"content": [{"type": "text", "text": "Be kind."}]}, USER]
    },
    "parts of several kinds": {
        "messages": [
            USER
            | {
                "content": [
                    {"type": "text", "text": " a "},
                    {"type": "image", "text": ""},
                    {"type": "text", "text": "b"},
                ]
            }
        ]
    },
    "tools of the model's own": {
        "messages": [USER],
        "tools": [TOOL, KINDS],
        "variables": {"builtin_tools": ["browser", "python"], "model_identity": "You are a bee."},
    },
    "a channel in an answer": {
        "messages": [USER, ASSISTANT | {"content": "<|channel|>analysis<|message|>Yes."}, AGAIN]
    },
    "a system message later": {"messages": [USER, ASSISTANT, SYSTEM, AGAIN]},
    "only a system message": {"messages": [SYSTEM]},
    "an unknown role": {"messages": [USER, {"role": "critic", "content": "No."}]},
    "nothing said": {"messages": [USER, {"role": "assistant", "content": None}, AGAIN]},
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

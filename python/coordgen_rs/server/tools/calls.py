"""Calls of functions in what a model says: found, checked, and told apart from other text.

In: an answer's text, piece by piece. Out: content, and calls. Text that turns out to be no call is
content: nothing that the model says is lost. What models write differs; known are the marks
`<tool_call>` (Hermes, Qwen, SmolLM2), and an answer that is nothing but JSON (Llama, Mistral).
"""

import json
from typing import Any, NamedTuple

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.grammar import Tools

BEGIN, END = "<tool_call>", "</tool_call>"


class Content(NamedTuple):
    """Text of the answer, for the client."""

    text: str


class Thought(NamedTuple):
    """What the model thinks before it answers."""

    text: str


class Call(NamedTuple):
    """A call, or the next part of one.

    Attributes:
        number: Its number in the answer, from 0.
        name: The function; None where only its arguments go on.
        arguments: JSON, or a part of it.
    """

    number: int
    name: str | None
    arguments: str


Said = Content | Thought | Call


class CallReader:
    """Reads one answer.

    Args:
        tools: What may be called; None for nothing: all is content.
    """

    def __init__(self, tools: Tools | None) -> None:
        self._tools = tools
        self._held = ""
        self._is_begun = False  # whether something other than white space was said
        self._is_behind_call = False  # and nothing but white space since
        self.num_calls = 0

    def read(self, text: str) -> list[Said]:
        """What is certain with this piece of text."""
        if self._tools is None:
            return [Content(text)] if text else []
        if self._tools.forced is not None:
            return self._forced(self._tools.forced, text)
        self._held += text
        if self._tools.is_required:
            return []
        return self._found()

    def end(self) -> list[Said]:
        """What is left at the end of the answer."""
        if calls := self._calls(self._held):
            return list(calls)
        found: list[Said] = []
        self._give(found, len(self._held))
        return found

    def _forced(self, name: str, text: str) -> list[Said]:
        if not text:
            return []
        is_first, self.num_calls = not self.num_calls, 1
        return [Call(0, name if is_first else None, text)]

    def _found(self) -> list[Said]:
        """Content up to where a call may begin, and calls that are complete."""
        found: list[Said] = []
        while self._held:
            if not self._is_begun and self._held.lstrip()[:1] in ("", "{", "["):
                break  # maybe a call without marks, which only the end tells
            start = self._held.find(BEGIN)
            if start < 0:
                start = len(self._held) - _begun_len(self._held, BEGIN)
                self._give(found, start)
                break
            end = self._held.find(END, start)
            if end < 0:
                if self._is_begun or not self._held[:start].isspace():
                    self._give(found, start)
                break
            calls = self._calls(self._held[start + len(BEGIN) : end])
            if calls:
                self._give(found, start, before_call=True)
                found += calls
                self._is_begun = self._is_behind_call = True
                self._held = self._held[end + len(END) - start :]
            else:
                self._give(found, end + len(END))
        return found

    def _give(self, found: list[Said], num_chars: int, *, before_call: bool = False) -> None:
        """Content; white space before and behind a call is not meant for anybody."""
        text, self._held = self._held[:num_chars], self._held[num_chars:]
        if self._is_behind_call or (before_call and not self._is_begun and text.isspace()):
            text = text.lstrip()
        if text:
            self._is_begun, self._is_behind_call = True, False
            found.append(Content(text))

    def _calls(self, text: str) -> list[Call]:
        """The calls that a text is; none if it is anything else."""
        text = text.strip().removeprefix(BEGIN).removesuffix(END)
        try:
            parsed = parse_json(text, "a call")
        except JsonTextError:
            return []
        listed = parsed if isinstance(parsed, list) else [parsed]
        named = [self._named(item) for item in listed]
        if not all(named):
            return []
        calls = [Call(self.num_calls + number, *one) for number, one in enumerate(named) if one]
        self.num_calls += len(calls)
        return calls

    def _named(self, call: Any) -> tuple[str, str] | None:
        """Function and arguments of a call; None where it is none of a known function."""
        if not isinstance(call, dict) or self._tools is None:
            return None
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters", {}))
        is_known = isinstance(name, str) and name in self._tools.parameters
        if not isinstance(name, str) or not is_known or not isinstance(arguments, dict):
            return None
        return name, json.dumps(arguments, ensure_ascii=False)


def _begun_len(text: str, mark: str) -> int:
    """How many of the last characters may be the beginning of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)

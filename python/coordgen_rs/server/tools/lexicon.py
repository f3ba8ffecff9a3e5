"""Pieces of Lark for one tokenizer: where a text is a token of its own, it is named as that token.

In: texts, and the tokens that were added to a tokenizer's vocabulary. Out: rules and literals for a
grammar. llguidance takes an added token for no text, so a mark such as `<tool_call>` has to be
asked for by its id where it is one.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from coordgen_rs.grammar.json_text import json_text

Rules = dict[str, str]
"""The bodies of rules, by their names."""

TEXT = r"/(.|\n)+/"
"""The terminal of any text."""

WHITE = r"/[ \t\r\n]{1,8}/"
"""The terminal of what models write between calls and behind them; more would go on for long."""


class Lexicon:
    """What the grammar of one answer is written with.

    Args:
        added: The tokens added to the vocabulary, with their ids.
        ends: Those that end an answer.
    """

    def __init__(self, added: Mapping[str, int] | None = None, ends: Collection[int] = ()) -> None:
        self._added, self._ends = dict(added or {}), frozenset(ends)
        texts = sorted(map(re.escape, self._added), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(texts)})" if texts else r"(?!)")

    def is_token(self, text: str) -> bool:
        """Whether a text is a token of its own, which does not end the answer."""
        return text in self._added and self._added[text] not in self._ends

    def literal(self, text: str) -> str:
        """A text as a sequence of Lark; "" for none. A token that ends the answer is left out."""
        return sequence(*map(self._part, self._split.split(text)))

    def others(self, *but: str) -> str:
        """One of the added tokens, but for some texts and those that end the answer; "" for none.

        Args:
            but: The texts that are left out.
        """
        left = {self._added[text] for text in but if text in self._added} | self._ends
        ids = sorted(set(self._added.values()) - left)
        return f"<[{','.join(map(str, ids))}]>" if ids else ""

    def json(self, schema: dict[str, Any]) -> str:
        """JSON that a schema accepts.

        Raises:
            UnsupportedGrammarError: The schema cannot be followed.
        """
        return f"%json {json_text(schema)}"

    def _part(self, text: str) -> str:
        if text not in self._added:
            return json.dumps(text, ensure_ascii=False) if text else ""
        return f"<[{self._added[text]}]>" if self.is_token(text) else ""


def regex(text: str) -> str:
    """A text as part of a regular expression between slashes."""
    escaped = re.escape(text).replace("\\\n", r"\n").replace("\\ ", " ")
    return escaped.replace("/", r"\/")


def sequence(*parts: str) -> str:
    """Parts of a rule, one behind the other; those that are empty are left out."""
    return " ".join(filter(None, parts))


def grammar_of(start: str, rules: Rules) -> str:
    """A grammar in Lark.

    Args:
        start: What the answer is.
        rules: The rules that this refers to.
    """
    return "\n".join(f"{name}: {body}" for name, body in {"start": start, **rules}.items())

"""The shapes of answers: OpenAI's objects, whole or as the chunks of a stream.

In: steps and answers. Out: objects for JSON, with the figures of `timings.py` and our own
`coordgen`. Calls of functions are told apart by `server/tools/calls.py`. It sends nothing.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from coordgen_rs.files.version import package_version
from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.content_tokens import ContentTokens
from coordgen_rs.server.answers.logprobs import CompletionLogprobs, entries
from coordgen_rs.server.answers.thinking import ThinkingReader
from coordgen_rs.server.answers.timings import metrics, timings, usage
from coordgen_rs.server.asked.completion import Asked
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought
from coordgen_rs.server.tools.formats import call_reader
from coordgen_rs.text.token_spelling import TokenSpelling

as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value as JSON, without white space."""

_FINGERPRINT = f"coordgen-{package_version()}"
_FINISH = {"stop": "stop", "length": "length", "capacity": "length", "grammar": "stop"}


class Form:
    """The objects of one answer.

    Args:
        asked: What was asked for.
        model: The model's name.
        text_of: The text of a token, for trees.
        spelling: How tokens are spelt, where the answer tells how likely they were.
        index: The number of the choice, where a request has several.

    Attributes:
        ends_with_done: Whether a stream ends with `[DONE]`.
        head: What all chunks of a stream have in common.
        content_type: That of a stream.
        num_prompt_tokens: Tokens of the prompt; set before the stream opens.
    """

    ends_with_done = True
    content_type = "text/event-stream; charset=utf-8"
    num_prompt_tokens = 0

    def __init__(
        self,
        asked: Asked,
        model: str,
        text_of: Callable[[int], str],
        spelling: TokenSpelling | None = None,
        index: int = 0,
    ) -> None:
        self._asked, self._text_of, self._index = asked, text_of, index
        self._spelling = spelling
        self._lists = None if spelling is None else CompletionLogprobs(spelling)
        prefix, kind = ("chatcmpl", "chat.completion") if asked.kind == "chat" else ("cmpl", "")
        self._whole_kind = kind or "text_completion"
        self._chunk_kind = f"{kind}.chunk" if kind else "text_completion"
        self.head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": _FINGERPRINT,
        }
        self._num_chars = self._num_tokens = 0
        self._calls = ThinkingReader(asked.thinking, call_reader(asked.calling))
        self._content: ContentTokens | None = None  # where not all tokens are content
        if spelling is not None and (asked.thinking or asked.calling):
            reader = ThinkingReader(asked.thinking, call_reader(asked.calling))
            shown = asked.options.get("special_tokens", ())
            self._content = ContentTokens(reader, spelling, shown)

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()) -> dict[str, Any]:
        """The answer as one object; `gains` are its steps, where trees were asked for."""
        found = self._found(answer)
        if self._asked.kind == "chat":
            said: dict[str, Any] = {"message": _message(found)}
        else:
            said = {"text": self._asked.echoed + answer.text}
        likely = self._of_content(answer.logprobs or (), answer)
        choice = self._choice(said, self._reason(answer), self._told(likely))
        if self._asked.with_token_ids:
            choice["token_ids"] = answer.token_ids
        figures = self._whole_figures(answer, queued_s, gains)
        return (
            {"object": self._whole_kind}
            | self.head
            | {"choices": [choice], "usage": self.usage(answer)}
            | figures
        )

    def opening(self) -> list[dict[str, Any]]:
        """What comes before the first text: of a chat, its role; else the prompt, if asked for."""
        if self._asked.kind != "chat":
            echoed = self._asked.echoed
            return [self._chunk({"text": echoed}, None)] if echoed else []
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: one chunk, or none where no text is certain and nothing else asked."""
        text = "".join(piece.text for piece in gain.pieces)
        asked, said = self._asked, self._delta(self._calls.read(text))
        likely = self._of_content(gain.logprobs)
        is_wanted = self._wants_tokens or likely
        if said is None and not (is_wanted and gain.token_ids):
            return []
        chunk = self._chunk(said or self._nothing(), None, self._told(likely))
        if asked.with_token_ids:
            chunk["choices"][0]["token_ids"] = gain.token_ids
        if own := self._own(gain):
            chunk["coordgen"] = own
        return [chunk]

    @property
    def _wants_tokens(self) -> bool:
        """Whether a step is told also where no text is certain with it."""
        return self._asked.with_spans or self._asked.with_trees or self._asked.with_token_ids

    def _own(self, gain: Gain) -> dict[str, Any]:
        """What `coordgen` tells of a step."""
        asked, own = self._asked, dict[str, Any]()
        if asked.with_spans:
            by_char = [piece.source for piece in gain.pieces for _ in piece.text]
            own["spans"] = _runs(by_char, self._num_chars)
            own["token_spans"] = _runs(gain.sources, self._num_tokens)
        if (asked.with_spans or asked.with_trees) and gain.step is not None:
            own["step"] = self._step(gain)
        self._num_chars += sum(len(piece.text) for piece in gain.pieces)
        self._num_tokens += len(gain.token_ids)
        return own

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text: why the answer ends, figures, usage if asked for."""
        ending = self.ending(answer, queued_s)
        return [*ending, self.used(self.usage(answer))] if self._asked.with_usage else ending

    def ending(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text, usage excepted."""
        said, likely = self._delta(self._rest(answer)), self._of_content((), answer)
        has_more = said is not None or likely
        told = self._told(likely)
        held = [self._chunk(said or self._nothing(), None, told)] if has_more else []
        last = self._chunk(self._nothing(), self._reason(answer))
        return [*held, last | self._figures(answer, queued_s)]

    def used(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk that tells the usage of a whole stream."""
        return self._chunk(None, None) | {"usage": usage}

    def written(self, event: dict[str, Any]) -> str:
        """An event as it is sent."""
        kind = event.get("type")
        head = f"event: {kind}\n" if kind else ""
        return f"{head}data: {as_json(event)}\n\n"

    def ping(self) -> str:
        """What is sent where nothing else can be: clients leave it out."""
        return ": waiting\n\n"

    def failure(self, error: RefusalError) -> dict[str, Any]:
        """An error after the first event."""
        return error.to_json()

    def _delta(self, found: Sequence[AnswerEvent]) -> dict[str, Any] | None:
        """The part of a chunk's choice that holds it; None if there is nothing."""
        text = "".join(one.text for one in found if isinstance(one, Content))
        if self._asked.kind != "chat":
            return {"text": text} if text else None
        delta = _thinking(found)
        if text:
            delta["content"] = text
        calls = [_call(one) | {"index": one.number} for one in _joined(found)]
        if calls:
            delta["tool_calls"] = calls
        return {"delta": delta} if delta else None

    def _nothing(self) -> dict[str, Any]:
        return {"delta": {}} if self._asked.kind == "chat" else {"text": ""}

    def _step(self, gain: Gain) -> dict[str, Any]:
        step = gain.step
        if step is None:
            return {}
        told: dict[str, Any] = {
            "rows": step.num_rows,
            "drafted": step.num_drafted,
            "accepted": step.accept_len,
        }
        if self._asked.with_trees and step.tree is not None:
            tree, path = step.tree, step.tree.path(step.token_ids)
            own = step.token_ids[len(path) : len(path) + 1]
            told["tree"] = {
                "token_ids": tree.token_ids,
                "texts": [self._text_of(token) for token in tree.token_ids],
                "parents": tree.parents,
                "sources": tree.sources,
                "accepted": path,
                "target": {"token_id": own[0], "text": self._text_of(own[0])} if own else None,
            }
        return told

    def _found(self, answer: Answer) -> list[AnswerEvent]:
        """All that an answer says."""
        return [*self._calls.read(answer.text), *self._rest(answer)]

    def _rest(self, answer: Answer) -> list[AnswerEvent]:
        """What an answer says behind its last piece."""
        return self._calls.end(is_cut=_is_cut(answer))

    def _reason(self, answer: Answer) -> str:
        """Why the answer ends; one that a stop string ends within a call is cut short."""
        reason = _FINISH.get(answer.finish_reason or "", "stop")
        if reason == "stop" and self._calls.num_calls:
            return "length" if self._calls.is_open else "tool_calls"
        return reason

    def _of_content(
        self, told: Sequence[TokenLogprob], ended: Answer | None = None
    ) -> Sequence[TokenLogprob]:
        """Those of tokens that are content, as far as it is certain.

        Args:
            told: How likely the next tokens were.
            ended: The answer, where they are the last.
        """
        if self._content is None:
            return told
        found = self._content.read(told)
        return found if ended is None else [*found, *self._content.end(is_cut=_is_cut(ended))]

    def _told(self, told: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """How likely tokens were, in the endpoint's shape; None where nothing is to be told."""
        if self._spelling is None or self._lists is None or not told:
            return None
        if self._asked.kind == "completion":
            return self._lists.told(told)
        return {"content": entries(told, self._spelling), "refusal": None}

    def _chunk(
        self, said: dict[str, Any] | None, reason: str | None, told: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choices = [] if said is None else [self._choice(said, reason, told)]
        chunk = {"object": self._chunk_kind} | self.head | {"choices": choices}
        return chunk | {"usage": None} if self._asked.with_usage else chunk

    def _choice(
        self, said: dict[str, Any], reason: str | None, told: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"index": self._index} | said | {"logprobs": told, "finish_reason": reason}

    def usage(self, answer: Answer) -> dict[str, Any]:
        """The tokens of the answer and its prompt."""
        return usage(answer, self._asked.num_thinking(answer.token_ids))

    def _whole_figures(
        self, answer: Answer, queued_s: float, gains: Sequence[Gain]
    ) -> dict[str, Any]:
        """The figures of a whole answer, with what else of its tokens was asked for."""
        figures = self._figures(answer, queued_s)
        if self._asked.with_spans:
            figures["coordgen"] |= {
                "spans": [[*span] for span in answer.spans],
                "token_spans": _runs(answer.sources, 0),
            }
        if self._asked.with_trees:
            figures["coordgen"]["steps"] = [self._step(gain) for gain in gains if gain.step]
        return figures

    def _figures(self, answer: Answer, queued_s: float) -> dict[str, Any]:
        stats = answer.stats
        own = {
            "per_source": stats.per_source,
            "token_sources": Counter(answer.sources),
            "num_steps": stats.steps,
            "tokens_per_step": round(stats.tokens_per_step, 4),
            "accept_histogram": stats.accept_histogram,
            "finish_reason": answer.finish_reason,
            "seed": self._asked.seed,
        }
        return {"timings": timings(answer), "metrics": metrics(answer, queued_s), "coordgen": own}


def _is_cut(answer: Answer) -> bool:
    """Whether a limit or a stop string ended it."""
    is_full = _FINISH.get(answer.finish_reason or "") == "length"
    return is_full or answer.stats.stop_string is not None


def _message(found: Sequence[AnswerEvent]) -> dict[str, Any]:
    """What a model said, with the parts of each call put together."""
    text = "".join(one.text for one in found if isinstance(one, Content))
    calls = [_call(one) for one in _joined(found)]
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    message |= _thinking(found)
    return message | {"content": text or None, "tool_calls": calls} if calls else message


def _thinking(found: Sequence[AnswerEvent]) -> dict[str, Any]:
    """What a model thinks, as clients of llama.cpp and of vLLM read it; nothing if it does not."""
    thought = "".join(one.text for one in found if isinstance(one, Thought))
    return {"reasoning_content": thought, "reasoning": thought} if thought else {}


def _joined(found: Sequence[AnswerEvent]) -> list[Call]:
    """Calls, or their next parts, with what belongs to one call put together."""
    joined: list[Call] = []
    for one in found:
        if isinstance(one, Call) and one.name is None and joined:
            joined[-1] = joined[-1]._replace(arguments=joined[-1].arguments + one.arguments)
        elif isinstance(one, Call):
            joined.append(one)
    return joined


def _call(call: Call) -> dict[str, Any]:
    """A call as OpenAI writes it; of one that goes on, what is new."""
    if call.name is None:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _runs(sources: Iterable[str], start: int) -> list[list[Any]]:
    """Neighbours of one source as `[start, end, source]`, half open."""
    runs: list[list[Any]] = []
    for source, same in groupby(sources):
        end = start + sum(1 for _ in same)
        runs.append([start, end, source])
        start = end
    return runs

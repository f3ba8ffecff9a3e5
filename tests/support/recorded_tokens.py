"""Answers that no change may alter unless it means to, beside files that hold them.

In: a bundle, and a number for which its requests are made. Out: what it answers, compared with its
file in `tests/exact/recorded/tokens`. With COORDGEN_RECORD in the environment (`make recordings`)
plain decoding writes that file first, of the first number whose answers stay the same when all
logits are shaken by far more than processors round them differently.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import ROOT
from coordgen_rs import Answer, JsonSchema, Lark, Model, OrtSession, Regex
from corpus import HELD_OUT_SEEDS, TASKS, example

FOLDER = ROOT / "tests" / "exact" / "recorded" / "tokens"
_SHAKEN = 1e-4
"""How far logits are shaken, of their standard deviation: float32 rounds them by some 1e-6."""
_MOST_TRIED = 40

Said = dict[str, Any]
"""Tokens, text, end and seed of an answer."""


@dataclass(frozen=True)
class Asked:
    """A request: a text or, in `messages`, a dialogue."""

    text: str = ""
    messages: tuple[dict[str, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def said_by(self, model: Model, **more: Any) -> Said:
        """What a model answers."""
        if self.messages:
            return _said(model.chat(self.messages, **self.options, **more))
        return _said(model.generate(self.text, **self.options, **more))

    async def said_to_a_task(self, model: Model) -> Said:
        """The same for asyncio."""
        if self.messages:
            return _said(await model.achat(self.messages, **self.options))
        return _said(await model.agenerate(self.text, **self.options))


def _said(answer: Answer) -> Said:
    return {
        "tokens": list(answer.token_ids),
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
    }


FEW = (
    *("greedy", "a further turn", "beyond the end", "up to a stop string", "top_k"),
    *("penalties and biases, drawn", "regex, drawn", "JSON", "chat", "chat, second turn"),
)
"""Kinds of requests that are recorded where all would take too long."""
FEWER = ("greedy", "a further turn", "top_k", "penalties and biases, drawn", "JSON")
"""Those that further ways of asking take."""


def requests(
    text: str, further: str, seed: int, *, chats: bool = False, heat: float = 1.0
) -> dict[str, Asked]:
    """Requests of every kind on a text, which goes on in another; the second reuses the first.

    Args:
        text: The prompt.
        further: What the second turn adds to it.
        seed: Of what is drawn.
        chats: Whether dialogues are among them.
        heat: By how much more those that draw, or penalise, change what a sure model says.
    """
    counted: dict[str, Any] = {"presence_penalty": 0.4 * heat, "frequency_penalty": 0.3 * heat}
    counted["logit_bias"] = {40: 2.0 * heat, 60: -9.0 * heat}
    drawn = {"temperature": 0.9 * heat, "seed": seed}
    calls = JsonSchema(
        {
            "type": "object",
            "properties": {
                "color": {"enum": ["red", "green", 7]},
                "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            },
            "required": ["color", "sizes"],
            "additionalProperties": False,
        }
    )
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {},
        "a further turn": {},
        "beyond the end": {"ignore_eos": True, "max_new_tokens": 32},
        "up to a stop string": {"stop": ["e", ". "]},
        "top_k": drawn | {"top_k": 20},
        "top_p": drawn | {"top_p": 0.7},
        "min_p": drawn | {"temperature": 1.3 * heat, "min_p": 0.1},
        "repetition penalty": {"repetition_penalty": 1 + 0.3 * heat},
        "penalties and biases": counted,
        "penalties and biases, drawn": drawn | counted | {"top_k": 10, "repetition_penalty": 1.1},
        "regex": {"grammar": Regex("([a-f]{3} [0-9]{2};){1,3}")},
        "regex, drawn": drawn | {"grammar": Regex("([a-f]{3} [0-9]{2};){1,3}"), "top_k": 20},
        "JSON": {"grammar": calls},
        "Lark": {"grammar": Lark('start: "yes" | "no" (" no")*'), "max_new_tokens": 12},
        "expected": {"prediction": text},
    }
    asked = {
        kind: Asked(f"{text}{further}" if kind == "a further turn" else text, (), _SHORT | options)
        for kind, options in kinds.items()
    }
    if chats:
        turns = ("user", text), ("assistant", "Yes."), ("user", further)
        messages = tuple({"role": role, "content": content} for role, content in turns)
        asked["chat"] = Asked("", messages[:1], _SHORT)
        asked["chat, second turn"] = Asked("", messages, _SHORT)
        asked["chat, drawn"] = Asked("", messages, _SHORT | drawn | {"top_k": 20})
    return asked


_SHORT = {"max_new_tokens": 20}


def held_out(number: int, num_chars: int | None = None) -> tuple[str, str]:
    """Two texts that the embedded model was not trained on, or how they begin."""
    made = (example(TASKS[at % len(TASKS)], HELD_OUT_SEEDS[at]) for at in (number, number + 1))
    first, second = (it.prompt[:num_chars] for it in made)
    return first, second


def in_turn(model: Model, asked: Mapping[str, Asked], **more: Any) -> dict[str, Said]:
    """All answers, one after the other."""
    return {kind: request.said_by(model, **more) for kind, request in asked.items()}


def together(model: Model, asked: Mapping[str, Asked]) -> dict[str, Said]:
    """All answers, a thread for each."""
    with ThreadPoolExecutor(len(asked)) as pool:
        return dict(zip(asked, pool.map(lambda it: it.said_by(model), asked.values()), strict=True))


def by_tasks(model: Model, asked: Mapping[str, Asked]) -> dict[str, Said]:
    """All answers, a task of asyncio for each."""

    async def gathered() -> list[Said]:
        return await asyncio.gather(*(it.said_to_a_task(model) for it in asked.values()))

    return dict(zip(asked, asyncio.run(gathered()), strict=True))


@dataclass(frozen=True)
class Subject:
    """A model whose answers are recorded.

    Attributes:
        name: Of its file.
        bundle: What is opened.
        requests: What is asked of it, by number.
        options: Of `Model.open`, whatever way it is asked.
        few: Whether only requests of `FEW` are asked and recorded.
    """

    name: str
    bundle: Path
    requests: Callable[[int], dict[str, Asked]]
    options: Mapping[str, Any] = field(default_factory=dict)
    few: bool = False

    def _asked(self, number: int) -> dict[str, Asked]:
        asked = self.requests(number)
        return {kind: asked[kind] for kind in asked if kind in FEW or not self.few}

    @property
    def _file(self) -> Path:
        return FOLDER / f"{self.name}.json"

    def check(
        self,
        way: str,
        answered: Callable[..., dict[str, Said]] = in_turn,
        *,
        rounds: int = 1,
        few: bool = False,
        **options: Any,
    ) -> None:
        """Check that answers are those that are recorded.

        Args:
            way: What this way of asking is called if they are not.
            answered: Asks for all of them.
            rounds: How often it does.
            few: Whether it asks only for those of `FEWER`.
            options: Of `Model.open`.
        """
        if not self._file.exists():
            raise AssertionError(f"{self.name}: nothing is recorded; `make recordings` does it")
        recorded = json.loads(self._file.read_text())
        asked = self._asked(recorded["number"])
        answers = recorded["answers"]
        if asked.keys() != answers.keys():
            other = ", ".join(sorted(asked.keys() ^ answers.keys()))
            raise AssertionError(f"{self.name}: other requests are recorded than asked: {other}")
        if few:
            asked = {kind: asked[kind] for kind in FEWER}
        with Model.open(self.bundle, **{**self.options, **options}) as model:
            for _ in range(rounds):
                self._compare(way, answers, answered(model, asked))

    def check_plain(self) -> None:
        """Check what plain decoding answers, each time from nothing; or record it."""
        if os.environ.get("COORDGEN_RECORD"):
            self._record()
        self.check("plain", _from_nothing, draft="plain")

    def _compare(self, way: str, recorded: Mapping[str, Said], said: Mapping[str, Said]) -> None:
        found = [
            f"{self.name}, {way}, {kind}: {difference}"
            for kind in said
            for difference in differences(recorded[kind], said[kind])
        ]
        if found:
            raise AssertionError("\n".join(found))

    def _record(self) -> None:
        with Model.open(self.bundle, **{**self.options, "draft": "plain"}) as model:
            for number in range(_MOST_TRIED):
                asked = self._asked(number)
                answers, close = _from_nothing(model, asked), ""
                for seed in range(3):
                    with _shaken(seed):
                        shaken = _from_nothing(model, asked)
                    close = next((kind for kind in asked if shaken[kind] != answers[kind]), close)
                if not close:
                    break
                print(f"{self.name}, number {number}: {close} has too close a choice")
            else:
                raise AssertionError(f"{self.name}: each number has an answer that noise changes")
        lines = (f"  {json.dumps(kind)}: {json.dumps(said)}" for kind, said in answers.items())
        told = ",\n".join(lines)
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._file.write_text(f'{{\n "number": {number},\n "answers": {{\n{told}\n }}\n}}\n')


def differences(recorded: Said, said: Said) -> Iterator[str]:
    """What an answer has otherwise than recorded, the first token before all else."""
    pairs = enumerate(zip_longest(recorded["tokens"], said["tokens"]))
    for place, (expected, found) in pairs:
        if expected != found:
            yield f"token {place} is {found}, recorded is {expected}"
            break
    for name in ("text", "finish_reason", "seed"):
        if recorded[name] != said[name]:
            yield f"{name} is {said[name]!r}, recorded is {recorded[name]!r}"


def _from_nothing(model: Model, asked: Mapping[str, Asked]) -> dict[str, Said]:
    return in_turn(model, asked, reuse_prefix=False)


@contextmanager
def _shaken(seed: int) -> Iterator[None]:
    """Within the block, logits are a little off."""
    random, step = np.random.default_rng(seed), OrtSession.step

    def off(session: OrtSession, inputs: Any) -> Any:
        logits = step(session, inputs)
        noise = random.uniform(-1, 1, logits.shape) * float(logits.std()) * _SHAKEN
        return logits + noise.astype(np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrtSession, "step", off)
        yield

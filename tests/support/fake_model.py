"""A model for tests of the server: it says what it is told to, a step at a time, when it may.

In: texts and sources of each step. Out: what `Model`'s methods give that the server calls; steps
are made in threads, as an engine makes them. It computes nothing, and knows nothing of HTTP.
"""

import threading
from contextlib import closing
from types import MappingProxyType, SimpleNamespace

import numpy as np

from coordgen_rs import Stats, Step
from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.generation.step import StepTree, records
from coordgen_rs.model.answer import detokenized
from coordgen_rs.model.prompts import TemplateFacts
from coordgen_rs.model.request import Events
from coordgen_rs.model.stream import Stream
from coordgen_rs.runtime.session import StepCost
from coordgen_rs.text.stop import StopStrings
from coordgen_rs.text.token_bytes import TokenBound, TokenSpelling

STEPS = (("Ä", ("target",)), ("bc", ("prediction", "target")), ("d日", ("automaton", "target")))


class FakeTokenizer:
    """One token a character."""

    bound = TokenBound(4)
    marks = MappingProxyType({})

    def least_tokens(self, text):
        return self.bound.least_tokens(text)

    def encode(self, text, *, special_tokens=True):
        return np.array([1] * special_tokens + [ord(character) for character in text], np.uint32)

    def decode(self, token_ids):
        return "".join(map(chr, token_ids))

    def token(self, token_id):
        return chr(token_id)

    def token_id(self, token):
        return self.marks.get(token, ord(token) if len(token) == 1 else None)

    def stream(self, *, shown=()):
        return chr

    def added_tokens(self):
        return {}

    @property
    def spelling(self):
        return FakeSpelling()


class MarkedTokenizer(FakeTokenizer):
    """Has special tokens, beyond all characters."""

    def __init__(self, *marks):
        self.marks = MappingProxyType({mark: 0x200000 + i for i, mark in enumerate(marks)})

    def decode(self, token_ids):
        names = {token: mark for mark, token in self.marks.items()}
        return "".join(names.get(token) or chr(token) for token in token_ids)


class FakeSpelling(TokenSpelling):
    """Each token is its character; 2 is special."""

    def __init__(self):
        """Needs no file."""

    def is_special(self, token_id):
        return token_id == 2

    def bytes_of(self, token_id):
        return chr(token_id).encode()


class FakeModel:
    """Answers every prompt with `steps`.

    Attributes:
        asked: The prompt and options of each request, in order.
        may_step: Released by a test once for each step, where `is_gated`.
        at_step: Released by the model before each step, and before each chunk of a prompt.
        chunks: Chunks in which prompts are read.
        reads_tools: Whether the chat template knows tools.
        template_facts: What else it knows of.
        tools_template: That template's source.
        unfollowed: Parts of grammars that cannot be followed, with why.
        ends: Why answers end.
        fails_at: Prompts whose answer fails after its first step, and how.
        parallel: How many requests it answers at a time.
    """

    provider, context, vocab_size = "cpu", 200, 0x110000
    tokenizer = FakeTokenizer()

    recommended = MappingProxyType({"temperature": 0.6})
    step_costs = {1: StepCost(1000.0, 0.5), 4: StepCost(1500.0, 0.5)}  # noqa: RUF012
    reads_tools, has_chat_template, ends = True, True, "length"

    manifest = SimpleNamespace(model=SimpleNamespace(family="llama"), weights="int8", kept=None)
    why_alone, runs, cache_bytes = None, None, 0
    tools_template, end_token_ids = "", ()

    template_facts = TemplateFacts(frozenset(), knows_developer=False, thinking=None)

    def __init__(self, *, is_gated=False, steps=STEPS, chunks=0, parallel=1):
        self.parallel, self._places = parallel, threading.Semaphore(parallel)
        self.chunks = chunks
        self.steps, self.is_gated = steps, is_gated
        self.asked, self.ended, self.fails_at = [], [], {}
        self.may_step, self.at_step = threading.Semaphore(0), threading.Semaphore(0)
        self.is_closed, self.prefix_store = False, None
        self.unfollowed = {}

    def check_grammar(self, grammar):
        for part, error in self.unfollowed.items():
            if part in grammar.text:
                raise error

    def stream_tokens(self, token_ids, **options):
        prompt = self.tokenizer.decode(token_ids).removeprefix("\x01")
        return self._answered(prompt, options)

    def chat_prompt(self, messages, *, tools=None, template_variables=None):
        if messages[0]["role"] == "nobody":
            raise ChatTemplateError("the template knows no nobody")
        texts = [str(message.get("content")) for message in messages]
        return "|".join([*texts, *map(str, tools or []), *map(str, template_variables or {})])

    def steps_of(self, prompt, options):
        return self.steps

    def _answered(self, prompt, options):
        self.asked.append((prompt, options))
        stats, asked = Stats(prompt_tokens=len(prompt)), options["logprobs"]
        stop, spoken = StopStrings(options["stop"]), self.steps_of(prompt, options)

        def run(events):
            steps = self._steps(prompt, stats, spoken, options["trees"], asked, events)
            error = None
            with self._places, closing(detokenized(steps, stats, chr, stop)) as reads:
                try:
                    for made in reads:
                        events.put(made)
                        if not events.is_wanted:
                            break
                except BaseException as failure:
                    error = failure
            events.end(error)

        def submit(events):
            threading.Thread(target=run, args=[events], daemon=True).start()

        events = Events(submit, lambda _: None)
        return Stream(events, stats, tells_logprobs=asked is not None)

    def _steps(self, prompt, stats, spoken, trees, asked, events):
        try:
            for _ in range(self.chunks):
                self.at_step.release()
                self.may_step.acquire()
                if not events.is_wanted:
                    return
            for number, (text, sources) in enumerate(spoken):
                self.at_step.release()
                if self.is_gated:
                    self.may_step.acquire()
                if number and prompt in self.fails_at:
                    raise self.fails_at[prompt]
                is_last = number + 1 == len(spoken)
                stats.end_step(len(text), self.ends if is_last else None)
                ids = [*map(ord, text)]
                tree = StepTree([1, *ids[:-1], 2], [0] * (len(ids) + 1), ["target", *sources])
                told = () if asked is None else records(ids, [_told(asked, t) for t in ids])
                yield Step(ids, len(text) - 1, (), sources, 3, 4, tree if trees else None, told)
        finally:
            stats.per_source = {"prediction": {"proposed": 3, "accepted": 1}}
            self.ended.append(prompt)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.is_closed = True


def _told(num_alternatives, token):
    """A token at -1, behind the next characters, the last of which is impossible."""
    likelier = [(token + at, -0.5 * at) for at in range(1, num_alternatives)]
    return -1.0, [*likelier, (token + 20, float("-inf"))][:num_alternatives]

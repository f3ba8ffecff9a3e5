"""The API for text: a `Model` takes a prompt and returns an answer.

In: a bundle's path, then prompts. Out: answers, whole or in pieces. It opens what requests need,
and keeps what was learned for the next one. Who makes steps, and when, is in `engine.py`, how a
dialogue becomes text in `prompts.py`. What is drafted, how wide and when, is left to the layers
below.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import PLAIN
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.errors import CoordgenError, EmptyPromptError, OptionError, arguments
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.generation.drafting.drafter import Drafters
from coordgen_rs.generation.stats import Stats
from coordgen_rs.loading.options import OpenOptions, open_options
from coordgen_rs.loading.session import session_opened, store_opened
from coordgen_rs.model.answer import Answer, detokenized
from coordgen_rs.model.engine import Engine
from coordgen_rs.model.options import (
    ChatOptions,
    RequestOptions,
    chosen_seed,
    request_options,
    sampling,
)
from coordgen_rs.model.prompts import ChatPrompts, TemplateFacts, given_template
from coordgen_rs.model.request import Events, ModelRequest
from coordgen_rs.model.slots import OneSlot, Slots
from coordgen_rs.model.stream import AsyncStream, Stream, acollect, answers, collect
from coordgen_rs.runtime.batch import Batch, BatchStats, most_together, why_alone
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import StepCost
from coordgen_rs.store.background import Closeable, OpenedHere
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.store.prefixes.store import PrefixStore
from coordgen_rs.text.chat_template import DEFAULT, ChatTemplates, Message
from coordgen_rs.text.stop import StopStrings
from coordgen_rs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from coordgen_rs.store.history.corpus import Corpus as Corpus
    from coordgen_rs.text.grammar.kinds import Gbnf, JsonSchema, Lark, Regex
    from coordgen_rs.text.grammar.matcher import Matcher
    from coordgen_rs.text.grammar.vocabulary import Vocabulary


class Model(Closeable):
    """A model that is ready to answer; `Model.open` makes one.

    Requests run one at a time, in the order in which they begin, or, with `parallel`, so many at a
    time: a thread of the model's own makes their steps, until it is closed or dropped. A stream
    ends when it is exhausted, closed or dropped, and any thread may read it on. Its request runs
    ahead of who reads it, and to its end where another waits for its slot; the pieces wait until
    they are read. So a reader who is slow, or reads streams within each other, keeps nobody
    waiting for longer than its answer takes.
    What the drafter learned stays for the next request, and so does the text of earlier ones, to
    draft from (`remember`).

    Args:
        session: The target; nothing else may use it.
        drafters: Made for this session; closed with the model. None decodes plainly.
        chat: The chat templates; None takes those of the session's bundle.
        prefix_memory: Same as in `open`.
        prefix_store: Made for this session; closed with the model. None keeps nothing on disk.
        namespace: Same as in `open`.
        remember: Same as in `open`.
        parallel: Same as in `open`.

    Attributes:
        provider: What runs it, "cpu" or "qnn".
        parallel: Most requests that are answered at a time.
        why_alone: Why only one is, where more were asked for; else None.
        runs: What the steps of requests that are answered together were made of; None where they
            take turns.
        prefix_store: The `prefix_store` argument; its `counts` tell what it has done.
    """

    def __init__(
        self,
        session: OrtSession,
        drafters: Drafters | None = None,
        chat: ChatTemplates | None = None,
        *,
        prefix_memory: int = 0,
        prefix_store: PrefixStore | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        remember: bool = True,
        parallel: int | None = 1,
    ) -> None:
        arguments.of_type("drafters", drafters, Drafters)
        arguments.of_type("chat", chat, ChatTemplates)
        arguments.count("prefix_memory", prefix_memory, least=0)
        arguments.of_type("prefix_store", prefix_store, PrefixStore)
        arguments.text("namespace", namespace, may_be_empty=False)
        arguments.flag("remember", remember)
        self.provider = session.device.provider
        self._session, self._drafters = session, drafters
        self._tokenizer = Tokenizer.of(session.bundle)
        self._prompts = ChatPrompts(session.bundle, self._tokenizer, chat)
        self._remember, self._namespace = remember, namespace
        self.prefix_store, prefixes = prefix_store, None
        if prefix_memory or prefix_store is not None:
            prefixes = PrefixPool(prefix_memory, namespace, prefix_store)
        # In order, and each as often as the model is closed: an interrupt may keep one from it.
        closing = [session.close, session.bundle.release]
        if drafters is not None:
            closing.insert(0, drafters.close)
        if prefix_store is not None:
            closing.append(prefix_store.close)
        if parallel is not None:
            arguments.count("parallel", parallel)
        self.why_alone = None if parallel == 1 else _why_alone(session, drafters, parallel)
        self.parallel = 1 if self.why_alone else parallel or most_together(session)
        self.runs: BatchStats | None = None
        slots: OneSlot | Slots = OneSlot(session, prefixes, namespace)
        if self.parallel > 1:
            batch = Batch(session, self.parallel)
            self.runs = batch.counts
            slots = Slots(batch, prefixes, namespace)
        self._opened = OpenedHere()
        self._engine = Engine(slots, prefixes, partial(_close, closing))
        self._engine.begin(self)

    @classmethod
    def open(cls, path: Path | str, **options: Unpack[OpenOptions]) -> Self:
        """Open a model. The first time on a machine it is tested, which takes a few seconds.

        Args:
            path: A directory written by `coordgen export`, or a folder of ONNX Runtime GenAI or
                Genie. Or a GGUF file, a Hugging Face directory or `hf:OWNER/NAME`, which is
                converted into the user's cache when it is first opened (`coordgen cache`).
            options: See `OpenOptions`.

        Raises:
            OptionError: An option is unknown or out of range, or two exclude each other.
            BundleError, BundleDamagedError: A bundle cannot be used; the message names the file.
            CheckpointError, ExportError: The path cannot be converted, or the cache not written.
            DraftModelError: The draft model has another tokenizer or vocabulary.
            LookupTableError: The look-up table cannot be used.
            HistoryError, HistoryMismatchError: The history cannot be used.
            ProfileError: The profile cannot be read, or is for other blocks.
            MemoryBudgetError: The budget is too small; the message says how much is needed.
            ProviderError: The provider is missing, cannot run here, or rejects a graph.
            ChatTemplateError: The chat template cannot be read.
            OSError: The directory of the prefix store cannot be created.
        """
        chosen = open_options("Model.open", options)
        chat = given_template(chosen["chat_template"])
        namespace = chosen["namespace"] or DEFAULT_NAMESPACE
        session = session_opened(path, chosen)
        with ExitStack() as opened:  # closes what was opened, should something fail
            opened.callback(session.close)
            if chosen["context"] is not None:
                session.limit(chosen["context"])
            drafters = None
            if chosen["draft"] != PLAIN:
                drafters = Drafters(session, chosen)
                opened.callback(drafters.close)
                drafters.drafter_of(
                    drafters.acquire(namespace)
                )  # what is wrong with a file is said now
            model = cls(
                session,
                drafters,
                chat,
                prefix_memory=chosen["prefix_memory"],
                prefix_store=store_opened(session, chosen),
                namespace=namespace,
                remember=chosen["remember"],
                parallel=chosen["parallel"],
            )
            opened.pop_all()
        return model

    def generate(self, text: str, **options: Unpack[RequestOptions]) -> Answer:
        """Answer a prompt.

        Args:
            text: The prompt, used as is: a chat model's template is not added (`chat` does).
            options: See `RequestOptions`.

        Raises:
            OptionError: An option is out of range or of a wrong type, a text is not valid Unicode:
                it holds half of a surrogate pair, or the package llguidance is missing. Also where
                `logit_bias` forbids every token that may follow.
            UnsupportedGrammarError: The grammar cannot be followed; nothing was begun.
            GrammarError: The grammar cannot go on: no token of the vocabulary may follow.
            EmptyPromptError, PromptTooLongError: The prompt cannot be used.
            MemoryBudgetError, BlockLoadError: The blocks do not fit, or cannot be loaded.
            NonFiniteLogitsError: The model returned NaN.
            SessionClosedError: The model is closed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        return collect(self._stream("Model.generate", text, options))

    def stream(self, text: str, **options: Unpack[RequestOptions]) -> Stream:
        """Answer a prompt piece by piece, each as soon as it is certain.

        The request begins when the first piece is asked for, and goes on until it ends or the
        stream is closed or dropped. Text that may be the start of a stop string is held back until
        that is decided. Arguments are the same as in `generate`.

        Raises:
            EmptyPromptError: The prompt has no token. Other errors are the same as in `generate`;
                some are raised with the first piece.
        """
        return self._stream("Model.stream", text, options)

    def stream_tokens(
        self, token_ids: ArrayLike, *, num_said: int = 0, **options: Unpack[RequestOptions]
    ) -> Stream:
        """Answer a prompt of token ids piece by piece; nothing is put before or behind them.

        Args:
            token_ids: `(tokens,)` integers.
            num_said: How many of the last are an answer that is gone on with: a character that they
                leave incomplete comes with the tokens that complete it.
            options: See `RequestOptions`.

        Raises:
            OptionError: They are not integers, `num_said` is not one of 0 to their number, or same
                as in `generate`.
            ShapeError: They have more than one dimension.
            TokenOutOfRangeError: One is not in the vocabulary.
        """
        request = request_options("Model.stream_tokens", RequestOptions, options)
        checked = arguments.token_ids("the prompt", token_ids, self._session.vocab_size)
        num_said = arguments.count("num_said", num_said, least=0, most=len(checked))
        return self._answered(checked, request, num_said)

    @overload
    def generate_many(
        self,
        texts: Iterable[str],
        *,
        keep_errors: Literal[False] = False,
        on_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Answer]: ...

    @overload
    def generate_many(
        self,
        texts: Iterable[str],
        *,
        keep_errors: bool,
        on_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Answer | CoordgenError]: ...

    def generate_many(
        self,
        texts: Iterable[str],
        *,
        keep_errors: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Answer] | list[Answer | CoordgenError]:
        """Answer many prompts, `parallel` at a time.

        Args:
            texts: The prompts; each is used as in `generate`.
            keep_errors: Put what a prompt fails with in its answer's place. By default it is
                raised, and the answers are lost.
            on_progress: Called with how many have been answered, and how many there are.
            options: See `RequestOptions`; of every prompt.

        Returns:
            Their answers, in order.

        Raises:
            OptionError: Same as in `generate`; or `texts` are no texts.
            Others are those of `generate`.
        """
        # What is wrong is wrong for all.
        request_options("Model.generate_many", RequestOptions, options)
        if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
            raise OptionError(f"texts must be a list of texts, but is {arguments.shown(texts)}")
        every = [arguments.text(f"texts[{number}]", text) for number, text in enumerate(texts)]
        arguments.flag("keep_errors", keep_errors)
        arguments.function("on_progress", on_progress)
        begin = [partial(self.stream, text, **options) for text in every]
        return answers(begin, self.parallel, keep_errors=keep_errors, on_progress=on_progress)

    def astream(self, text: str, **options: Unpack[RequestOptions]) -> AsyncStream:
        """Answer a prompt piece by piece, for `async for`; errors are those of `stream`.

        Args:
            text: The prompt, used as is.
            options: See `RequestOptions`.
        """
        return AsyncStream(self._stream("Model.astream", text, options))

    async def agenerate(self, text: str, **options: Unpack[RequestOptions]) -> Answer:
        """Answer a prompt; arguments and errors as of `generate`.

        Cancelling the task ends the request within a step.
        """
        return await acollect(AsyncStream(self._stream("Model.agenerate", text, options)))

    def astream_chat(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AsyncStream:
        """Answer the last message of a dialogue, for `async for`; errors as of `stream_chat`.

        Args:
            messages: Same as in `chat`.
            options: See `ChatOptions`.
        """
        return AsyncStream(self._stream_chat("Model.astream_chat", messages, options))

    async def achat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Answer:
        """Answer the last message of a dialogue; all is as of `chat`.

        Cancelling the task ends the request within a step.
        """
        return await acollect(AsyncStream(self._stream_chat("Model.achat", messages, options)))

    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Answer:
        """Answer the last message of a dialogue, by the model's chat template.

        A dialogue that begins as the one before computes only what is new in it.

        Args:
            messages: `{"role": "user", "content": "..."}` and so on, oldest first; roles are
                "system", "user", "assistant", and whatever else the template knows.
            options: See `ChatOptions`.

        Raises:
            OptionError: Same as in `generate`; a message is malformed.
            UnsupportedGrammarError, GrammarError: Same as in `generate`.
            ChatTemplateError: There is no chat template, or it refuses the messages.
            EmptyPromptError, PromptTooLongError: The dialogue cannot be used.
            MemoryBudgetError, BlockLoadError: The blocks do not fit, or cannot be loaded.
            NonFiniteLogitsError: The model returned NaN.
            SessionClosedError: The model is closed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        return collect(self._stream_chat("Model.chat", messages, options))

    def stream_chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Stream:
        """Answer the last message of a dialogue piece by piece.

        Arguments are the same as in `chat`, and the rest as in `stream`.
        """
        return self._stream_chat("Model.stream_chat", messages, options)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model reads for a dialogue, special tokens included.

        Arguments are the same as in `chat`.

        Raises:
            OptionError: A message is malformed.
            ChatTemplateError: There is no chat template, or it refuses the messages.
        """
        return self._prompts.render(messages, tools, template_variables)

    def corpus(self, namespace: str | None = None) -> "Corpus":
        """The documents from which requests of a namespace draft, to add some or remove some.

        Requests that begin later draft from what has changed.

        Args:
            namespace: None for the model's own.

        Raises:
            OptionError: The model was opened without a history, in which documents are kept.
            HistoryError: The history cannot be used.
        """
        from coordgen_rs.store.history.corpus import Corpus

        if self._drafters is None or self._drafters.history is None:
            raise OptionError("documents are kept in a history, but the model has none")
        return Corpus(
            self._drafters.history,
            self._session.bundle,
            namespace=namespace or self._namespace,
            tokenizer=self._tokenizer,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back."""
        return self._tokenizer

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together, but for the answer's last."""
        return self._session.capacity

    @property
    def step_costs(self) -> dict[int, StepCost] | None:
        """What a step took when the bundle was tested, by its rows; None if all take the same."""
        session = self._session
        if session.step_costs is None:
            return None
        return dict(zip(session.widths, session.step_costs, strict=True))

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of the model: its family, its sizes, its kind of weights."""
        return self._session.bundle.manifest

    @property
    def recommended(self) -> Mapping[str, float]:
        """How the model's makers recommend to draw from it, by names of `RequestOptions`.

        It is not applied by itself; empty where they say nothing.
        """
        found = self._session.bundle.manifest.recommended
        return {} if found is None else found.told()

    @property
    def commit(self) -> str:
        """How drafts are committed: "canonical" or "compact"."""
        return "canonical" if self._drafters is None else self._drafters.commit

    @property
    def cache_bytes(self) -> int:
        """What keys, values and states of all requests may take, those of earlier prompts aside."""
        own = self._session.cache.nbytes
        return own if self.parallel == 1 else own * (1 + self.parallel)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._session.vocab_size

    def check_chat(self) -> None:
        """Check that `chat` has what it needs, before anything is asked.

        Raises:
            ChatTemplateError: There is no chat template, or it is malformed.
        """
        self._prompts.plain.check()

    @property
    def has_chat_template(self) -> bool:
        """Whether the model expects its prompts in a chat template, as `chat` renders them.

        Raises:
            ChatTemplateError: The chat template cannot be read.
        """
        return DEFAULT in self._prompts.templates.sources

    @property
    def reads_tools(self) -> bool:
        """Whether the chat template tells the model of tools.

        Raises:
            ChatTemplateError: There is no chat template, or it is malformed.
        """
        return self._prompts.for_tools.reads_tools

    @property
    def template_facts(self) -> TemplateFacts:
        """What the chat template knows of: variables, roles, thinking.

        Raises:
            ChatTemplateError: There is no chat template, or it is malformed.
        """
        return self._prompts.facts

    @property
    def tools_template(self) -> str:
        """The source of the chat template for dialogues with tools.

        Raises:
            ChatTemplateError: There is no chat template, or it cannot be read.
        """
        return self._prompts.for_tools.source

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer."""
        return self._session.end_token_ids

    def check_grammar(self, grammar: "JsonSchema | Regex | Lark | Gbnf") -> "Matcher":
        """Check that answers can be held to a grammar, before anything is asked.

        Args:
            grammar: Same as in `RequestOptions`.

        Returns:
            What follows it. As long as it is held, answers need not compile the grammar again.

        Raises:
            OptionError: It is no grammar, or the package llguidance is missing.
            UnsupportedGrammarError: It cannot be followed; the message names what of it.
            GrammarError: The model's tokenizer cannot be used with a grammar.
        """
        return self._vocabulary.matcher(grammar)

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        from coordgen_rs.text.grammar.vocabulary import Vocabulary

        session = self._session
        return Vocabulary(self._tokenizer, session.vocab_size, session.end_token_ids)

    def _stream(self, function: str, text: str, options: RequestOptions) -> Stream:
        """The answer to a text; `function` was called.

        Raises:
            EmptyPromptError: The prompt has no token; other errors are those of `_answered`.
        """
        request = request_options(function, RequestOptions, options)
        prompt_ids = self._tokenizer.encode(arguments.text("the prompt", text))
        if len(prompt_ids) == 0:
            raise EmptyPromptError(
                "the prompt is empty, and this model's tokenizer puts no token before it: give "
                "some text to continue"
            )
        return self._answered(prompt_ids, request)

    def _stream_chat(
        self, function: str, messages: Sequence[Message], options: ChatOptions
    ) -> Stream:
        """The answer to a dialogue; `function` was called."""
        request = request_options(function, ChatOptions, options)
        text = self._prompts.render(messages, request["tools"], request["template_variables"])
        return self._answered(self._tokenizer.encode(text, special_tokens=False), request)

    def _answered(
        self, prompt_ids: NDArray[np.uint32], options: RequestOptions, num_said: int = 0
    ) -> Stream:
        """The answer to a prompt, `(tokens,) u32`, of which the last are the answer's own.

        Raises:
            OptionError: A stop string is empty or of a wrong type.
            UnsupportedGrammarError: The grammar cannot be followed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        self._opened.check("model")  # its engine is not in the fork
        seed, grammar, prediction = chosen_seed(options), options["grammar"], options["prediction"]
        drafters, stats = self._drafters if options["drafts"] else None, Stats(seed=seed)
        stop_strings = StopStrings(() if options["stop"] is None else options["stop"])
        decode = self._tokenizer.stream(shown=options["special_tokens"])
        for token in prompt_ids[len(prompt_ids) - num_said :].tolist():
            decode(token)
        request = ModelRequest(
            options=options,
            prompt_ids=prompt_ids,
            namespace=options["namespace"] or self._namespace,
            stats=stats,
            sampling=sampling(options, seed or 0),
            reuse_prefix=options["reuse_prefix"] and self._remember,
            grammar=None if grammar is None else self._vocabulary.matcher(grammar),
            drafters=drafters,
            prediction=None
            if drafters is None or prediction is None
            else self._tokenizer.encode(prediction, special_tokens=False),
            detokenize=partial(detokenized, stats=stats, decode=decode, stop=stop_strings),
        )
        submit = partial(self._engine.submit, request)
        return Stream(
            Events(submit, self._engine.tell, self._engine.check),
            stats,
            on_read=options["on_read"],
            tells_logprobs=options["logprobs"] is not None,
            model=self,
        )

    def close(self) -> None:
        """Release the target and what drafts for it. A stream that this thread read last ends.

        So does one that an event loop reads; another thread's request is answered first. In a fork
        of its process, nothing happens.

        Raises:
            CallOrderError: The call is made within a step, as by a drafter.
        """
        self._engine.close()

    def __repr__(self) -> str:
        shown = self._session.bundle.shown
        state = "closed" if self._engine.is_closing else f"context {self.context:,}"
        return f"<Model {shown!r} on {self.provider}, {state}>"


def _close(what: Sequence[Callable[[], None]]) -> None:
    """Close all, also where one cannot be."""
    with ExitStack() as closing:
        for close in reversed(what):
            closing.callback(close)


def _why_alone(session: OrtSession, drafters: Drafters | None, asked: int | None) -> str | None:
    """Why a model runs one request at a time; None where it may run several."""
    if drafters is not None and drafters.has_model:
        return "the draft model drafts for one request at a time"
    why = why_alone(session)
    if why is None and asked is None and most_together(session) == 1:
        return "this machine has no memory for the caches of more"
    return why

"""The API for text: a `Model` takes a prompt and returns an answer.

In: a bundle's path, then prompts. Out: answers, whole or in pieces. It opens what requests need,
keeps what was learned for the next one, and makes threads wait for each other. What is drafted, how
wide and when, is left to the layers below.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from coordgen_rs import arguments
from coordgen_rs._core import PLAIN, Sampling
from coordgen_rs.answer import Answer, Stream
from coordgen_rs.drafting import Drafting, make_drafter
from coordgen_rs.errors import CallOrderError, OptionError, SessionClosedError
from coordgen_rs.generate import Step, generate, plain
from coordgen_rs.process import OpenedHere
from coordgen_rs.stats import Stats
from coordgen_rs.target.open import open_session
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.provider import ProviderChoice
from coordgen_rs.text.stop import StopStrings
from coordgen_rs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from coordgen_rs.history.requests import History


_LARGEST = 2**64 - 1
"""Of a seed, and of what the core counts in."""


class Model:
    """A model that is ready to answer; `Model.open` makes one.

    Requests run one at a time: another thread's waits until the one before has ended. A stream ends
    when it is exhausted, closed or dropped; it belongs to the thread that last asked for a piece.
    What the drafter learned stays for the next request.

    Args:
        session: The target; nothing else may use it.
        drafter: Made for this session; None decodes plainly.
        history: Stores requests when they finish; closed with the model.

    Attributes:
        provider: What runs it, "cpu" or "qnn".
    """

    def __init__(
        self,
        session: OrtSession,
        drafter: Drafting | None = None,
        history: "History | None" = None,
    ) -> None:
        self.provider = session.device.provider
        self._session, self._drafter, self._history = session, drafter, history
        self._tokenizer = Tokenizer.of(session.bundle)
        self._lock = Lock()
        self._owner: Thread | None = None  # who asked the request that holds the lock for a step
        self._running: list[ref[Generator[Step]]] = []  # that request
        self._is_closed = False
        self._opened = OpenedHere()
        self._closing = ExitStack()
        self._closing.callback(session.close)
        if history is not None:
            self._closing.callback(history.close)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        threads: int | None = None,
        width: int | None = None,
        draft: str | Sequence[str] = "auto",
        commit: str = "canonical",
        history: Path | str | None = None,
        namespace: str | None = None,
        history_max_tokens: int | None = None,
        draft_model: Path | str | None = None,
        lookup_table: Path | str | None = None,
        switch: str = "auto",
        memory_budget: int | None = None,
        profile: str | Path | None = None,
        provider: ProviderChoice | str | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> Self:
        """Open a bundle. The first time on a machine it is tested, which takes a few seconds.

        Args:
            path: A directory written by `coordgen export`.
            threads: Compute threads of the process; None for one per core.
            width: Use only decode graphs up to this width; None uses all.
            draft: Where drafts come from: the name of a method, the names of sources, or "plain".
            commit: "canonical" (exact everywhere) or "compact" (exact where `coordgen check` says).
            history: A directory of finished requests to draft from, and to keep these in.
            namespace: For example task and user; requests of other namespaces are not drafted from.
            history_max_tokens: Most tokens that the history keeps; see `History`.
            draft_model: The directory of a smaller bundle with the same tokenizer, which also
                drafts.
            lookup_table: A file written by `coordgen warm-up`.
            switch: When to switch from the prefill graphs to the decode graphs: "auto" or another
                strategy (`coordgen plan` compares them).
            memory_budget: Most bytes that the blocks' graphs may take; None for no limit.
            profile: What the blocks cost: a file written by `coordgen profile`, or the name of a
                profile that comes with the package.
            provider: What runs it, "cpu" or "qnn", or a `ProviderChoice` with QNN's options;
                None leaves all to the bundle.
            on_progress: Called with what is being done, how much is done, and how much there is;
                only where a bundle is verified or tested.

        Raises:
            OptionError: An option is unknown or out of range, or two exclude each other.
            BundleError, BundleDamagedError: A bundle cannot be used; the message names the file.
            DraftModelError: The draft model has another tokenizer or vocabulary.
            LookupTableError: The look-up table cannot be used.
            HistoryError, HistoryMismatchError: The history cannot be used.
            ProfileError: The profile cannot be read, or is for other blocks.
            MemoryBudgetError: The budget is too small; the message says how much is needed.
            ProviderError: The provider is missing, cannot run here, or rejects a graph.
        """
        _check_choices(commit, history, namespace, draft_model, lookup_table)
        for what, chosen in (
            ("a namespace", namespace),
            ("history_max_tokens", history_max_tokens),
        ):
            if history is None and chosen is not None:
                raise OptionError(f"{what} needs a history, but there is none")
        if history_max_tokens is not None:
            arguments.count("history_max_tokens", history_max_tokens)
        for what, given in (
            ("history", history),
            ("draft model", draft_model),
            ("look-up table", lookup_table),
        ):
            if given is not None and draft == PLAIN:
                raise OptionError(f"a {what} needs drafts, but draft is {PLAIN!r}")
        measured = None
        if profile is not None:
            from coordgen_rs.profile.file import Profile

            measured = Profile.find(str(profile))
        session = open_session(
            path,
            threads=threads,
            width=width,
            switch=switch,
            memory_budget=memory_budget,
            profile=measured,
            provider=ProviderChoice(provider) if isinstance(provider, str) else provider,
            on_progress=on_progress,
        )
        if draft == PLAIN:
            return cls(session)
        table = smaller = kept = None
        with ExitStack() as opened:  # closes what was opened, should something fail
            opened.callback(session.close)
            if lookup_table is not None:
                from coordgen_rs.warm_up import open_table

                table = open_table(Path(lookup_table), session.bundle)
            if draft_model is not None:
                from coordgen_rs.draft_model import DraftModel

                smaller = DraftModel.open(draft_model, session)
                opened.callback(smaller.close)
            if history is not None:
                from coordgen_rs.history.requests import DEFAULT_NAMESPACE, History

                kept = History.of(
                    history,
                    session.bundle,
                    namespace=namespace or DEFAULT_NAMESPACE,
                    max_tokens=history_max_tokens,
                )
                opened.callback(kept.close)
            drafter = make_drafter(session, draft, commit, kept, table, smaller)
            model = cls(session, drafter, kept)
            model._closing = opened.pop_all()
        return model

    def generate(
        self,
        text: str,
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        prediction: str | None = None,
        drafts: bool = True,
    ) -> Answer:
        """Answer a prompt.

        Args:
            text: The prompt, used as is: a chat model's template is not added.
            max_new_tokens: Most tokens of the answer; the model's context is another limit.
            stop: The answer ends before the first of these strings.
            temperature: 0 always takes the most likely token; above 0, tokens are sampled.
            top_k: Sample from this many of the most likely tokens; 0 for all.
            top_p: Sample from the fewest tokens whose probabilities add up to this; 1 for all.
            seed: The same seed gives the same answer. At temperature 0, where nothing is sampled,
                these three change nothing.
            prediction: The answer as you expect it. Where the answer follows it, it drafts.
            drafts: False decodes without drafts, for comparison: the same answer, but later.

        Raises:
            OptionError: An option is out of range or of a wrong type, or a text is not valid
                Unicode: it holds half of a surrogate pair.
            EmptyPromptError, PromptTooLongError: The prompt cannot be used.
            MemoryBudgetError, BlockLoadError: The blocks do not fit, or cannot be loaded.
            NonFiniteLogitsError: The model returned NaN.
            CallOrderError: This thread has a stream of the model open.
            SessionClosedError: The model is closed.
        """
        with self.stream(
            text,
            max_new_tokens=max_new_tokens,
            stop=stop,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            prediction=prediction,
            drafts=drafts,
        ) as stream:
            for _ in stream:
                pass
            return stream.answer

    def stream(
        self,
        text: str,
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        prediction: str | None = None,
        drafts: bool = True,
    ) -> Stream:
        """Answer a prompt piece by piece, each as soon as it is certain.

        The request begins when the first piece is asked for, and other requests wait until the
        stream is exhausted, closed or dropped. Text that may be the start of a stop string is held
        back until that is decided. Arguments and errors are the same as in `generate`; some errors
        are raised with the first piece.
        """
        stats = Stats()
        stop_strings = StopStrings(stop)
        request = {
            "prompt_ids": self._tokenizer.encode(arguments.text("the prompt", text)),
            "max_new_tokens": arguments.count("max_new_tokens", max_new_tokens),
            "sampling": _sampling(temperature, top_k, top_p, seed),
            "stats": stats,
        }
        drafter = self._drafter if drafts else None
        if prediction is not None:
            expected = arguments.text("the prediction", prediction)
            if drafter is not None:
                request["prediction"] = self._tokenizer.encode(expected, special_tokens=False)
        running: list[ref[Generator[Step]]] = []
        steps = self._steps(request, drafter, running)
        running.append(ref(steps))
        return Stream(steps, stats, self._tokenizer.stream(), stop_strings)

    def close(self) -> None:
        """Release the target and what drafts for it. An open stream of this thread ends.

        Another thread's request ends first. In a fork of its process, nothing happens.
        """
        if self._opened.is_forked:
            return
        if self._owner is current_thread():
            running = self._running[0]()
            if running is not None:
                running.close()
        with self._lock:
            self._is_closed = True
            self._closing.close()

    def _steps(
        self,
        request: dict[str, Any],
        drafter: Drafting | None,
        running: list[ref[Generator[Step]]],
    ) -> Generator[Step]:
        """The steps of a request, while no other request runs.

        Args:
            request: Arguments of `generate`.
            drafter: None decodes plainly.
            running: The generator itself, so that `close` can end it.

        Raises:
            CallOrderError: This thread has a stream of the model open.
            SessionClosedError: The model is closed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        self._opened.check("model")
        if self._owner is current_thread():
            raise CallOrderError(
                "this thread has a stream of the model open: exhaust it or close it first"
            )
        with self._lock:
            if self._is_closed:
                raise SessionClosedError("the model is closed")
            if drafter is None:
                steps = plain(self._session, **request)
            else:
                steps = generate(self._session, drafter=drafter, history=self._history, **request)
            try:
                self._running = running
                while True:
                    self._owner = current_thread()
                    step = next(steps, None)
                    if step is None:
                        return
                    yield step
            finally:
                self._owner = None
                steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_choices(
    commit: str,
    history: Path | str | None,
    namespace: str | None,
    draft_model: Path | str | None,
    lookup_table: Path | str | None,
) -> None:
    """Check what is only used after the target is open, or not at all without drafts.

    Raises:
        OptionError: One cannot be what it stands for.
    """
    arguments.one_of("commit", commit, ("canonical", "compact"))
    if namespace is not None:
        arguments.text("namespace", namespace, may_be_empty=False)
    for name, path in (
        ("history", history),
        ("draft_model", draft_model),
        ("lookup_table", lookup_table),
    ):
        if path is not None:
            arguments.path(name, path)


def _sampling(temperature: float, top_k: int, top_p: float, seed: int) -> Sampling | None:
    """How to sample; None at temperature 0, where the options are checked all the same.

    Raises:
        OptionError: An option is out of range.
    """
    temperature = arguments.number("temperature", temperature, least=0)
    sampling = Sampling(
        temperature or 1.0,
        top_k=arguments.count("top_k", top_k, least=0, most=_LARGEST),
        top_p=arguments.number("top_p", top_p),
        seed=arguments.count("seed", seed, least=0, most=_LARGEST),
    )
    return sampling if temperature else None

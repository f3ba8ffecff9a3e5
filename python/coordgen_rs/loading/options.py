"""How a model is opened, as `Model.open` takes it: keywords with types and meanings.

In: keywords, which type checkers check. Out: a record of all, checked where it is made, which is
passed on whole. What depends on the bundle or on the process is checked when it is opened, by
`make_drafter`, and what is wrong with a file where it is read. The command line reads the same
table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from coordgen_rs._core import PLAIN
from coordgen_rs.bundle.directory import Progress
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE, Option, options_of, record
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.machine import most_threads
from coordgen_rs.runtime.session import COMMITS

if TYPE_CHECKING:
    from coordgen_rs.loading.directory import ProviderChoice
    from coordgen_rs.loading.profile import Profile

MOST_PARALLEL = 64
"""Most requests at a time that may be asked for."""


def _draft(name: str, value: object) -> object:
    if isinstance(value, str):
        return arguments.text(name, value)
    if not (found := arguments.names(name, value)):
        raise OptionError(f"{name} names no source; without drafts it is {PLAIN!r}")
    return found


def _profile(name: str, value: object) -> object:
    if not hasattr(value, "blocks"):
        arguments.of_type(name, value, str, Path)
    return value


def _provider(name: str, value: object) -> object:
    from coordgen_rs.loading.directory import PROVIDERS, ProviderChoice

    arguments.of_type(name, value, str, ProviderChoice)
    return arguments.one_of(name, value, PROVIDERS) if isinstance(value, str) else value


class SessionOptions(TypedDict, total=False):
    """Keywords of `open_session`, and of `Model.open`: how the target runs."""

    threads: Annotated[
        int | None,
        Option(least=1, most=most_threads()),
        "N: compute threads; default: one per core",
    ]
    """Compute threads of the process; None for one per core."""
    width: Annotated[int | None, Option(least=1)]
    """Use only decode graphs up to this width; None uses all."""
    switch: Annotated[
        str,
        Option("auto"),
        ": when to switch from the prefill graphs to the decode graphs; default %(default)s",
    ]
    """When to switch from the prefill graphs to the decode graphs: "auto" or another strategy
    (`coordgen plan` compares them)."""
    memory_budget: Annotated[
        int | None,
        Option(least=0),
        "BYTES: most memory for the blocks' graphs and experts (500M, 2G); experts are read and "
        "dropped by use, blocks that do not fit are loaded again in every pass, while others "
        "compute",
    ]
    """Most bytes that the blocks' graphs and experts may take, also while the bundle is tested;
    None for no limit. Experts are read and dropped by use. With "auto", blocks that do not fit are
    streamed from disk in every pass."""
    kv_cache: Annotated[
        str,
        Option(KV_FORMS[0], choices=KV_FORMS),
        ": how keys and values are held, on CPU: f32 (default), f16 in half the memory, or q8 in "
        "about a quarter; tokens may differ from f32's",
    ]
    """How keys and values are held, also of the draft model: "f32", in 16 bits "f16" or in 8 bits
    "q8", which take a half and about a quarter of the memory. Drafts still change no token, but a
    form's tokens may differ from another's."""
    profile: Annotated[
        "Profile | Path | str | None",
        Option(check=_profile),
        "FILE: a profile from `coordgen profile`, for --switch and --memory-budget",
    ]
    """What the blocks cost: a profile, a file written by `coordgen profile`, or the name of a
    profile that comes with the package; None estimates it from their sizes."""
    provider: Annotated["ProviderChoice | str | None", Option(check=_provider)]
    """What runs it, "cpu" or "qnn", or a `ProviderChoice` with QNN's options; None leaves all to
    the bundle."""
    on_progress: Annotated[Progress | None, Option(check=arguments.function)]
    """Called with what is being done, how much is done, and how much there is; only where something
    is converted, verified or tested."""


class OpenOptions(SessionOptions, total=False):
    """Keywords of `Model.open`; those of its session come with `SessionOptions`."""

    context: Annotated[
        int | None,
        Option(least=1),
        "N: most tokens of prompt and answer together; default: what the bundle was made for, and "
        "of a checkpoint 4096; more is for checkpoints, which are converted once more for it",
    ]
    """Most tokens of prompt and answer together, but for the answer's last; None for as many as the
    bundle was exported for. What is converted here has room for 4,096, or for more where they are
    asked for."""
    chat_template: Annotated[
        Path | str | None, Option(), "FILE: a chat template in Jinja; default: the bundle's own"
    ]
    """A chat template in Jinja, in place of the bundle's."""
    parallel: Annotated[
        int | None,
        Option(1, least=1, most=MOST_PARALLEL),
        "N: most requests that are answered at a time, in the same steps; default: up to 4, as "
        "memory allows",
    ]
    """Most requests that are answered at a time, in the same steps; the tokens of each are those
    that it would get alone. Others wait; with 1, the default, requests take turns, as they do where
    the target cannot (`why_alone` tells). Each takes the memory of a cache; None is up to four, as
    memory allows."""
    draft: Annotated[
        str | Sequence[str],
        Option("auto", check=_draft),
        ": how to draft: auto (default), another method, or plain for no drafts; see "
        "docs/sources-and-methods.md",
    ]
    """Where drafts come from: the name of a method, the names of sources, or "plain"."""
    commit: Annotated[
        str,
        Option("auto", choices=COMMITS),
        ": canonical is always exact, compact where `coordgen check` says so; auto (default) takes "
        "compact where it is",
    ]
    """"canonical" (exact everywhere), "compact" (exact where `coordgen check` says so), or "auto":
    compact where side branches were exact when the bundle was tested."""
    draft_model: Annotated[
        Path | str | None,
        "BUNDLE: a smaller model with the same tokenizer that also drafts; edgellm needs it",
    ]
    """The directory of a smaller bundle with the same tokenizer, which also drafts."""
    lookup_table: Annotated[
        Path | str | None, "FILE: a table written by `coordgen warm-up`, for --draft diaa and blend"
    ]
    """A file written by `coordgen warm-up`."""
    remember: Annotated[bool, Option(default=True)]
    """Whether requests may draft from earlier ones of the same namespace, which then stay in
    memory: the last half million tokens (a history takes their place), and reuse what was read of
    them. With False nothing is kept from one request to the next: answers are the same, but how
    fast they come tells nothing of others."""
    history: Annotated[
        Path | str | None,
        "DIR: also draft from earlier requests kept here, and keep this one; created if missing",
    ]
    """A directory of finished requests to draft from, and to keep these in."""
    namespace: Annotated[
        str | None,
        Option(may_be_empty=False),
        "NAME: e.g. task and user; requests of other namespaces are not drafted from; "
        f"default: {DEFAULT_NAMESPACE}",
    ]
    """Such as task and user; requests of other namespaces are not drafted from. Requests that do
    not name another one are of this one, "default" by default."""
    nearest_namespace: Annotated[
        bool,
        Option(default=False),
        ": a request that names no namespace drafts from the one whose requests are most like its "
        "prompt; for one user's own: how fast answers come tells what others asked",
    ]
    """Whether a request that names no namespace drafts from that one of the history whose requests
    its prompt is most like, of the newest 64; it is kept in the model's own all the same. How fast
    answers come then tells what stands in others: only for namespaces of one user."""
    history_max_tokens: Annotated[int | None, Option(least=1)]
    """Most tokens that the history keeps; see `History`."""
    fleet_history: Annotated[
        Path | str | None,
        "DIR: also draft from a directory written by `coordgen history build`; only read",
    ]
    """A directory written by `coordgen history build`, or a copy, to draft from as well. An index
    that is replaced there is taken up by the next request."""
    fleet_namespace: Annotated[
        str | None,
        Option(may_be_empty=False),
        "NAME: the namespace of --fleet-history; default: that of --namespace",
    ]
    """The namespace of the fleet index to draft from; None for `namespace`."""
    prefix_memory: Annotated[int, Option(0, least=0)]
    """Most bytes of prefixes of earlier requests that are kept, so that dialogues which take turns
    are not read again; 0 keeps only the last request's."""
    prefix_store: Annotated[
        Path | str | None,
        "DIR: keep tokens of prompts and answers, and what was computed of them, in this "
        "directory, unencrypted, so that they are not computed again after a restart: what users "
        "say is then on disk; created if missing; default: nothing is kept there",
    ]
    """A directory in which prefixes are kept as well, so that they outlast the process: tokens of
    prompts and answers, and what was computed of them, by namespace. Created if missing; several
    processes may share it. `coordgen prefixes` lists and clears it. A request with
    `reuse_prefix=False` is not kept."""
    prefix_store_size: Annotated[
        int | None,
        Option(least=1),
        "SIZE: most of the disk for all in --prefix-store, the least recently used goes first; "
        "default 4G",
    ]
    """Most bytes of that directory, the least recently used go first; None for 4 GB."""


OPEN_OPTIONS = options_of(OpenOptions)
"""The options of opening a model, by name."""

NEEDED = {
    "nearest_namespace": "history",
    "fleet_namespace": "fleet_history",
    "history_max_tokens": "history",
    "prefix_store_size": "prefix_store",
}
"""Options, and those without which they would be ignored."""
DRAFTED_FROM = {
    "history": "history",
    "fleet_history": "fleet's history",
    "draft_model": "draft model",
    "lookup_table": "look-up table",
}
"""Options that would be ignored without drafts, and what they name."""


def open_options(function: str, given: Mapping[str, Any]) -> OpenOptions:
    """The record of how a model is opened: all options, checked.

    Args:
        function: What was called, for messages.
        given: Options that were given.

    Raises:
        OptionError: One is of a wrong type or out of range for every bundle, there is no such
            option, it would be ignored, or two exclude each other.
    """
    options: OpenOptions = record(function, OpenOptions, given)
    known: Mapping[str, Any] = options
    for name, needed in NEEDED.items():
        if known[name] not in (None, False) and known[needed] is None:
            raise OptionError(f"{name} needs a {needed}, but there is none")
    for what, keeps in (
        ("a history", options["history"] is not None),
        ("prefix_memory", options["prefix_memory"]),
        ("a prefix_store", options["prefix_store"] is not None),
    ):
        if keeps and not options["remember"]:
            raise OptionError(f"{what} remembers requests, but remember is False")
    for name, what in DRAFTED_FROM.items():
        if known[name] is not None and options["draft"] == PLAIN:
            raise OptionError(f"a {what} needs drafts, but draft is {PLAIN!r}")
    return options


def found_profile(options: OpenOptions) -> "Profile | None":
    """The profile, read where it is a name or a path; raises as `Profile.find` does."""
    if not isinstance(options["profile"], str | Path):
        return options["profile"]
    from coordgen_rs.loading.profile import Profile

    return Profile.find(str(options["profile"]))


def chosen_provider(options: OpenOptions) -> "ProviderChoice":
    """What runs the bundle, and how; all is the bundle's to say where nothing was asked for."""
    from coordgen_rs.loading.directory import ProviderChoice

    provider = options["provider"]
    return provider if isinstance(provider, ProviderChoice) else ProviderChoice(provider)

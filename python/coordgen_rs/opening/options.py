"""How a bundle is opened: one record, checked where it is made.

In: a path, and what a user asks for. Out: an `OpeningOptions`, which is passed on whole. What
depends on the bundle or on the process is checked when it is opened.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordgen_rs.errors import arguments
from coordgen_rs.opening.provider import PROVIDERS, ProviderChoice
from coordgen_rs.target.kv_cache import KV_FORMS

if TYPE_CHECKING:
    from coordgen_rs.opening.profile import Profile


MOST_PARALLEL = 64
"""Most requests at a time that may be asked for."""


@dataclass(frozen=True)
class OpeningOptions:
    """How a bundle is opened; fields are the same as in `Model.open`.

    Raises:
        OptionError: One is of a wrong type, or out of range for every bundle.
    """

    path: Path | str
    threads: int | None = None
    width: int | None = None
    context: int | None = None
    switch: str = "auto"
    memory_budget: int | None = None
    kv_cache: str = KV_FORMS[0]
    profile: "Profile | Path | str | None" = None
    provider: ProviderChoice | str | None = None
    chat_template: Path | str | None = None
    parallel: int | None = 1
    on_progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        arguments.path("path", self.path)
        if self.parallel is not None:
            arguments.count("parallel", self.parallel, most=MOST_PARALLEL)
        for name in ("threads", "width", "context"):
            value = getattr(self, name)
            if value is not None:
                arguments.count(name, value)
        arguments.text("switch", self.switch)
        if self.memory_budget is not None:
            arguments.count("memory_budget", self.memory_budget, least=0)
        arguments.one_of("kv_cache", self.kv_cache, KV_FORMS)
        if not hasattr(self.profile, "blocks"):
            arguments.of_type("profile", self.profile, str, Path)
        arguments.of_type("provider", self.provider, str, ProviderChoice)
        if isinstance(self.provider, str):
            arguments.one_of("provider", self.provider, PROVIDERS)
        if self.chat_template is not None:
            arguments.path("chat_template", self.chat_template)
        arguments.function("on_progress", self.on_progress)

    def found_profile(self) -> "Profile | None":
        """The profile, read where it is a name or a path; raises as `Profile.find` does."""
        if not isinstance(self.profile, str | Path):
            return self.profile
        from coordgen_rs.opening.profile import Profile

        return Profile.find(str(self.profile))

    def chosen_provider(self) -> ProviderChoice:
        """What runs the bundle, and how; all is the bundle's to say where nothing was asked for."""
        if isinstance(self.provider, ProviderChoice):
            return self.provider
        return ProviderChoice(self.provider)

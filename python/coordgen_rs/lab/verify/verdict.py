"""What all findings together say: one verdict, and the figures.

In: findings. Out: a `Report`, as JSON types; `shown.py` makes text and Markdown of it.
"""

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from coordgen_rs.cli.exit_codes import DIFFERENT, DONE, INTERRUPTED, NO_VERDICT, SERVER_FAILED
from coordgen_rs.errors.extras import package_version
from coordgen_rs.lab.verify.asking import Server
from coordgen_rs.lab.verify.examination import Finding
from coordgen_rs.lab.verify.replies import Reply

SCHEMA = 1
"""The version of the JSON report; it grows when a field changes its meaning or goes."""

Verdict = Literal["exact", "differs", "noise", "not compared", "failed", "interrupted"]

EXIT_CODE: dict[Verdict, int] = {
    "exact": DONE,
    "differs": DIFFERENT,
    "noise": NO_VERDICT,
    "not compared": NO_VERDICT,
    "failed": SERVER_FAILED,
    "interrupted": INTERRUPTED,
}


@dataclass(frozen=True)
class Speed:
    """Medians over the first stream of each question, for one side.

    None where the server says too little. Later streams may be drafted from the first.

    Attributes:
        first_s: Seconds to the first text.
        tokens_per_s: Behind it.
        num_drafted: Draft tokens of all answers, streamed or not.
        num_accepted: Those that were accepted.
    """

    first_s: float | None
    tokens_per_s: float | None
    num_drafted: int | None
    num_accepted: int | None


@dataclass
class Report:
    """All that was found.

    Attributes:
        command: What was typed, without keys.
        server: What was asked; None if it did not answer.
        plain: What was asked without drafts; None if nothing was.
        plain_is: How it is plain, in words.
        total: How many findings there were to be.
        findings: Those that there are.
        failure: Why nothing could be asked at all.
        is_interrupted: Whether the user ended it.
    """

    command: str
    server: Server | None = None
    plain: Server | None = None
    plain_is: str = "nothing"
    total: int = 0
    findings: list[Finding] = field(default_factory=list)
    failure: str | None = None
    is_interrupted: bool = False

    @property
    def counts(self) -> Counter[str]:
        """How many findings have each status."""
        return Counter(finding.status for finding in self.findings)

    @property
    def verdict(self) -> Verdict:
        """The whole in a word; what is certainly wrong comes before what is not known."""
        counts = self.counts
        if counts["differs"] or counts["near tie"]:
            return "differs"
        if self.is_interrupted:
            return "interrupted"
        if self.failure is not None or counts["failed"] or self.is_empty:
            return "failed"
        if counts["noise"]:
            return "noise"
        return "exact" if self.are_compared else "not compared"

    @property
    def is_empty(self) -> bool:
        """Whether no answer says anything."""
        replies = (reply for drafts in (True, False) for reply in self._replies(drafts=drafts))
        return all(reply.said.is_empty for reply in replies)

    @property
    def is_one_server(self) -> bool:
        """Whether the same server is asked with and without drafts."""
        if self.server is None or self.plain is None:
            return False
        return self.server.address.shown == self.plain.address.shown

    @property
    def are_compared(self) -> bool:
        """Whether one side had drafts and the other had none, as far as they tell.

        Of two servers it is believed; one that is told to leave drafts out has to show that it
        makes any.
        """
        drafted = self.speed(drafts=True).num_drafted
        if self.plain is None or self.plain_drafted or drafted == 0:
            return False
        return bool(drafted) or not self.is_one_server

    @property
    def exit_code(self) -> int:
        """The exit code; of what was interrupted that of an interruption, whatever was found."""
        return INTERRUPTED if self.is_interrupted else EXIT_CODE[self.verdict]

    @property
    def plain_drafted(self) -> int:
        """Draft tokens of answers that should have none."""
        return self.speed(drafts=False).num_drafted or 0

    @property
    def version(self) -> str | None:
        """The server's, as it tells it beforehand, or else with its answers."""
        return _version(self.server, *(reply.version for reply in self._replies(drafts=True)))

    def speed(self, *, drafts: bool) -> Speed:
        """The figures of one side."""
        replies = list(self._replies(drafts=drafts))
        first = list(self._replies(drafts=drafts, most=1))
        return Speed(
            _median(reply.first_s for reply in first),
            _median(reply.tokens_per_s for reply in first),
            _sum(reply.num_drafted for reply in replies),
            _sum(reply.num_accepted for reply in replies),
        )

    def _replies(self, *, drafts: bool, most: int | None = None) -> Iterable[Reply]:
        for finding in self.findings:
            for way, replies in finding.replies.items():
                if way.drafts == drafts:
                    yield from replies[:most]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "command": self.command,
            "coordgen": package_version(),
            "python": platform.python_version(),
            "system": platform.system(),
            "server": _described(self.server, self.version),
            "plain": _described(self.plain, _version(self.plain)),
            "plain_is": self.plain_is,
            "failure": self.failure,
            "interrupted": self.is_interrupted,
            "asked": len(self.findings),
            "to_ask": self.total,
            "counts": dict(self.counts),
            "with_drafts": vars(self.speed(drafts=True)),
            "without_drafts": vars(self.speed(drafts=False)),
            "findings": [finding.to_json() for finding in self.findings],
        }


def _version(server: Server | None, *told: str | None) -> str | None:
    """A server's version, as it tells it beforehand, else with its answers, else in their heads."""
    if server is None:
        return None
    return next((version for version in (server.version, *told, server.header) if version), None)


def _described(server: Server | None, version: str | None) -> dict[str, Any] | None:
    if server is None:
        return None
    return {
        "url": server.address.shown,
        "kind": server.kind,
        "version": version,
        "model": server.model,
        "fields": dict(server.fields),
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

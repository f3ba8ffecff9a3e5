"""What all findings together say: one verdict, and the figures.

In: findings. Out: a `Report`, as JSON types, as text for a terminal, or as Markdown for an issue.
What a server said is shown escaped, so that it steers nothing.
"""

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from coordgen_rs.cli.exit_codes import DIFFERENT, DONE, INTERRUPTED, NO_VERDICT, SERVER_FAILED
from coordgen_rs.cli.terminal.text import counted, printable
from coordgen_rs.errors.extras import package_version
from coordgen_rs.lab.verify.examination import Finding
from coordgen_rs.lab.verify.replies import Reply
from coordgen_rs.lab.verify.server import Server

SCHEMA = 1
"""The version of the JSON report; it grows when a field changes its meaning or goes."""

Verdict = Literal["exact", "differs", "noise", "not compared", "failed", "interrupted"]

_VERDICTS: dict[Verdict, tuple[int, str]] = {
    "exact": (DONE, "exact: every answer was the same with and without drafts, streamed and whole"),
    "differs": (DIFFERENT, "differs: answers to the same question are not the same"),
    "noise": (
        NO_VERDICT,
        "no verdict: the server's answers to one question change from time to time",
    ),
    "not compared": (
        NO_VERDICT,
        "no verdict on drafts: answers with them and without were not to be had",
    ),
    "failed": (SERVER_FAILED, "failed: the server did not answer as it should"),
    "interrupted": (INTERRUPTED, "interrupted: this is what was found until then"),
}
"""The exit code of each verdict, and what is said of it."""

_SAME = "no verdict on drafts: every answer was the same, but {}"
_SHOWN = 20
"""Most findings that text and Markdown show; JSON has all."""


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
        return "exact" if self.doubts[0] is None else "not compared"

    @property
    def is_empty(self) -> bool:
        """Whether no answer says anything."""
        replies = (reply for drafts in (True, False) for reply in self._replies(drafts=drafts))
        return all(reply.said.is_empty for reply in replies)

    @property
    def doubts(self) -> tuple[str | None, str | None]:
        """Why drafts were not put to the test, and what a reader must know of that, if anything.

        Of two servers it is believed that one had none; one that is told to leave drafts out has
        to show that it makes any.
        """
        if self.server is None or self.plain is None:
            return "nothing answered without drafts", None
        drafted = self.speed(drafts=True)
        if self.speed(drafts=False).num_drafted:
            return (
                "both sides had drafts",
                "the answers that should have no drafts have some: they are not switched off",
            )
        if drafted.num_drafted == 0:
            return "none had drafts", "the answers that should have drafts have none"
        if drafted.num_drafted is None and self.server.address.shown == self.plain.address.shown:
            return (
                "whether any had drafts is not known",
                "the server does not tell its drafts, so whether they were switched is not known",
            )
        if drafted.num_drafted is None:
            return None, "neither server tells its drafts: that only one had some is believed"
        if not drafted.num_accepted:
            return None, "no draft was accepted, so that drafts were hardly put to the test"
        return None, None

    @property
    def exit_code(self) -> int:
        """The exit code; of what was interrupted that of an interruption, whatever was found."""
        return INTERRUPTED if self.is_interrupted else _VERDICTS[self.verdict][0]

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


def as_text(report: Report) -> str:
    """The report for a terminal."""
    lines = [_headline(report), *_facts(report), ""]
    lines += [f"{name:15} {text}" for name, text in _figures(report)]
    for finding in _told(report):
        lines += ["", *_finding(finding)]
    return "\n".join([*lines, *_more(report)])


def as_markdown(report: Report) -> str:
    """The report as one pastes it into an issue."""
    lines = [f"**{_headline(report)}**", "", "```text", *_facts(report), "```", ""]
    lines += ["```sh", report.command, "```", "", "| side | figures |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in _figures(report)]
    for finding in _told(report):
        head, *rest = _finding(finding)
        lines += ["", f"### {head.replace('`', chr(39))}", "", "```text", *rest, "```"]
    return "\n".join([*lines, *_more(report)])


def _headline(report: Report) -> str:
    _, said = _VERDICTS[report.verdict]
    num_refused = report.counts["refused"]
    is_same = report.verdict == "not compared" and report.plain is not None
    if is_same:
        said = _SAME.format(report.doubts[0])
    if num_refused and (is_same or report.verdict == "exact"):
        return f"{said}; {counted(num_refused, 'question')} refused"
    return said


def _facts(report: Report) -> list[str]:
    facts = []
    if report.server is not None:
        server, version = report.server, report.version
        what = f"{server.kind} {version or '(tells no version)'}"
        model = "no model listed" if server.model is None else f"model {server.model}"
        facts.append(_safe(f"server: {what} at {server.address.shown}, {model}"))
        if report.verdict == "failed" and server.model is None:
            facts.append(
                "it lists no models: the URL should be that of an API like OpenAI's, up to its /v1"
            )
    facts.append(_safe(f"without drafts: {report.plain_is}"))
    told = (report.failure and _safe(report.failure), report.doubts[1])
    facts += [one for one in told if one is not None]
    if report.findings and report.failure is None and report.is_empty:
        facts.append("no answer says anything")
    counts = ", ".join(f"{num} {status}" for status, num in report.counts.items()) or "none"
    facts.append(f"asked: {counted(len(report.findings), 'question')} of {report.total}: {counts}")
    return [
        *facts,
        f"by coordgen {package_version()}, Python {platform.python_version()}, {platform.system()}",
    ]


def _figures(report: Report) -> list[tuple[str, str]]:
    sides = {"with drafts": True, "without drafts": False}
    return [(name, _speed(report.speed(drafts=drafts))) for name, drafts in sides.items()]


def _speed(speed: Speed) -> str:
    told = []
    if speed.first_s is not None:
        told.append(f"first token after {1000 * speed.first_s:.0f} ms")
    if speed.tokens_per_s is not None:
        told.append(f"{speed.tokens_per_s:.1f} tokens/s")
    if speed.num_drafted == 0:
        told.append("no drafts")
    elif speed.num_drafted is not None:
        told.append(f"{speed.num_accepted or 0:,} of {speed.num_drafted:,} draft tokens accepted")
    return ", ".join(told) or "nothing is told"


def _told(report: Report) -> list[Finding]:
    """Findings that are not exact, the worst first; of equal refusals the first."""
    order = ("differs", "near tie", "failed", "noise", "refused")
    told: dict[object, Finding] = {}
    for finding in report.findings:
        if finding.status != "exact":
            key = finding.why if finding.status == "refused" else id(finding)
            told.setdefault(key, finding)
    found = sorted(told.values(), key=lambda finding: order.index(finding.status))
    return found[:_SHOWN]


def _more(report: Report) -> list[str]:
    num = sum(finding.status != "exact" for finding in report.findings) - len(_told(report))
    return ["", f"and {num} more like these: --json has all"] if num > 0 else []


def _finding(finding: Finding) -> list[str]:
    head = f"{finding.question.name}, {finding.sampling.name}: {finding.status}"
    lines = [_safe(head)]
    if finding.way is not None:
        ways = finding.way.name
        if finding.times is not None:
            ways += f": {finding.times[0]} of {finding.times[1]} answers"
            if finding.expected not in (None, finding.way) and finding.expected is not None:
                ways += f", compared with {finding.expected.name}"
        lines.append(f"  {ways}")
    if finding.why is not None:
        lines.append(f"  {_safe(finding.why)}")
    if (found := finding.difference) is not None:
        lines += [
            f"  {found.part}, from character {found.at}, behind {_quoted(found.before)}",
            f"    expected: {_quoted(found.expected)}",
            f"    found:    {_quoted(found.found)}",
        ]
    if finding.gap is not None:
        lines.append(f"  the two likeliest tokens there are {finding.gap:.3f} nats apart")
    return lines


def _quoted(text: str) -> str:
    return f'"{_safe(text)}"'


def _safe(text: str) -> str:
    return printable(text).replace("```", "` ` `")

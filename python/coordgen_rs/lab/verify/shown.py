"""A report for people: as text for a terminal, or as Markdown for an issue.

In: a `Report`. Out: text. What a server said is shown escaped, so that it steers nothing.
"""

import platform

from coordgen_rs.cli.terminal.formatting import counted, printable
from coordgen_rs.errors.extras import package_version
from coordgen_rs.lab.verify.examination import Finding
from coordgen_rs.lab.verify.verdict import Report, Speed, Verdict

_VERDICTS: dict[Verdict, str] = {
    "exact": "exact: every answer was the same with and without drafts, streamed and whole",
    "differs": "differs: answers to the same question are not the same",
    "noise": "no verdict: the server's answers to one question change from time to time",
    "not compared": "no verdict on drafts: answers with them and without were not to be had",
    "failed": "failed: the server did not answer as it should",
    "interrupted": "interrupted: this is what was found until then",
}
_SAME = "no verdict on drafts: every answer was the same, but {}"
_SHOWN = 20
"""Most findings that text and Markdown show; JSON has all."""


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
    said = _VERDICTS[report.verdict]
    num_refused = report.counts["refused"]
    is_same = report.verdict == "not compared" and report.plain is not None
    if is_same:
        said = _SAME.format(_why_not_compared(report))
    if num_refused and (is_same or report.verdict == "exact"):
        return f"{said}; {counted(num_refused, 'question')} refused"
    return said


def _why_not_compared(report: Report) -> str:
    if report.plain_drafted:
        return "both sides had drafts"
    if report.speed(drafts=True).num_drafted == 0:
        return "none had drafts"
    return "whether any had drafts is not known"


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
    if report.failure is not None:
        facts.append(_safe(report.failure))
    facts += _about_drafts(report)
    if report.findings and report.failure is None and report.is_empty:
        facts.append("no answer says anything")
    counts = ", ".join(f"{num} {status}" for status, num in report.counts.items()) or "none"
    facts.append(f"asked: {counted(len(report.findings), 'question')} of {report.total}: {counts}")
    return [
        *facts,
        f"by coordgen {package_version()}, Python {platform.python_version()}, {platform.system()}",
    ]


def _about_drafts(report: Report) -> list[str]:
    """What makes a comparison doubtful."""
    if report.plain is None:
        return []
    speed = report.speed(drafts=True)
    if report.plain_drafted:
        return ["the answers that should have no drafts have some: they are not switched off"]
    if speed.num_drafted == 0:
        return ["the answers that should have drafts have none"]
    if speed.num_drafted is None and report.is_one_server:
        return ["the server does not tell its drafts, so whether they were switched is not known"]
    if speed.num_drafted is None:
        return ["neither server tells its drafts: that only one had some is believed"]
    if not speed.num_accepted:
        return ["no draft was accepted, so that drafts were hardly put to the test"]
    return []


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

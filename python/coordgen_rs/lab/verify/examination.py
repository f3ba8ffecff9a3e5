"""Asking each question in every way, and what follows from the answers.

In: a server, another that is plain or None, questions. Out: a `Finding` for each question and way
of sampling. Where all answers are equal they were asked once; where not, they are asked again, to
tell what a server does by itself from what drafts and streams do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coordgen_rs.lab.verify.replies import Answer, AnswerError, Difference, Reply, difference
from coordgen_rs.lab.verify.server import Form, Question, RefusedError, Sampling, Server

Status = Literal["exact", "differs", "near tie", "noise", "refused", "failed"]

NEAR_TIE = 0.1
"""Nats between the two likeliest tokens, below which rounding may turn one into the other."""

MOST_FAILURES = 3
"""Questions that fail one after another before no more are asked."""

FORMS: tuple[Form, Form] = ("whole", "streamed")


@dataclass(frozen=True)
class Mode:
    """How an answer was asked for."""

    drafts: bool
    form: Form

    @property
    def name(self) -> str:
        """As reports show it."""
        return f"{'with' if self.drafts else 'without'} drafts, {self.form}"


@dataclass
class Finding:
    """What came of one question, sampled in one way.

    Attributes:
        question: What was asked.
        sampling: How.
        status: The verdict.
        replies: All answers, by the way in which they were asked for.
        expected: The way whose answer the others were compared with.
        way: The first way that gave another; None where none did.
        difference: Where the two part.
        why: What was refused, failed, or is wrong with an answer by itself.
        times: How many answers of `way` differ, and how many there are.
        gap: Nats between the likeliest tokens there, if the server tells it.
    """

    question: Question
    sampling: Sampling
    status: Status = "exact"
    replies: dict[Mode, list[Reply]] = field(default_factory=dict)
    expected: Mode | None = None
    way: Mode | None = None
    difference: Difference | None = None
    why: str | None = None
    times: tuple[int, int] | None = None
    gap: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON types."""
        return {
            "question": self.question.name,
            "kind": self.question.kind,
            "sampling": self.sampling.name,
            "status": self.status,
            "answers": sum(map(len, self.replies.values())),
            "way": self.way.name if self.way else None,
            "compared_with": self.expected.name if self.way and self.expected else None,
            "difference": self.difference.to_json() if self.difference else None,
            "why": self.why,
            "differing": list(self.times) if self.times else None,
            "gap_nats": self.gap,
        }


def examine(
    server: Server,
    plain: Server | None,
    questions: Sequence[Question],
    samplings: Sequence[Sampling],
    *,
    rounds: int,
    repeats: int,
) -> Iterator[Finding]:
    """Ask all questions; ends early where the server fails again and again.

    Args:
        server: Asked with drafts.
        plain: Asked without; None where that cannot be.
        questions: What to ask.
        samplings: How.
        rounds: How often each question is asked in each way.
        repeats: How often again, where answers differ.
    """
    failures = 0
    for question in questions:
        for sampling in samplings:
            finding = Finding(question, sampling)
            _examine(finding, server, plain, rounds, repeats)
            yield finding
            failures = failures + 1 if finding.status == "failed" else 0
            if failures == MOST_FAILURES:
                return


def _examine(
    finding: Finding, server: Server, plain: Server | None, rounds: int, repeats: int
) -> None:
    """Ask one question, and fill in what comes of it."""
    question, sampling = finding.question, finding.sampling
    sides = {True: server} if plain is None else {False: plain, True: server}
    ways = [Mode(drafts, form) for drafts in sides for form in FORMS]
    finding.expected = ways[0]

    def ask(ways: Sequence[Mode], times: int) -> bool:
        for _ in range(times):
            for way in reversed(ways):  # drafts first: no answer to draft from has been given
                try:
                    reply = sides[way.drafts].ask(question, sampling, way.form)
                except AnswerError as error:
                    finding.status = "refused" if isinstance(error, RefusedError) else "failed"
                    finding.way, finding.why = way, str(error)
                    return False
                finding.replies.setdefault(way, []).append(reply)
        return True

    if not ask(ways, question.times * rounds):
        if not finding.replies or _is_uniform(finding.replies):
            if finding.replies and finding.status == "refused":
                finding.status = "failed"  # it took the same question in another way
            return
        # What is known already is more than that it failed then.
        finding.expected = next(way for way in ways if way in finding.replies)
        finding.way = None
    elif not _is_uniform(finding.replies) and not ask(ways, repeats):
        finding.status, finding.way, finding.why = "exact", None, None
    _judge(finding)
    if finding.difference and finding.difference.part == "content" and sampling.seed is None:
        finding.gap = sides[ways[0].drafts].gap_at(question, finding.difference.at)
        if finding.status == "differs" and finding.gap is not None and finding.gap <= NEAR_TIE:
            finding.status = "near tie"


def _is_uniform(replies: dict[Mode, list[Reply]]) -> bool:
    said = {reply.said for of in replies.values() for reply in of}
    return len(said) == 1


def _judge(finding: Finding) -> None:
    """Fill in the verdict. The expected answer is that of the first way, asked whole.

    What is said now in one way, now in another, without drafts, in the same form, is noise.
    """
    if finding.expected is None:
        return
    first = [reply.said for reply in finding.replies[finding.expected]]
    expected = first[0]
    if any(said != expected for said in first):
        finding.status = "noise"
        _tell(finding, finding.expected, expected)
        _fault(finding)
        return
    for way in sorted(finding.replies, key=lambda way: (way.drafts, FORMS.index(way.form))):
        if way != finding.expected and _tell(finding, way, expected):
            is_noise = not way.drafts and any(
                reply.said == expected for reply in finding.replies[way]
            )
            finding.status = "noise" if is_noise else "differs"
            break
    _fault(finding)


def _tell(finding: Finding, way: Mode, expected: Answer) -> bool:
    """Fill in where a way's answers part from the expected one, if one does."""
    said = [reply.said for reply in finding.replies[way]]
    others = [other for other in said if other != expected]
    if others:
        finding.way, finding.times = way, (len(others), len(said))
        finding.difference = difference(expected, others[0])
    return bool(others)


def _fault(finding: Finding) -> None:
    """Where answers differ, one that is wrong by itself is at fault, whatever the others say.

    Where all are alike, the model itself wrote it.
    """
    if _is_uniform(finding.replies):
        return
    for way, replies in finding.replies.items():
        for reply in replies:
            if finding.why is None and (fault := reply.said.fault()) is not None:
                finding.status, finding.why = "differs", fault
                finding.way = finding.way or way

"""Whole answers by several engines in turns, on the same prompts in the same run.

In: contestants, which answer prompts, and prompts by task. Out: what each did on each task, as
medians over the rounds. The first contestant says what the tokens must be. It knows no engine; one
that fails is left out from then on, and the others go on.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.tables import rotated


class ContestantFailedError(CoordgenError):
    """A contestant cannot go on; the message says why."""


class Answer(NamedTuple):
    """What one contestant did with one prompt.

    Attributes:
        tokens: All tokens given out, the end token included.
        decoded: How many of them decoding brought. An engine that reads the whole prompt first
            takes the first token from that, and does not decode it.
        steps: Runs of the model in decoding.
        prompt_s: Seconds from the call to the beginning of decoding.
        decode_s: Seconds of decoding.
    """

    tokens: list[int]
    decoded: int
    steps: int
    prompt_s: float
    decode_s: float


class Contestant:
    """An engine with its settings.

    Attributes:
        name: Its row in the table.
    """

    name: str

    def begin(self):
        """Forget all prompts so far: a round of a task starts. Most keep nothing."""

    def answer(self, prompt, max_new_tokens):
        """An `Answer` to the prompt `(tokens,) u32`, by greedy choice.

        Raises ContestantFailedError where it cannot, as `begin` does.
        """
        raise NotImplementedError


class Figures(NamedTuple):
    """What a contestant did on a task.

    Attributes:
        tokens_per_s: Of decoding: tokens of all prompts by their median seconds.
        whole_tokens_per_s: The same with the seconds that the prompts took.
        tokens_per_step: Decoded tokens a run of the model.
        slowest: Decoding rate of the slowest round.
        fastest: Of the fastest.
        different: Answers that are not those of the first contestant.
    """

    tokens_per_s: float
    whole_tokens_per_s: float
    tokens_per_step: float
    slowest: float
    fastest: float
    different: int


@dataclass
class Contest:
    """All answers: by contestant and task, a list for each prompt, with an answer a round.

    Attributes:
        answers: Of the contestants that answered everything.
        failures: Why the others did not, by contestant.
    """

    answers: dict[str, dict[str, list[list[Answer]]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def figures(self, name, tasks):
        """`Figures` of a contestant over some tasks."""
        prompts = [answers for task in tasks for answers in self.answers[name][task]]
        expected = [answers[0].tokens for task in tasks for answers in self._first()[task]]
        decoded = sum(answers[0].decoded for answers in prompts)
        rates = [_rate(answers) for answers in zip(*prompts, strict=True)]
        return Figures(
            tokens_per_s=decoded / _seconds(prompts, lambda answer: answer.decode_s),
            whole_tokens_per_s=sum(len(answers[0].tokens) for answers in prompts)
            / _seconds(prompts, lambda answer: answer.prompt_s + answer.decode_s),
            tokens_per_step=decoded / sum(answers[0].steps for answers in prompts),
            slowest=min(rates),
            fastest=max(rates),
            different=sum(
                any(answer.tokens != tokens for answer in answers)
                for answers, tokens in zip(prompts, expected, strict=True)
            ),
        )

    def recorded(self):
        """Task and answer of each prompt, as the first contestant gave them, in order."""
        return [(task, answers[0]) for task, of in self._first().items() for answers in of]

    def ask(self, contestant, call, *arguments):
        """What a contestant's call gives; None where it fails now, or has failed before."""
        if contestant.name in self.failures:
            return None
        try:
            return call(*arguments)
        except ContestantFailedError as error:
            self.failures[contestant.name] = str(error)
            del self.answers[contestant.name]
            return None

    def _first(self):
        return next(iter(self.answers.values()))


def hold(contestants: Sequence[Contestant], prompts, rounds, max_new_tokens, on_progress):
    """Let all answer all prompts; who begins changes from prompt to prompt.

    Args:
        contestants: At least one, each with a name of its own.
        prompts: Token ids `(tokens,) u32` by task.
        rounds: How often each prompt is answered.
        max_new_tokens: Longest answer.
        on_progress: Called with a task, the prompts done and those in all.

    Returns:
        A `Contest`.
    """
    contest = Contest(
        {c.name: {task: [[] for _ in of] for task, of in prompts.items()} for c in contestants}
    )
    total, done = rounds * sum(map(len, prompts.values())), 0
    for number in range(rounds):
        for task, of_task in prompts.items():
            for contestant in contestants:
                contest.ask(contestant, contestant.begin)
            for index, prompt in enumerate(of_task):
                for contestant in rotated(contestants, number + index):
                    answer = contest.ask(contestant, contestant.answer, prompt, max_new_tokens)
                    if answer is not None:
                        contest.answers[contestant.name][task][index].append(answer)
                done += 1
                on_progress(task, done, total)
    return contest


def _seconds(prompts, seconds_of):
    """Sum over the prompts of the median over the rounds."""
    return sum(statistics.median(map(seconds_of, answers)) for answers in prompts)


def _rate(answers):
    return sum(a.decoded for a in answers) / sum(a.decode_s for a in answers)

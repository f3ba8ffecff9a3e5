"""Rates of live engines: by task, over all, and one beside another.

In: a `Contest` and its prompts. Out: medians over the rounds with lowest and highest. A rate is
tokens of all prompts of a task by the seconds that they took in a round. "all" is the geometric
mean over the tasks, so each task counts alike, and the ratio of two means is the mean of the
ratios. Two contestants are compared within a round, which a machine's mood hurts alike.
"""

from statistics import geometric_mean

from coordgen_rs.lab.tables import summarize
from live.loops import loops

ALL = "all"
LONG = "long prompts"
LONG_TOKENS = 2000
"""From this length on a prompt also counts as long, whatever its task."""

MEASURES = {
    "prefill": lambda answer, prompt_len: (_read(answer, prompt_len), answer.prompt_s),
    "decode": lambda answer, _: (answer.decoded, answer.decode_s),
    "answer": lambda answer, _: (len(answer.tokens), answer.prompt_s + answer.decode_s),
    "tokens_per_step": lambda answer, _: (answer.decoded, answer.steps),
}
"""What is divided by what."""


class Figures:
    """What a contest says.

    Args:
        contest: A `Contest`.
        prompts: `Prompt`s by task, as the contest had them.
    """

    def __init__(self, contest, prompts):
        self._answers = contest.answers
        self._lengths = {task: [len(p.token_ids) for p in of] for task, of in prompts.items()}
        self.groups = {
            task: [(task, index) for index in range(len(of))] for task, of in prompts.items()
        }
        self.tasks = list(prompts)
        far = [at for of in self.groups.values() for at in of if self._length(at) >= LONG_TOKENS]
        if far:
            self.groups[LONG] = far
        self.looping = {
            name: {
                (task, index)
                for task, of_task in by_task.items()
                for index, answers in enumerate(of_task)
                if any(loops(answer.tokens) for answer in answers)
            }
            for name, by_task in self._answers.items()
        }

    @property
    def names(self):
        """The contestants that answered everything."""
        return list(self._answers)

    def rates(self, name, measure, skip=frozenset()):
        """`Summary` by group and over all; None where nothing is left.

        Args:
            name: A contestant.
            measure: One of `MEASURES`.
            skip: Places, (task, index), of prompts that are left out.
        """
        return _summaries(self._by_round(name, measure, skip))

    def ratios(self, name, other, measure, skip=frozenset()):
        """`Summary` of one contestant's rates by another's, as of `rates`."""
        pairs = zip(
            self._by_round(name, measure, skip), self._by_round(other, measure, skip), strict=True
        )
        return _summaries(
            [
                {
                    group: None if of is None or to is None else of / to
                    for (group, of), to in zip(rates.items(), others.values(), strict=True)
                }
                for rates, others in pairs
            ]
        )

    def num_unlike(self, name, other):
        """Answers whose tokens are not those of another contestant, in any round."""
        return sum(
            any(answer.tokens != theirs[0].tokens for answer in answers)
            for task in self.tasks
            for answers, theirs in zip(
                self._answers[name][task], self._answers[other][task], strict=True
            )
        )

    def _by_round(self, name, measure, skip):
        """For each round, rates by group and over all."""
        num_rounds = len(self._at(name, self.groups[self.tasks[0]][0]))
        rounds = []
        for number in range(num_rounds):
            rates = {
                group: self._rate(name, measure, number, [at for at in places if at not in skip])
                for group, places in self.groups.items()
            }
            left = [rates[task] for task in self.tasks if rates[task] is not None]
            rates[ALL] = geometric_mean(left) if left else None
            rounds.append(rates)
        return rounds

    def _rate(self, name, measure, number, places):
        pairs = [
            MEASURES[measure](self._at(name, place)[number], self._length(place))
            for place in places
        ]
        of, by = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
        return of / by if of and by else None

    def _at(self, name, place):
        task, index = place
        return self._answers[name][task][index]

    def _length(self, place):
        task, index = place
        return self._lengths[task][index]


def _read(answer, prompt_len):
    """Prompt tokens before decoding: without the last, if decoding brings the first new token."""
    return prompt_len - 1 + len(answer.tokens) - answer.decoded


def _summaries(rounds):
    return {
        group: summarize([rates[group] for rates in rounds if rates[group] is not None])
        for group in rounds[0]
    }

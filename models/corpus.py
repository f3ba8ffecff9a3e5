"""Invented contexts with questions and answers, for training and scoring the embedded model.

In: a task and a seed. Out: a `Scene` (a context, up to three turns about it, and drills, which are
for training alone) or an `Example` (the prompt and answer of its first turn). The same seed gives
the same text, on any machine.
Nothing is learnt by heart from it: names, numbers and places are composed anew for each scene, so
an answer has to take them from the context; the words around them are rephrased (see `kinds.py`).
It does not tokenize and does not know the model.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kinds import KINDS, Attribute, Kind
from scene import Scene, Turn
from screens import ui_scene
from world import World

TASKS = ("summary", "rag", "ui", "reply")
BOS, EOS = "<|bos|>", "<|eos|>"

TRAIN_SEEDS = range(0, 1_000_000_000)
HELD_OUT_SEEDS = range(1_000_000_000, 1_001_000_000)
"""Never trained on; scores and demo prompts come from here."""

FILLERS = (
    "The weather was mild for this time of the year.",
    "Many people asked about it in the last few days.",
    "A local paper wrote a long story about it.",
    "Some neighbours were not happy with the noise.",
    "More news will follow soon.",
    "Nobody knows yet what comes next.",
    "Most visitors said that they would come back.",
    "It was the talk of the town for weeks.",
    "A few questions are still open.",
    "The plans had been ready for a long time.",
    "Children under six need not pay anything.",
    "Last year everything had been different.",
)


@dataclass(frozen=True)
class Example:
    """What a user would send, and the answer hoped for; every fact occurs in both."""

    task: str
    prompt: str
    answer: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Entity:
    """One thing of a scene with the attributes that the context states about it, in table order."""

    full: str
    short: str
    known: tuple[tuple[Attribute, str], ...]

    def sentence(self, rng: random.Random, index: int, first: bool) -> str:
        """States one known attribute; only the first sentence names the thing in full."""
        attribute, value = self.known[index]
        pattern = rng.choice(attribute.says)
        pronoun = pattern.startswith("{e}") and rng.random() < 0.5
        subject = self.full if first else "it" if pronoun else self.short
        return _sentence(pattern.format(e=subject, v=value))

    def sentences(self, rng: random.Random) -> dict[int, str]:
        """States every known attribute once, in any order: the sentences by attribute index."""
        order = rng.sample(range(len(self.known)), len(self.known))
        return {index: self.sentence(rng, index, index == order[0]) for index in order}

    def tell(self, index: int, subject: str) -> str:
        """The clause with which answers tell one known attribute."""
        attribute, value = self.known[index]
        return attribute.tell.format(e=subject, v=value)

    def ask(self, rng: random.Random, first: int, second: int) -> str:
        """One question for two known attributes."""
        begin = rng.choice(self.known[first][0].asks).format(e=self.full)
        return f"{_upper(begin)}, and {rng.choice(self.known[second][0].asks).format(e='it')}?"

    def reply(self, first: int, second: int, subject: str) -> str:
        """The sentence that answers `ask`."""
        return f"{self.tell(first, subject)}, and {self.tell(second, 'it')}."


def _drills(
    rng: random.Random,
    entities: list[Entity],
    authors: Iterable[str] = (),
    askers: Iterable[str] = (),
) -> tuple[Turn, ...]:
    """A question for each known attribute of each thing, for who wrote and who asks about it.

    They are drawn after everything else of a scene, so that they change nothing in it.
    """
    drills = []
    for entity in entities:
        for attribute, value in entity.known:
            asked = _upper(rng.choice(attribute.asks).format(e=entity.full))
            told = _sentence(attribute.tell.format(e=entity.full, v=value))
            drills.append(Turn(f"Question: {asked}?", told, (value,)))
    for entity, author in zip(entities, authors, strict=False):
        first, second = _pair(rng, entity)
        asked = f"Question: {entity.ask(rng, first, second)}"
        facts = (author, entity.known[first][1], entity.known[second][1])
        told = entity.reply(first, second, entity.full)
        drills.append(Turn(asked, f"{author} wrote that {told}", facts))
        asked = f"Question: Who wrote about {entity.full}?"
        drills.append(Turn(asked, f"{author} wrote about {entity.full}.", (author,)))
    for entity, asker in zip(entities, askers, strict=False):
        asked = f"Question: What does {asker} ask about?"
        drills.append(Turn(asked, f"{asker} asks about {entity.full}.", (entity.full,)))
    rng.shuffle(drills)
    return tuple(drills)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _sentence(text: str) -> str:
    return _upper(text) + "."


def _entity(world: World, kind: Kind, num_known: int) -> Entity:
    full = kind.full.format(n=world.name() if "{n}" in kind.full else "", c=world.value("code"))
    chosen = sorted(world.rng.sample(range(len(kind.attributes)), num_known))
    known = tuple((a, world.value(a.value)) for a in (kind.attributes[i] for i in chosen))
    return Entity(full, kind.short, known)


def _entities(world: World, num: int, num_known: tuple[int, int]) -> list[Entity]:
    """Entities of different kinds, or now and then two of the same kind, told apart by name."""
    kinds = world.rng.sample(KINDS, num)
    if num > 1 and world.rng.random() < world.twin_share:
        kinds[1] = kinds[0]
    world.rng.shuffle(kinds)
    return [_entity(world, kind, world.rng.randint(*num_known)) for kind in kinds]


def _pair(rng: random.Random, entity: Entity) -> tuple[int, int]:
    first, second = rng.sample(range(len(entity.known)), 2)
    return first, second


def _mixed(world: World, entity: Entity, num_fillers: int) -> str:
    """All sentences about an entity, with side remarks between them."""
    rng = world.rng
    lines = list(entity.sentences(rng).values())
    remarks = rng.sample(FILLERS, num_fillers)
    if rng.random() < 0.5:
        remarks.append(f"{world.value('person')} of {world.value('org')} had no comment.")
    for remark in remarks:
        lines.insert(rng.randint(1, len(lines)), remark)
    return " ".join(lines)


def summary_scene(world: World) -> Scene:
    """A document with a section on each of two things; the turns ask to sum up one of them."""
    rng = world.rng
    entities = _entities(world, 2, (5, 5))
    sections = [f"On {e.full}: {_mixed(world, e, rng.randint(0, 3))}" for e in entities]
    turns = []
    for entity in rng.sample(entities, 2):
        values = tuple(value for _, value in entity.known[:4])
        begin = f"In short, {entity.tell(0, entity.full)} and {entity.tell(1, 'it')}."
        more = f" Moreover, {entity.tell(2, entity.short)}, while {entity.tell(3, 'it')}."
        wish = f"what the document says about {entity.full}"
        if rng.random() < 0.25:
            turns.append(Turn(f"Summarize in one sentence {wish}.", begin, values[:2]))
        else:
            turns.append(Turn(f"Summarize {wish}.", begin + more, values))
    context = "Document:\n" + "\n".join(sections)
    return Scene("summary", context, tuple(turns), _drills(rng, entities))


def rag_scene(world: World) -> Scene:
    """Reports on different things; each turn asks for two facts of one, the answer cites it."""
    rng = world.rng
    entities = _entities(world, rng.randint(2, 4), (3, 4))
    titles, passages = [], []
    for number, entity in enumerate(entities, 1):
        title = f"report on {entity.full} by {world.value('person')}, {world.value('date')}"
        titles.append(title)
        sentences = " ".join(entity.sentences(rng).values())
        passages.append(f"Passage {number}: {title}. {sentences}")
    turns = []
    for _ in range(3 if len(entities) < 3 else 2):
        number = rng.randrange(len(entities))
        entity = entities[number]
        first, second = _pair(rng, entity)
        told = f"{entity.tell(first, 'it')}, and {entity.tell(second, entity.short)}"
        answer = f"According to the {titles[number]}, {told}."
        facts = (titles[number], entity.known[first][1], entity.known[second][1])
        turns.append(Turn(f"Question: {entity.ask(rng, first, second)}", answer, facts))
    return Scene("rag", "\n".join(passages), tuple(turns), _drills(rng, entities))


def reply_scene(world: World) -> Scene:
    """A thread of messages; each turn answers the person who asks for something written earlier."""
    rng = world.rng
    entities = _entities(world, rng.randint(2, 3), (3, 4))
    messages, questions, authors, askers = [], [], [], []
    for entity in entities:
        author = world.value("person")
        opening = rng.choice(("Hello all.", "Just a short note.", "Some news.", "Good morning."))
        told = " ".join(entity.sentences(rng).values())
        messages.append(f"On {entity.full}, {author} writes: {opening} {told}")
        authors.append(author)
        asker = world.value("person")
        askers.append(asker)
        first, second = _pair(rng, entity)
        polite = rng.choice(("I have a question.", "Please help me.", "One more thing."))
        question = f"From {asker}: {polite} {entity.ask(rng, first, second)}"
        told = entity.reply(first, second, entity.short)
        answer = (
            f"Hi {asker.split()[0]}, thank you for asking about {entity.full}. {author} wrote that "
            f"{told} Please write again if anything is unclear."
        )
        facts = (asker.split()[0], author, entity.known[first][1], entity.known[second][1])
        turn = Turn(f"Write a reply to {asker}.", answer, facts)
        questions.append((question, turn))
    num_asked = rng.randint(1, 2)
    asked = questions[:num_asked]
    rng.shuffle(asked)
    context = "\n".join(messages + [question for question, _ in asked])
    turns = tuple(turn for _, turn in asked)
    drills = _drills(rng, entities, authors, askers[:num_asked])
    return Scene("reply", context, turns, drills)


SCENES: dict[str, Callable[[World], Scene]] = {
    "summary": summary_scene,
    "rag": rag_scene,
    "ui": ui_scene,
    "reply": reply_scene,
}
CUES = {"summary": "Summary", "rag": "Answer", "ui": "Next step", "reply": "Reply"}


TWIN_SHARE = 0.3


def scene(task: str, seed: int, twin_share: float = TWIN_SHARE) -> Scene:
    """The scene of a seed; scenes of different tasks are independent also under the same seed.

    `twin_share` is how often two of its things are of the same kind: the hard case, of which
    training takes more.
    """
    return SCENES[task](World(random.Random(f"{task}/{seed}"), twin_share))


def ask(scene: Scene, turn: Turn) -> str:
    """What stands between a context (or an earlier answer) and the answer to this turn."""
    cue = CUES["rag"] if turn.question.startswith("Question: ") else CUES[scene.task]
    return f"{turn.question}\n{cue}:\n"


def example(task: str, seed: int) -> Example:
    """The prompt and the answer of the first turn of a scene; the prompt ends with a line break."""
    made = scene(task, seed)
    turn = made.turns[0]
    prompt = f"{made.context}\n\n{ask(made, turn)}"
    return Example(task, prompt, turn.answer, turn.facts)


def main() -> None:
    """Prints one example, or held-out examples of all tasks as JSON lines."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("task", nargs="?", choices=TASKS)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--jsonl", type=int, metavar="N", help="N held-out examples a task")
    arguments = parser.parse_args()
    if arguments.jsonl is not None:
        for seed in HELD_OUT_SEEDS[: arguments.jsonl]:
            for task in TASKS:
                made = example(task, seed)
                line = {"id": f"{task}-{seed}", "task": task}
                print(json.dumps(line | {"prompt": made.prompt, "output": made.answer}))
    elif arguments.seed is None:
        parser.error("give a task and a seed, or --jsonl")
    else:
        made = example(arguments.task, arguments.seed)
        print(made.prompt + made.answer)


if __name__ == "__main__":
    main()

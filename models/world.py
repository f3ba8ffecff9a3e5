"""Invented names and values: the vocabulary from which every scene is composed anew.

In: a random generator. Out: names, numbers, places, dates, things. It knows no sentences.
"""

import random
from collections.abc import Callable


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STARTS = _words(
    "Vel Dor Kar Mir Tan Bel Zor Fen Gal Hal Jor Lun Mor Nar Or Pel Quin Ros Sel Tor Ul Var Wen "
    "Yar Zel Bran Cal Dra Eld Far Gri Hol Ist Jas Kel Lor Mel Nev Os Pra Ral Sor Tre Ur Vos Wil "
    "Xan Yel Zan Ber Cor Dun Em Fal Gor Hes Il Jun Kor Lam"
)
MIDDLES = _words("a e i o u an en in on ar er or al el ol ami eri obi udi ina eva ora")
ENDS = _words(
    "dane vik mora ter nix bury ston del mar rick sen ford lan wyn tis gard zo pek lia rus bek "
    "dal fir go hem jo kas mond nor pa quist sa tova vin wick xo zek dra tha lo"
)
PLACES = _words("Street Quay Hall Square Lane Gate Park Road Yard Tower")
FIRMS = _words("Labs Works Lines Group Motors Foods Systems Brothers")
MONTHS = _words("January March April May June July August October")
ADJECTIVES = _words(
    "old small green broken wooden heavy blue quiet loose cold bright frozen empty silver "
    "narrow yellow round soft"
)
THINGS = _words(
    "cable key map chair bottle clock basket coat mirror brush ladder notebook blanket spoon "
    "radio bell pipe wheel"
)
PLURALS = _words(
    "maps clocks boats masks coins shoes bottles drums letters tools stamps carpets kites "
    "engines chairs baskets pictures flowers"
)
TROUBLES = _words("leak fire flood strike crack mistake storm fault")
SPOTS = _words("kitchen cellar harbour office tunnel garden store roof")


class World:
    """Makes invented names and values; within one scene no two names begin with the same syllable.

    Running out of first syllables is harmless: then they are used a second time.
    """

    def __init__(self, rng: random.Random, twin_share: float) -> None:
        self.rng = rng
        self.twin_share = twin_share
        self._starts: list[str] = []
        self._numbers: set[int] = set()

    def name(self) -> str:
        """A name of two or three syllables, such as "Velmora"."""
        if not self._starts:
            self._starts = list(STARTS)
            self.rng.shuffle(self._starts)
        middle = self.rng.choice(MIDDLES) if self.rng.random() < 0.5 else ""
        return self._starts.pop() + middle + self.rng.choice(ENDS)

    def number(self, low: int = 10, high: int = 99) -> int:
        """A number that was not yet given out in this scene, as long as that is possible."""
        for _ in range(20):
            number = self.rng.randint(low, high)
            if number not in self._numbers:
                break
        self._numbers.add(number)
        return number

    def value(self, kind: str) -> str:
        """A value for an attribute of the given kind (see `kinds.Attribute.value`)."""
        maker: Callable[[], str] = getattr(self, f"_{kind}")
        return maker()

    def _person(self) -> str:
        return f"{self.name()} {self.name()}"

    def _place(self) -> str:
        return f"{self.name()} {self.rng.choice(PLACES)} {self.number()}"

    def _org(self) -> str:
        return f"{self.name()} {self.rng.choice(FIRMS)}"

    def _time(self) -> str:
        return f"{self.number(6, 23)}:{self.rng.randrange(0, 60, 5):02}"

    def _date(self) -> str:
        return f"{self.number(1, 28)} {self.rng.choice(MONTHS)}"

    def _money(self) -> str:
        return f"{self.number()} {self.rng.choice(('crowns', 'dollars', 'euros', 'pounds'))}"

    def _hours(self) -> str:
        return f"{self.number()} hours"

    def _people(self) -> str:
        return f"{self.number()} people"

    def _metres(self) -> str:
        return f"{self.number()} metres"

    def _code(self) -> str:
        return f"{self.name()}-{self.number()}"

    def _thing(self) -> str:
        return f"a {self.rng.choice(ADJECTIVES)} {self.rng.choice(THINGS)}"

    def _things(self) -> str:
        first, second = self.rng.sample(PLURALS, 2)
        return f"{self.rng.choice(ADJECTIVES)} {first} and {second}"

    def _cause(self) -> str:
        return f"a {self.rng.choice(TROUBLES)} in the {self.rng.choice(SPOTS)}"

"""Answers of a comparison on disk, so that a run that was interrupted goes on where it was.

In: what an answer depends on, as JSON types. Out: the answers that are there. A file of JSON lines
grows by one for each part that is done; a line that was cut off is done again.
"""

import hashlib
import json

from contest import Answer, Contest


class Kept:
    """One file.

    Args:
        path: Of JSON lines; created.
    """

    def __init__(self, path):
        """Raises OSError where it cannot be read or made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._parts = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                part = json.loads(line)
                self._parts[part["key"]] = part
            except (ValueError, KeyError):
                continue

    def find(self, key):
        """The contest and the rest of a part; None where it is not there."""
        part = self._parts.get(key)
        if part is None:
            return None
        answers = {
            name: {task: [[Answer(*one) for one in each] for each in of] for task, of in by.items()}
            for name, by in part["answers"].items()
        }
        return Contest(answers), part["told"]

    def add(self, key, contest, told):
        """Append a part: its answers, and anything else in JSON types."""
        part = {"key": key, "answers": contest.answers, "told": told}
        self._parts[key] = json.loads(json.dumps(part))
        with self._path.open("a", encoding="utf-8") as file:
            if file.tell() and not self._ends_whole():
                file.write("\n")
            file.write(f"{json.dumps(part)}\n")

    def _ends_whole(self):
        return self._path.read_bytes().endswith(b"\n")


def key_of(**settings):
    """A name for settings."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def merged(contests):
    """One contest of several parts, with the contestants that answered in all of them."""
    first, *others = contests
    names = [name for name in first.answers if all(name in each.answers for each in others)]
    answers = {name: {} for name in names}
    for contest in contests:
        for name in names:
            for task, of in contest.answers[name].items():
                answers[name].setdefault(task, []).extend(of)
    return Contest(answers)

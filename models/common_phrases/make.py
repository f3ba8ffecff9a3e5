"""Count which words come after which, in texts of several kinds, for the package.

In: kinds of text, each a name and folders or files. Out: a line for each word, or pair of words,
that has likely next ones: the words, how often they are said in a million, then next ones with
their chance in per cent.

A chance is the mean over all kinds, each counted alike however much of it there is, and a
continuation must be known to two kinds at least: what one kind alone says is its subject, not the
language. The lines that are expected to be right most often are kept.
"""

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

WORD = re.compile(
    r"'(?:[sdmt]|ll|ve|re)\b|(?:[^\n\w]|_)?[^\W\d_]+|\d| ?[^\s\w]+\n*|_+"
    r"|[^\S\n]*\n+|[^\S\n]+(?!\S)|\s"
)
"""What tokenizers of today cut text into before they merge bytes, roughly: what stands before a
word belongs to it, and of some spaces the last."""

LEAST = {1: 0.02, 2: 0.05}
"""The least chance that is kept, behind one word and behind two."""
MOST = {1: 8, 2: 4}
"""The most next words."""
LEAST_SEEN = 3
"""So often must a kind have a word or a pair of words, and its continuation twice, to be asked."""
SUFFIXES = {".md", ".rst", ".txt", ".py", ".json", ".toml", ".yaml", ".sh", ".js", ".html", ".mdx"}
_MOST_BYTES = 200_000  # of a file: generated ones are long


def texts_of(path, most_bytes):
    """The texts of the files below a folder."""
    files = sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file())
    step = max(1, sum(min(one.stat().st_size, _MOST_BYTES) for one in files) // most_bytes)
    for file in files[::step]:
        yield file.read_text("utf-8", errors="ignore")[:_MOST_BYTES]


def counted(texts):
    """How often each word came after one word and after two, per million words."""
    after, num_words = defaultdict(Counter), 0
    for text in texts:
        words = WORD.findall(text)
        num_words += len(words)
        for first, second in pairwise(words):
            after[first,][second] += 1
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            after[first, second][third] += 1
    scale = 1e6 / max(num_words, 1)
    kept = {}
    for context, nexts in after.items():
        total = nexts.total()
        if total >= LEAST_SEEN:
            often = {word: n * scale for word, n in nexts.items() if n > 1}
            kept[context] = total * scale, often
    print(f"  {num_words} words, {len(kept)} contexts", file=sys.stderr)
    return kept


def told(folder):
    """The same of `unigrams.txt` and `bigrams.txt` in a folder: lower-case words, counted."""

    def lines(name):
        for line in (folder / name).read_text("utf-8").splitlines():
            words, often = line.split("\t")
            yield words, float(often)

    alone = dict(lines("unigrams.txt"))
    scale = 1e6 / sum(alone.values())
    after = defaultdict(dict)
    for words, often in lines("bigrams.txt"):
        first, second = words.split(" ")
        if first in alone:
            after[f" {first}",][f" {second}"] = often * scale
    return {context: (alone[context[0][1:]] * scale, nexts) for context, nexts in after.items()}


def merged(kinds):
    """For each context its frequency per million words and its likely next words."""
    totals, nexts, known = Counter(), defaultdict(Counter), defaultdict(Counter)
    for kind in kinds:
        for context, (total, often) in kind.items():
            totals[context] += total / len(kinds)
            for word, per_million in often.items():
                nexts[context][word] += per_million / len(kinds)
                known[context][word] += 1
    for context, total in totals.items():
        least, most = LEAST[len(context)], MOST[len(context)]
        likely = [
            (word, per_million / total)
            for word, per_million in nexts[context].most_common(most)
            if known[context][word] > 1 and per_million / total >= least
        ]
        if likely:
            yield context, total, likely


def most_useful(lines, num_lines):
    """The lines whose continuations are said most often.

    Those behind two words count so far as they tell more than the last of them does.
    """
    lines = list(lines)
    alone = {context[0]: dict(likely) for context, _, likely in lines if len(context) == 1}

    def gain(line):
        context, per_million, likely = line
        if len(context) == 1:
            return per_million * sum(chance for _, chance in likely)
        known = alone.get(context[1], {})
        return per_million * sum(max(chance - known.get(word, 0), 0) for word, chance in likely)

    return sorted(lines, key=gain, reverse=True)[:num_lines]


def write(lines, path):
    """Write lines in the order of their contexts."""
    written = (
        [
            *context,
            max(round(per_million), 1),
            {word: max(round(100 * chance), 1) for word, chance in likely},
        ]
        for context, per_million, likely in sorted(lines, key=lambda line: line[0])
    )
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    text = ",\n".join(json.dumps(line, **compact) for line in written)
    path.write_text(f"[\n{text}\n]\n", "utf-8")


def main():
    """Write the file that the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--most-bytes", type=int, default=12_000_000, help="of a kind")
    options = parser.parse_args()
    if len(options.kinds) < 2:
        parser.error("two kinds are needed at least: what one alone says is its subject")
    kinds = []
    for kind in options.kinds:
        name, _, folder = kind.partition("=")
        if not Path(folder or "=").is_dir():
            parser.error(f"{kind!r} is no NAME=FOLDER: there is no folder {folder!r}")
        print(name, file=sys.stderr)
        is_told = (Path(folder) / "bigrams.txt").is_file()
        texts = texts_of(Path(folder), options.most_bytes)
        kinds.append(told(Path(folder)) if is_told else counted(texts))
    lines = most_useful(merged(kinds), options.lines)
    write(lines, options.out)
    print(f"{options.out}: {len(lines)} lines, {options.out.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()

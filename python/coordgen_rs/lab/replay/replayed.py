"""Cells that replay a file of records through a drafter; no model runs.

In: a file and settings of `coordgen replay`. Out: tokens and steps of each task, and of all.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from coordgen_rs.drafting.common_phrases import phrase_table_at
from coordgen_rs.lab.replay.cells import flattened, sha256_of
from coordgen_rs.lab.replay.records import read_records
from coordgen_rs.lab.replay.run import ReplayResult, replay
from coordgen_rs.lab.replay.table_file import Row
from coordgen_rs.lab.replay.templates import TEMPLATES, TokenizedRecord, open_tokenizer, tokenize

ALL = "all"
"""The task of the row over all tasks."""


@dataclass(frozen=True)
class Source:
    """Records, and how they are read.

    Attributes:
        data: The file.
        tokenizer: The directory with the `tokenizer.json`.
        template: The name of the chat format.
        output_of: The model whose answers are used; None for the field `output`.
        limit: Only so many records; None for all.
        half: Of these, only every other one, from the first (0) or the second (1) on; None for all.
    """

    data: Path
    tokenizer: Path
    template: str
    output_of: str | None = None
    limit: int | None = None
    half: int | None = None

    def settings(self) -> Row:
        """All that the records depend on."""
        return {
            "data": self.data.name,
            "data_sha256": sha256_of(self.data),
            "tokenizer_sha256": sha256_of(self.tokenizer / "tokenizer.json"),
            "template": self.template,
            "output_of": self.output_of,
            "limit": self.limit,
            "half": self.half,
        }


@dataclass(frozen=True)
class Replayed:
    """A cell; see `replay` for its settings."""

    source: Source
    drafter: str
    budget: int
    history: str
    commit: str

    def settings(self) -> Row:
        """Same as in `Cell`."""
        return {
            "command": "replay",
            **self.source.settings(),
            "drafter": self.drafter,
            "budget": self.budget,
            "history": self.history,
            "commit": self.commit,
        }

    def measure(self) -> list[Row]:
        """Same as in `Cell`."""
        records, vocab_size = tokenized(self.source)
        phrases = phrase_table_at(self.source.tokenizer / "tokenizer.json")
        result = replay(
            records,
            drafter=self.drafter,
            budget=self.budget,
            history=self.history,
            commit=self.commit,
            vocab_size=vocab_size,
            phrases=phrases,
        )
        return rows_of(result)


def rows_of(result: ReplayResult) -> list[Row]:
    """A row for each task, and one for all."""
    figures = result.to_json()
    for name in ("drafter", "budget", "per_task"):
        del figures[name]
    rows = [
        {"task": task, "tokens": tokens, "steps": steps, "tokens_per_step": tokens / steps}
        for task, (tokens, steps) in sorted(result.per_task.items())
    ]
    return [*rows, {"task": ALL} | flattened(figures)]


@lru_cache(maxsize=1)
def tokenized(source: Source) -> tuple[list[TokenizedRecord], int]:
    """The records, and the size of their vocabulary.

    Cells of one file that follow each other in a process read it once.
    """
    template = TEMPLATES[source.template]
    tokenizer = open_tokenizer(source.tokenizer, template)
    records = read_records(
        source.data, output_of=source.output_of, limit=source.limit, half=source.half
    )
    return [tokenize(record, template, tokenizer) for record in records], tokenizer.vocab_size

"""Cells that replay a file of records through a drafter; no model runs.

In: a file and settings of `coordgen replay`. Out: tokens and steps of each task, and of all.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from coordgen_rs.tools.evaluation.cells import flattened, sha256_of
from coordgen_rs.tools.evaluation.table_file import Row
from coordgen_rs.tools.replay.records import read_records
from coordgen_rs.tools.replay.run import replay
from coordgen_rs.tools.replay.templates import TEMPLATES, TokenizedRecord, open_tokenizer, tokenize

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
    """

    data: Path
    tokenizer: Path
    template: str
    output_of: str | None = None
    limit: int | None = None


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
        source = self.source
        return {
            "command": "replay",
            "data": source.data.name,
            "data_sha256": sha256_of(source.data),
            "tokenizer_sha256": sha256_of(source.tokenizer / "tokenizer.json"),
            "template": source.template,
            "output_of": source.output_of,
            "limit": source.limit,
            "drafter": self.drafter,
            "budget": self.budget,
            "history": self.history,
            "commit": self.commit,
        }

    def measure(self) -> list[Row]:
        """Same as in `Cell`."""
        records, vocab_size = _tokenized(self.source)
        result = replay(
            records,
            drafter=self.drafter,
            budget=self.budget,
            history=self.history,
            commit=self.commit,
            vocab_size=vocab_size,
        )
        figures = result.to_json()
        for name in ("drafter", "budget", "per_task"):
            del figures[name]
        rows = [
            {"task": task, "tokens": tokens, "steps": steps, "tokens_per_step": tokens / steps}
            for task, (tokens, steps) in sorted(result.per_task.items())
        ]
        return [*rows, {"task": ALL} | flattened(figures)]


@lru_cache(maxsize=1)
def _tokenized(source: Source) -> tuple[list[TokenizedRecord], int]:
    """The records; cells of one file that follow each other in a process read it once."""
    template = TEMPLATES[source.template]
    tokenizer = open_tokenizer(source.tokenizer, template)
    records = read_records(source.data, output_of=source.output_of, limit=source.limit)
    return [tokenize(record, template, tokenizer) for record in records], tokenizer.vocab_size

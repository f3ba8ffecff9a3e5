"""Counts of the runs of a batch, for whoever watches it: `/metrics`, and benches.

In: what each run is made of. Out: sums since the batch was made.
"""

from dataclasses import dataclass


@dataclass
class RunCounts:
    """What the runs of a batch were made of so far.

    Attributes:
        runs: How many there were.
        requests: Requests that had rows in them: two that take part in a run count twice.
        rows: Rows of all of them.
        decode_rows: How many of these verified what requests are about to say; prompts had the
            others.
        prompt_tokens_beside: Tokens of prompts that were read in runs in which others decoded.
    """

    runs: int = 0
    requests: int = 0
    rows: int = 0
    decode_rows: int = 0
    prompt_tokens_beside: int = 0

    def add(self, decoding: list[int], reading: list[int]) -> None:
        """Count a run.

        Args:
            decoding: Rows of each request that decodes in it.
            reading: Tokens that are read in it of each prompt.
        """
        self.runs += 1
        self.requests += len(decoding) + len(reading)
        self.rows += sum(decoding) + sum(reading)
        self.decode_rows += sum(decoding)
        if decoding:
            self.prompt_tokens_beside += sum(reading)

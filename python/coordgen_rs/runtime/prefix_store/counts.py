"""What a store has done since it was opened: numbers that anybody may read at any time."""

from dataclasses import dataclass


@dataclass
class StoreCounts:
    """Counts of one store; each only grows.

    Attributes:
        lookups: Requests that looked for more of their prompt than was in memory.
        hits: Those that found it.
        read_tokens: Tokens of prompts that were read from disk, not computed.
        read_bytes: Bytes that were read for that.
        read_seconds: Seconds of looking and reading.
        stored_tokens: Tokens that were written.
        stored_bytes: Bytes that were written.
        save_seconds: Seconds of requests in which it was seen to what is written beside them.
        evicted_bytes: Bytes that were removed to make room.
        damaged: Files that were not what they should be; they were removed where that was possible.
        failures: How often something could not be written.
        skipped: How often something was not written, as too much was waiting for that.
    """

    lookups: int = 0
    hits: int = 0
    read_tokens: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    stored_tokens: int = 0
    stored_bytes: int = 0
    save_seconds: float = 0.0
    evicted_bytes: int = 0
    damaged: int = 0
    failures: int = 0
    skipped: int = 0

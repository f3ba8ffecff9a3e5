"""Prompts of two tasks, for whatever answers prompts by task."""

from coordgen_rs.lab.bench.prompts import Prompt
from corpus import HELD_OUT_SEEDS, example

PROMPTS = [Prompt(task, example(task, HELD_OUT_SEEDS[0]).prompt) for task in ("rag", "ui")]

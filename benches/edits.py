"""What a corpus brings where files of it are edited, and what adding it costs.

    python benches/edits.py BUNDLE DIR .. --files 40

The files below DIR are added to a history. Some of them are then edited: one name is replaced
everywhere, and of the lines one in 40 is dropped, and one in 40 is put elsewhere. The target says
the whole edited file; the prompt names the edits and the path, and holds nothing of the file. The
same answers are drafted without the corpus. Prints one JSON object.
"""

import json
import os
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from coordgen_rs import Corpus, History
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.store.history.texts import files_of
from coordgen_rs.text.tokenizer import Tokenizer
from history import said
from support.script import add_counts, parser_of, run_script

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one part each, in threads of ours

LENGTHS = (1_500, 12_000)
"""Bytes of the files that are edited."""
CHANGED = 40
NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{4,}\b")


def edited(text, rng):
    """An edited file, and the request for that."""
    names = [name for name, _ in Counter(NAME.findall(text)).most_common(12)]
    old = names[int(rng.integers(len(names)))]
    new = f"{old}_{rng.integers(10, 99)}"
    lines = re.sub(rf"\b{old}\b", new, text).splitlines(keepends=True)
    num_changed = max(1, len(lines) // CHANGED)
    for _ in range(num_changed):
        lines.pop(int(rng.integers(len(lines))))
        line = lines.pop(int(rng.integers(len(lines))))
        lines.insert(int(rng.integers(len(lines) + 1)), line)
    asked = f"Rename {old} to {new}, drop {num_changed} and move {num_changed} lines."
    return "".join(lines), asked


def edits(folders, num_files, tokenizer, seed):
    """What is asked and said, as recorded requests."""
    rng, found = np.random.default_rng(seed), list(files_of(folders))
    rng.shuffle(found)
    for path in found:
        if not LENGTHS[0] <= path.stat().st_size <= LENGTHS[1]:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if len(set(NAME.findall(text))) < 12:
            continue
        answer, asked = edited(text, rng)
        prompt = tokenizer.encode(f"{asked} Write the whole file {path.name}:\n")
        yield SimpleNamespace(prompt=prompt, answer=tokenizer.encode(answer, special_tokens=False))
        num_files -= 1
        if num_files == 0:
            return


def added(directory, bundle, folders, threads):
    """Add the corpus; what that cost."""
    begun, before = time.perf_counter(), time.process_time()
    with Corpus(directory, bundle) as corpus:
        told = corpus.add(folders, threads=threads)
        num_bytes = sum(document.num_bytes for document in corpus.documents())
    return {
        "documents": told.num_added,
        "bytes": num_bytes,
        "tokens": told.num_tokens,
        "seconds": round(time.perf_counter() - begun, 2),
        "cpu_seconds": round(time.process_time() - before, 2),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "segments": len(list(directory.glob("*.corpus"))),
        "disk_bytes_per_token": round(
            sum(path.stat().st_size for path in directory.iterdir()) / told.num_tokens, 2
        ),
    }


def main():
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    add_counts(
        parser, files=(40, "edited"), budget=(16, "draft tokens"), threads=(2, ""), seed=(1, "")
    )
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    tokenizer, vocab_size = Tokenizer.of(bundle), bundle.manifest.model.vocab_size
    live = list(edits(options.folders, options.files, tokenizer, options.seed))
    if not live:
        sys.exit("no file below the directories is of the lengths that are edited")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        cost = added(directory, bundle, options.folders, options.threads)
        with History.of(directory, bundle) as history:
            figures = {
                "edited_files": len(live),
                "edited_tokens": sum(len(record.answer) for record in live),
                "added": cost,
                "without": said(live, vocab_size, options.budget, None),
                "with": said(live, vocab_size, options.budget, history.shared),
            }
    ratio = figures["with"]["tokens_per_step"] / figures["without"]["tokens_per_step"]
    print(json.dumps(figures | {"ratio": round(ratio, 3)}))


if __name__ == "__main__":
    run_script(main)

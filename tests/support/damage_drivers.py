"""Opening damaged files, one after the other: run as a program, since a crash would end it.

    damage_drivers.py KIND ORIGINALS FIRST LAST

Damages numbers FIRST to LAST of the files in ORIGINALS, which `make_originals` writes. Each ends in
an error of ours, or in a warning, or is harmless; where a checksum covers the file it never passes
for whole. Prints how many ended how, as JSON; anything else ends the program with a traceback.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from checkpoints import write_checkpoint
from coordgen_rs import Bundle, LookupTable, Tokenizer, open_session, plain
from coordgen_rs.cli.main import main as coordgen
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, CoordgenError, HistoryWarning, LookupTableError
from coordgen_rs.loading import self_test
from damages import damaged
from drafts import drafted_after
from histories import VOCAB_SIZE, open_history, request

KEY = bytes(range(32))
PROMPT = "Once upon a time there was a fox."


def make_originals(directory: Path) -> None:
    """Write a bundle, a history with indexes and as lines, and a look-up table."""
    checkpoint = write_checkpoint(directory / "checkpoint", hidden=32, ffn=32, max_positions=64)
    export_checkpoint(checkpoint, directory / "bundle", blocks=2, prefill_rows=16, decode_rows=8)
    for namespace, length in (("a", 5_000), ("b", 30)):
        with open_history(directory / "history", namespace) as history:
            history.add(request(0, length), [1, 2])
            history.add(request(0, 20), [])
    with (directory / "lines.jsonl").open("w") as lines, contextlib.redirect_stdout(lines):
        coordgen(["history", "export", str(directory / "history"), "--namespace", "b"])
    table, random = LookupTable(), np.random.default_rng(0)
    logits = random.standard_normal((400, VOCAB_SIZE), np.float32)
    table.learn(random.integers(0, VOCAB_SIZE, 400).astype(np.uint32), logits)
    table.save(directory / "it.lookup-table", VOCAB_SIZE, KEY)


def damage_one_of(files: list[Path], random: Random) -> Path:
    """Replace one file by a damaged one; the original may be linked elsewhere."""
    file = random.choice(files)
    content = file.read_bytes()
    other = content
    while other == content:
        other = damaged(content, random)
    file.unlink()
    file.write_bytes(other)
    return file


def drive_bundle(originals: Path, directory: Path, random: Random) -> str:
    """A bundle with a damaged manifest, or another damaged file, with or without its new sum."""
    path = directory / "bundle"
    shutil.copytree(originals / "bundle", path, copy_function=os.link)
    manifest = path / "manifest.json"
    others = [file for file in sorted(path.iterdir()) if file != manifest]
    has_sum = random.random() < 0.5
    file = damage_one_of([manifest] if random.random() < 0.5 else others, random)
    if file != manifest and not has_sum:
        renew_sum(manifest, file)
    if has_sum and file != manifest:
        with pytest.raises(BundleDamagedError, match=re.escape(file.name)):
            Bundle.open(path).verify()
        with pytest.raises(BundleDamagedError, match=re.escape(file.name)):
            answer(path)
        return "refused"
    try:
        Bundle.open(path).verify()
        tokens = answer(path)
    except CoordgenError:
        return "refused"
    return "harmless" if tokens == answer(originals / "bundle") else "another answer"


def renew_sum(manifest: Path, file: Path) -> None:
    """Make the manifest say that the damaged file is whole."""
    content, document = file.read_bytes(), json.loads(manifest.read_bytes())
    record = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    document["files"][file.name] = record
    manifest.unlink()
    manifest.write_text(json.dumps(document))


def answer(bundle: Path) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session(bundle, threads=1)
    prompt = Tokenizer.of(session.bundle).encode(PROMPT)
    steps = plain(session, prompt, max_new_tokens=4)
    return [token for step in steps for token in step.token_ids]


def drive_history(originals: Path, directory: Path, random: Random) -> str:
    """A history with a damaged database or index, or lines to import that are."""
    path = Path(shutil.copytree(originals / "history", directory / "history"))
    if random.random() < 0.3:
        lines = Path(shutil.copy(originals / "lines.jsonl", directory))
        damage_line(lines, random)
        return "refused" if run_coordgen("import", path, lines) else "harmless"
    file = damage_one_of([file for file in sorted(path.iterdir()) if file.stat().st_size], random)
    text = request(0, 5_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HistoryWarning)
        try:
            history = open_history(path, "a")
            at = random.randrange(20, 4_900)
            drafted = drafted_after(history, text[at - 20 : at], 8)
            if file.suffix == ".index":  # its sums tell, sooner or later
                whole = drafted in ([], text[at : at + 8].tolist())
                assert whole or history.shared.is_damaged, "a wrong draft from a damaged index"
                history.refresh()
                assert drafted_after(history, text[at - 20 : at], 8) == text[at : at + 8].tolist()
            history.add(text[:10], text[10:20])
            history.close()
        except CoordgenError:
            run_coordgen("ls", path)
            return "refused"
    codes = [run_coordgen(command, path) for command in ("ls", "export", "clear")]
    return "warned" if caught else "refused" if any(codes) else "harmless"


def damage_line(lines: Path, random: Random) -> None:
    parts = lines.read_bytes().splitlines(keepends=True)
    number = random.randrange(len(parts))
    parts[number] = damaged(parts[number], random)
    lines.unlink()
    lines.write_bytes(b"".join(parts))


def run_coordgen(command: str, *arguments: Path) -> int:
    """The exit code of `coordgen history`; what it raises ends the program."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = coordgen(["history", command, *map(str, arguments)])
    assert code == 0 or (code == 2 and err.getvalue().count("\n") == 1), err.getvalue()
    return code


def drive_table(originals: Path, directory: Path, random: Random) -> str:
    """A damaged look-up table: its checksum covers all of it."""
    file = Path(shutil.copy(originals / "it.lookup-table", directory))
    damage_one_of([file], random)
    try:
        LookupTable.open(file, VOCAB_SIZE, KEY)
    except LookupTableError:
        return "refused"
    raise AssertionError("a damaged table passes for whole")


DRIVERS: dict[str, Callable[[Path, Path, Random], str]] = {
    "bundle": drive_bundle,
    "history": drive_history,
    "table": drive_table,
}


def end_on_exceptions_of_threads(hook: threading.ExceptHookArgs) -> None:
    sys.__excepthook__(hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback)
    os._exit(1)


def main(kind: str, originals: str, first: str, last: str) -> None:
    threading.excepthook = end_on_exceptions_of_threads
    self_test._TIMED_SECONDS = 0.0  # three rounds
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for number in range(int(first), int(last)):
            print(f"{kind} {number}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=Path(originals).parent) as directory:
                random = Random(f"{kind} {number}")
                outcomes[DRIVERS[kind](Path(originals), Path(directory), random)] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])

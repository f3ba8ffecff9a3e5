"""What steps and prompts cost in the shapes of larger models, beside the machine's limits.

    python benches/peers/shapes.py qwen2.5-0.5b qwen2.5-3b --types Q4_0 Q4_K_M

For each shape and type a GGUF file of random weights is written, measured and removed: steps of all
widths behind 64 tokens and a prompt of 512, by coordgen, and llama.cpp's own `llama-bench` on the
same file, in turns: what counts is the median of the rounds. Beside them stand how fast this
machine reads memory, and how fast it multiplies by the instruction that the kernels use
(`cargo bench --bench peaks`). Needs `make peers`, cargo, and `pip install --group peers`; of disk,
three times the largest file.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1]))

from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.lab.bench.condition import commit_of
from coordgen_rs.loading.profile import machine_facts
from live.llama_bench import measured
from live.llama_build import ProgramError, command, last_lines, program
from shape_file import TYPES, matrices, write_shape
from support.script import (
    ROOT,
    add_counts,
    add_json,
    add_llama_cpp,
    own_processes,
    parser_of,
    reports_errors,
    run_script,
)
from support.shapes import of_families
from support.tables import show_rows
from widths import measure_widths

SHAPES = of_families("qwen2", "qwen35", "lfm2")
PROMPT, ANSWER = 512, 64


@reports_errors
def main(arguments=None):
    """Measure and print; 2 where something that is needed is absent, or fails."""
    options = _parser().parse_args(arguments)
    program(options.llama_cpp, "llama-bench")
    document = {
        "machine": machine_facts(),
        "commit": commit_of(Path(__file__)),
        "peaks": peaks(options.threads),
        "files": [],
    }
    options.work.mkdir(parents=True, exist_ok=True)
    every = [*product(options.shapes, options.types)]
    with progress() as on_progress:
        for done, (name, file_type) in enumerate(every):
            on_progress(f"{name} {file_type}", done, len(every))
            document["files"].append(measure(name, SHAPES[name], file_type, options))
            if options.json:  # after each file, for the next one may take half an hour
                options.json.write_text(json.dumps(document), encoding="utf-8")
    show(document)


def peaks(threads):
    """The limits of the machine, a dict for each number of threads; raises ProgramError."""
    asked = ["cargo", "bench", "--quiet", "--bench", "peaks", "--", *map(str, threads)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise ProgramError(f"`{' '.join(asked)}` failed: {last_lines(done.stderr)}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measure(name, shape, file_type, options):
    """All that is measured of a file, as JSON types."""
    found = matrices(shape, file_type)
    figures = {
        "name": f"{name} {file_type}",
        "num_bytes": sum(matrix.num_bytes for matrix in found),
        "num_weights": sum(matrix.num_weights for matrix in found),
        "head_weights": found[0].num_weights,
        "runs": [],
    }
    with TemporaryDirectory(dir=options.work) as folder:
        # What coordgen converts goes with the file.
        os.environ["XDG_CACHE_HOME"] = str(Path(folder).absolute() / "cache")
        gguf = Path(folder) / f"{name}.{file_type}.gguf"
        write_shape(gguf, shape, file_type)
        with own_processes() as processes:
            for threads in options.threads:
                asked = [gguf], threads, PROMPT, options.seconds
                rounds = []
                for _ in range(options.rounds):
                    (times,) = processes.submit(measure_widths, *asked).result()
                    ours = {what: 1e3 * median(seconds) for what, seconds in times.items()}
                    theirs = llama_bench(gguf, threads, options.llama_cpp)
                    rounds.append({"ours_ms": ours, "llama.cpp": theirs})
                figures["runs"].append({"threads": threads, "rounds": rounds})
    return figures


def llama_bench(gguf, threads, programs):
    """What llama-bench says of a file; raises ProgramError."""
    asked = command(programs, "llama-bench", gguf, threads)
    tests = measured(asked, "--n-prompt", PROMPT, "--n-gen", ANSWER)
    rates = {"answer" if test["n_gen"] else "prompt": test["avg_ts"] for test in tests}
    about = f"llama.cpp commit {tests[0]['build_commit']}, llama-bench on {tests[0]['cpu_info']}"
    return {"prompt_tokens_s": rates["prompt"], "answer_tokens_s": rates["answer"], "about": about}


STEPS = {
    "file": "{file}",
    "threads": "{threads}",
    "what": "{what}",
    "ms": "{ms:.1f}",
    "one row = 1": "x{times:.2f}",
    "weights, GB/s": "{gb_s:.1f}",
    "of reading": "{of_reading:.0f} %",
    "GMAC/s": "{gmac_s:.0f}",
    "of the limit": "{of_limit:.0f} %",
}
BESIDE = {
    "file": "{file}",
    "threads": "{threads}",
    "steps of a row, ours": "{answer[ours]:.1f}",
    "steps of a row, its": "{answer[theirs]:.1f}",
    "steps, llama.cpp = 1": "x{answer[ratio]:.2f}",
    "steps, rounds": "x{answer[low]:.2f}..x{answer[high]:.2f}",
    "prompt, ours": "{prompt[ours]:.0f}",
    "prompt, its": "{prompt[theirs]:.0f}",
    "prompt, llama.cpp = 1": "x{prompt[ratio]:.2f}",
    "prompt, rounds": "x{prompt[low]:.2f}..x{prompt[high]:.2f}",
}
LIMITS = {
    "threads": "{threads}",
    "reading, GB/s": "{read_gb_s:.1f}",
    "bytes by": "{integers}",
    "GMAC/s": "{integers_gmac_s:.0f}",
    "float32 by FMA, GMAC/s": "{fma_gmac_s:.0f}",
}


def lines(figures, run, peak):
    """What each step and the prompt reach, beside the machine's limits.

    A step reads all weights once. A prompt's rows need no head.
    """
    ours_ms = {what: median(of_rounds(run, "ours_ms", what)) for what in widths_of(run)}
    for what, ms in ours_ms.items():
        is_prompt = what.startswith("prompt")
        rows = PROMPT if is_prompt else int(what.split()[0])
        weights = figures["num_weights"] - (figures["head_weights"] if is_prompt else 0)
        gb_s, gmac_s = 1e-6 * figures["num_bytes"] / ms, 1e-6 * rows * weights / ms
        most = peak["integers_gmac_s"]
        yield {
            "file": figures["name"],
            "threads": run["threads"],
            "what": what,
            "ms": ms,
            "times": None if is_prompt else ms / ours_ms["1 row"],
            "gb_s": None if is_prompt else gb_s,
            "of_reading": None if is_prompt else 100 * gb_s / peak["read_gb_s"],
            "gmac_s": gmac_s,
            "of_limit": None if most is None else 100 * gmac_s / most,
        }


def beside(figures, run):
    """Tokens a second of both engines, and theirs in each round beside ours."""
    found = {"file": figures["name"], "threads": run["threads"]}
    for rows, what, whose in ((1, "1 row", "answer"), (PROMPT, f"prompt of {PROMPT}", "prompt")):
        ours = [1e3 * rows / ms for ms in of_rounds(run, "ours_ms", what)]
        theirs = of_rounds(run, "llama.cpp", f"{whose}_tokens_s")
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        found[whose] = {"ours": median(ours), "theirs": median(theirs), "ratio": median(ratios)}
        found[whose] |= {"low": min(ratios), "high": max(ratios)}
    return found


def widths_of(run):
    """What was timed in each round."""
    return run["rounds"][0]["ours_ms"]


def of_rounds(run, who, what):
    """A figure of each round."""
    return [of_round[who][what] for of_round in run["rounds"]]


def show(document):
    """Print the tables, and what llama.cpp was."""
    limits = {peak["threads"]: peak for peak in document["peaks"]}
    runs = [(figures, run) for figures in document["files"] for run in figures["runs"]]
    show_rows("limits of the machine", limits.values(), LIMITS)
    steps = [line for figures, run in runs for line in lines(figures, run, limits[run["threads"]])]
    show_rows("steps and prompts", steps, STEPS, num_words=3)
    both = [beside(figures, run) for figures, run in runs]
    show_rows("beside llama.cpp, tokens/s", both, BESIDE, num_words=2)
    for about in dict.fromkeys(run["rounds"][0]["llama.cpp"]["about"] for _, run in runs):
        print(f"Peer: {about}\n")


def _parser():
    parser = parser_of(__doc__)
    names = ", ".join(SHAPES)
    parser.add_argument("shapes", nargs="+", choices=SHAPES, metavar="SHAPE", help=names)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["Q4_0", "Q4_K_M"])
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each of our processes, default %(default)s"
    )
    add_counts(parser, threads=([1, 2], ""), rounds=(3, "of both engines in turns"))
    add_llama_cpp(parser, "llama-bench")
    add_json(parser, to_file=True)
    return parser


if __name__ == "__main__":
    run_script(main)

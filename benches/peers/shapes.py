"""What steps and prompts cost in the shapes of larger models, beside the machine's limits.

    python benches/peers/shapes.py qwen2.5-0.5b qwen2.5-3b --types Q4_0 Q4_K_M

For each shape and type a GGUF file of random weights is written, measured and removed: steps of all
widths behind 64 tokens and a prompt of 512, by coordgen, and llama.cpp's own `llama-bench` on the
same file, in turns: what counts is the median of the rounds. Beside them stand how fast this
machine reads memory, and how fast it multiplies by the instruction that the kernels use
(`cargo bench --bench peaks`). Needs `make peers`, cargo, and `pip install --group peers`; of disk,
three times the largest file.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1]))

import hybrid_shapes
from contest import ContestantFailedError
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.condition import commit_of
from coordgen_rs.lab.tables import show_table
from coordgen_rs.loading.costs import machine_facts
from live.llama_build import BUILT, ProgramError, command, end_with_parent, last_lines, program
from qwen_shape import SHAPES as DENSE
from shape_file import TYPES, matrices, write_shape
from support.script import own_processes, run_script
from widths import measure_widths

SHAPES = {name: it for name, it in DENSE.items() if it.get("family") == "qwen2"}
SHAPES |= hybrid_shapes.SHAPES
ROOT = Path(__file__).resolve().parents[2]
PROMPT, ANSWER = 512, 64
REPETITIONS = 1
"""Of llama-bench in a round."""


def main(arguments=None):
    """Measure and print; 2 where something that is needed is absent, or fails."""
    options = _parser().parse_args(arguments)
    shapes = [(name, SHAPES[name]) for name in options.shapes]
    try:
        program(options.llama_cpp, "llama-bench")
        document = {
            "machine": machine_facts(),
            "commit": commit_of(Path(__file__)),
            "peaks": peaks(options.threads),
            "files": [],
        }
        options.work.mkdir(parents=True, exist_ok=True)
        with progress() as on_progress:
            every = [*product(shapes, options.types)]
            for done, ((name, shape), file_type) in enumerate(every):
                on_progress(f"{name} {file_type}", done, len(every))
                document["files"].append(measure(name, shape, file_type, options))
                if options.json:  # after each file, for the next one may take half an hour
                    options.json.write_text(json.dumps(document), encoding="utf-8")
    except (CoordgenError, ContestantFailedError, OSError) as error:
        print(f"shapes.py: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"shapes.py: no module named {error.name}: pip install --group peers", file=sys.stderr
        )
        return 2
    show(document)
    return 0


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
    asked = ["--n-prompt", str(PROMPT), "--n-gen", str(ANSWER), "--repetitions", str(REPETITIONS)]
    done = subprocess.run(
        [*command(programs, "llama-bench", gguf, threads), *asked, "--output", "json"],
        capture_output=True,
        text=True,
        preexec_fn=end_with_parent,
    )
    if done.returncode != 0:
        raise ProgramError(f"llama-bench ended with {done.returncode}: {last_lines(done.stderr)}")
    tests = json.loads(done.stdout)
    rates = {"answer" if test["n_gen"] else "prompt": test["avg_ts"] for test in tests}
    about = f"llama.cpp commit {tests[0]['build_commit']}, llama-bench on {tests[0]['cpu_info']}"
    return {"prompt_tokens_s": rates["prompt"], "answer_tokens_s": rates["answer"], "about": about}


def lines(figures, run, peak):
    """What each step and the prompt reach, beside the machine's limits.

    A step reads all weights once. A prompt's rows need no head.
    """
    ours_ms = {what: median(of_rounds(run, "ours_ms", what)) for what in widths_of(run)}
    one_row = ours_ms["1 row"]
    for what, ms in ours_ms.items():
        is_prompt = what.startswith("prompt")
        rows = PROMPT if is_prompt else int(what.split()[0])
        weights = figures["num_weights"] - (figures["head_weights"] if is_prompt else 0)
        gb_s, gmac_s = 1e-6 * figures["num_bytes"] / ms, 1e-6 * rows * weights / ms
        of_step = [f"x{ms / one_row:.2f}", f"{gb_s:.1f}", f"{100 * gb_s / peak['read_gb_s']:.0f} %"]
        most = peak["integers_gmac_s"]
        yield [
            figures["name"],
            str(run["threads"]),
            what,
            f"{ms:.1f}",
            *(["-"] * 3 if is_prompt else of_step),
            f"{gmac_s:.0f}",
            "-" if most is None else f"{100 * gmac_s / most:.0f} %",
        ]


def beside(figures, run):
    """Tokens a second of both engines, and theirs in each round beside ours."""
    found = [figures["name"], str(run["threads"])]
    for rows, what, whose in ((1, "1 row", "answer"), (PROMPT, f"prompt of {PROMPT}", "prompt")):
        ours = [1e3 * rows / ms for ms in of_rounds(run, "ours_ms", what)]
        theirs = of_rounds(run, "llama.cpp", f"{whose}_tokens_s")
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        digits = 1 if rows == 1 else 0
        found += [f"{median(ours):.{digits}f}", f"{median(theirs):.{digits}f}"]
        found += [f"x{median(ratios):.2f}", f"x{min(ratios):.2f}..x{max(ratios):.2f}"]
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
    show_table(
        "limits of the machine",
        ["threads", "reading, GB/s", "bytes by", "GMAC/s", "float32 by FMA, GMAC/s"],
        [
            [
                str(peak["threads"]),
                f"{peak['read_gb_s']:.1f}",
                peak["integers"] or "-",
                *(_rate(peak[name]) for name in ("integers_gmac_s", "fma_gmac_s")),
            ]
            for peak in limits.values()
        ],
    )
    show_table(
        "steps and prompts",
        [
            *("file", "threads", "what", "ms", "one row = 1", "weights, GB/s", "of reading"),
            *("GMAC/s", "of the limit"),
        ],
        [line for figures, run in runs for line in lines(figures, run, limits[run["threads"]])],
        num_words=3,
    )
    heads = [f"{what}, {who}" for what in ("steps of a row", "prompt") for who in ("ours", "its")]
    ratios = "llama.cpp = 1", "rounds"
    show_table(
        "beside llama.cpp, tokens/s",
        ["file", "threads", *heads[:2], *ratios, *heads[2:], *ratios],
        [beside(figures, run) for figures, run in runs],
        num_words=2,
    )
    for about in dict.fromkeys(run["rounds"][0]["llama.cpp"]["about"] for _, run in runs):
        print(f"Peer: {about}\n")


def _rate(gmac_s):
    return "-" if gmac_s is None else f"{gmac_s:.0f}"


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ", ".join(SHAPES)
    parser.add_argument("shapes", nargs="+", choices=SHAPES, metavar="SHAPE", help=names)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["Q4_0", "Q4_K_M"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each of our processes, default %(default)s"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        choices=range(1, 100),
        metavar="N",
        help="of both engines in turns, default %(default)s",
    )
    parser.add_argument(
        "--llama-cpp", type=Path, default=BUILT, metavar="DIR", help="where llama-bench is"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/peers"), help="for files, which are removed again"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
    return parser


if __name__ == "__main__":
    run_script(main)

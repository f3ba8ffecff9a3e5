"""Prints how many tokens a dialogue reads again, by coordgen and by llama.cpp's server.

    python benches/peers/turns.py qwen3.5-0.8b lfm2-1.2b

Ten turns on one file of random weights in the shape of a model with recurrent layers: a prompt is
the dialogue so far, a question and the template's own tokens; an answer has 24. Once answers stay
in the dialogue as they were said, and once their first half is left out, as templates leave out
thinking. Read again is what an engine computes of a prompt beyond what it has not seen before.
Needs `make peers`, and `pip install --group peers`.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from contest import ContestantFailedError
from coordgen_rs import Stats, generate, make_drafter, open_session
from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.tables import show_table
from hybrid_shapes import SHAPES
from live.llama_build import BUILT, command
from live.llama_server import Server
from shape_file import write_shape
from support.script import run_script

TURNS, ANSWER = 10, 24
SYSTEM, HEADER, THINKING = 400, 6, 12
"""Tokens before the first question, of the template behind one, and of an answer's thinking."""
CONTEXT = 2048


def main(arguments=None):
    """Measure and print; 2 where something that is needed is absent, or fails."""
    options = _parser().parse_args(arguments)
    rows = []
    try:
        options.work.mkdir(parents=True, exist_ok=True)
        for name in options.shapes:
            with TemporaryDirectory(dir=options.work) as folder:
                gguf = Path(folder) / f"{name}.gguf"
                write_shape(gguf, SHAPES[name], "Q4_0")
                rows += [*_compared(name, gguf, options)]
    except (CoordgenError, ContestantFailedError, OSError) as error:
        print(f"turns.py: {error}", file=sys.stderr)
        return 2
    heads = ["shape", "thinking", "engine", "new", "read", "read again", "most in a turn"]
    show_table("a dialogue of ten turns, in tokens", heads, rows, num_words=3)
    return 0


def _compared(name, gguf, options):
    """A line for each engine, with answers whole and without their first half."""
    session = open_session(gguf, threads=options.threads)
    asked = [*command(options.llama_cpp, "llama-server", gguf, options.threads)]
    asked += ["--ctx-size", str(CONTEXT), "--parallel", "1"]
    for is_stripped in (False, True):
        server = Server(asked, gguf.with_suffix(".log"))
        try:
            answers = {"coordgen": _ours(session), "llama.cpp": _theirs(server)}
            for engine, answer in answers.items():
                told = read_again(answer, SHAPES[name]["vocab"], is_stripped=is_stripped)
                thinking = "left out" if is_stripped else "kept"
                yield [name, thinking, engine, *map(str, told)]
        finally:
            server.close()
    session.close()


def read_again(answer, vocab, *, is_stripped):
    """New tokens of all prompts, tokens read, those read again, and the most of a turn.

    Args:
        answer: From a prompt to the tokens of it that were read, and the answer's tokens.
        vocab: Size of the vocabulary.
        is_stripped: Whether answers lose their thinking when the next question comes.
    """
    random = np.random.default_rng(4)
    header, held = list(range(300, 300 + HEADER)), []
    history = random.integers(1000, vocab - 1, SYSTEM).tolist()
    new, read = [], []
    for _ in range(TURNS):
        question = random.integers(1000, vocab - 1, random.integers(8, 60)).tolist()
        prompt = [*history, *question, *header]
        num_read, said = answer(prompt)
        new.append(len(prompt) - common(held, prompt))
        read.append(num_read)
        held = [*prompt, *said]
        history = [*prompt, *said]
        if is_stripped:  # the next template does not begin the thinking that is gone, either
            history = [*prompt[: -HEADER // 2], *said[THINKING:]]
    again = [one - other for one, other in zip(read, new, strict=True)]
    return sum(new), sum(read), sum(again), max(again)


def common(held, prompt):
    """The length of the common prefix."""
    pairs = zip(held, prompt, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(held))


def _ours(session):
    drafter = make_drafter(session, "auto")
    session.forget()

    def answer(prompt):
        stats, said = Stats(), []
        options = {"max_new_tokens": ANSWER, "ignore_eos": True, "reuse_prefix": True}
        for step in generate(session, prompt, drafter=drafter, stats=stats, **options):
            said += step.token_ids
        return stats.prompt_tokens - stats.reused_tokens, said

    return answer


def _theirs(server):
    def answer(prompt):
        asked = {
            "prompt": prompt,
            "n_predict": ANSWER,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
            "return_tokens": True,
        }
        said = server.post("completion", asked)
        return said["timings"]["prompt_n"], said["tokens"]

    return answer


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ", ".join(SHAPES)
    parser.add_argument("shapes", nargs="+", choices=SHAPES, metavar="SHAPE", help=names)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--llama-cpp", type=Path, default=BUILT, metavar="DIR", help="where llama-server is"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/peers"), help="for files, which are removed again"
    )
    return parser


if __name__ == "__main__":
    run_script(main)

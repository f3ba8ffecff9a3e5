"""Prints how many tokens a dialogue reads again, by coordgen and by llama.cpp's server.

    python benches/peers/turns.py qwen3.5-0.8b lfm2-1.2b

Ten turns on one file of random weights in the shape of a model with recurrent layers: a prompt is
the dialogue so far, a question and the template's own tokens; an answer has 24. Once answers stay
in the dialogue as they were said, and once their first half is left out, as templates leave out
thinking. Read again is what an engine computes of a prompt beyond what it has not seen before.
Needs `make peers`, and `pip install --group peers`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np

from coordgen_rs import Stats, generate, make_drafter, open_session
from live.llama_build import command
from live.llama_server import Server
from shape_file import write_shape
from support.script import add_counts, add_llama_cpp, parser_of, reports_errors, run_script
from support.shapes import of_families
from support.tables import show_rows

SHAPES = of_families("qwen35", "lfm2")
TURNS, ANSWER = 10, 24
SYSTEM, HEADER, THINKING = 400, 6, 12
"""Tokens before the first question, of the template behind one, and of an answer's thinking."""
CONTEXT = 2048


COLUMNS = {
    "shape": "{shape}",
    "thinking": "{thinking}",
    "engine": "{engine}",
    "new": "{told[0]}",
    "read": "{told[1]}",
    "read again": "{told[2]}",
    "most in a turn": "{told[3]}",
}


@reports_errors
def main(arguments=None):
    """Measure and print; 2 where something that is needed is absent, or fails."""
    parser = parser_of(__doc__)
    names = ", ".join(SHAPES)
    parser.add_argument("shapes", nargs="+", choices=SHAPES, metavar="SHAPE", help=names)
    add_counts(parser, threads=(2, ""))
    add_llama_cpp(parser)
    options = parser.parse_args(arguments)
    rows = []
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.shapes:
        with TemporaryDirectory(dir=options.work) as folder:
            gguf = Path(folder) / f"{name}.gguf"
            write_shape(gguf, SHAPES[name], "Q4_0")
            rows += _compared(name, gguf, options)
    show_rows("a dialogue of ten turns, in tokens", rows, COLUMNS, num_words=3)


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
                yield {"shape": name, "thinking": thinking, "engine": engine, "told": told}
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


if __name__ == "__main__":
    run_script(main)

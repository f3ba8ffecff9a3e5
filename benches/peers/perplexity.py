"""Whether a GGUF file's bundle says what llama.cpp says on the same file.

In: GGUF files. Out: a row for each: perplexity of both on a text of this repository, and how often
the most likely token is the same; the same and the distance of logits behind ten questions; how
many of ten greedy answers agree in their first 32 tokens, and how long they agree in the mean.
Both read the same token ids; whether llama.cpp makes the same ones of all texts is checked first.
What differs by design: both round activations to 8 bits per block of 32, but llama.cpp keeps a
float16 scale for each, takes blocks of 256 for K types, and its cache holds float16, as ours does
with `--kv-cache f16`.

    python benches/peers/perplexity.py MODEL.gguf.. [--weights KIND] [--kv-cache FORM] [--tokens N]
        [--threads N]
"""

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from cyllama.llama import llama_cpp
from tokenizers import Tokenizer

from coordgen_rs import open_session, plain
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from live.prompts import chat_template
from support.script import ROOT, add_counts, parser_of, run_script

WINDOW = 512
ANSWER = 32
DOCS = ROOT / "docs"
TEXTS = ("how-it-works.md", "sources-and-methods.md", "history.md", "switching-and-streaming.md")
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Explain in two sentences why the sky is blue.",
    "Write a short thank-you note to a colleague who reviewed my report.",
    "List three ways to save water at home.",
    "Summarize: The ferry to the island was cancelled on Monday because of a storm. It runs again "
    "from Wednesday, twice a day, and tickets stay valid for a week.",
    "Write a Python function that returns the largest of three numbers.",
    "Translate to French: Where is the train station?",
    "A shop sells pens at 2 dollars each. How much do 7 pens cost?",
    "Who wrote Romeo and Juliet, and when?",
    "Reply to this message: Are we still meeting at three on Friday?",
)


class Model(llama_cpp.LlamaModel):
    """`get_logits` of cyllama 0.2.18 asks the model for what only its vocabulary knows."""

    @property
    def n_vocab(self):
        return self.get_vocab().n_vocab


class LlamaCpp:
    """llama.cpp's own loop on one file."""

    def __init__(self, path, threads):
        self.model = Model(str(path), llama_cpp.LlamaModelParams())
        params = llama_cpp.LlamaContextParams()
        params.n_ctx, params.n_threads, params.n_threads_batch = 2 * WINDOW, threads, threads
        self.context = llama_cpp.LlamaContext(self.model, params)
        self.batch = llama_cpp.LlamaBatch(n_tokens=WINDOW, embd=0, n_seq_max=1)
        self.length = 0

    def tokenize(self, text):
        return self.model.get_vocab().tokenize(text, False, True)

    def rewind(self):
        self.context.memory_seq_rm(0, 0, -1)
        self.length = 0

    def feed(self, token_ids):
        """The logits behind the last of some tokens, `(vocab_size,)`."""
        self.batch.reset()
        for i, token in enumerate(token_ids):
            self.batch.add(int(token), self.length + i, [0], i == len(token_ids) - 1)
        self.context.decode(self.batch)
        self.length += len(token_ids)
        return np.array(self.context.get_logits(), np.float32)

    def rows(self, token_ids):
        """The logits behind every token: only those of a batch's first output can be read."""
        self.rewind()
        return np.stack([self.feed([token]) for token in token_ids])

    def answer(self, token_ids, end_token_ids):
        self.rewind()
        logits, answer = self.feed(token_ids), []
        while len(answer) < ANSWER:
            answer.append(int(logits.argmax()))
            if answer[-1] in end_token_ids:
                break
            logits = self.feed(answer[-1:])
        return answer


class Ours:
    """The bundle of the same file."""

    def __init__(self, path, options):
        self.session = open_session(path, threads=options.threads, kv_cache=options.kv_cache)

    def rows(self, token_ids):
        rows = []
        self.session.rewind(0)
        self.session.prefill(
            np.array(token_ids, np.uint32), on_logits=lambda logits: rows.append(logits.copy())
        )
        return np.concatenate(rows)

    def answer(self, token_ids):
        ids = np.array(token_ids, np.uint32)
        return [
            token
            for step in plain(self.session, ids, max_new_tokens=ANSWER)
            for token in step.token_ids
        ]


def surprises(logits, token_ids):
    """The negative logarithm of each token's probability, `(tokens,)`."""
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    wanted = logits[np.arange(len(token_ids)), token_ids]
    return np.log(np.exp(logits).sum(-1)) - wanted


def compare(path, bundle, options):
    """The row of a file."""
    theirs, ours = LlamaCpp(path, options.threads), Ours(bundle, options)
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    render = chat_template(path)
    prompts = [render([{"role": "user", "content": question}]) for question in QUESTIONS]
    text = "\n".join((DOCS / name).read_text() for name in TEXTS)

    def ids_of(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    same_ids = all(ids_of(one) == list(theirs.tokenize(one)) for one in [text, *prompts])
    token_ids = ids_of(text)[: options.tokens]
    sums, agreed, count = np.zeros(2), 0, 0
    for start in range(0, len(token_ids) - 1, WINDOW):
        window = token_ids[start : start + WINDOW]
        both = [engine.rows(window[:-1]) for engine in (ours, theirs)]
        sums += [surprises(rows, window[1:]).sum() for rows in both]
        agreed += int((both[0].argmax(-1) == both[1].argmax(-1)).sum())
        count += len(window) - 1
    ends = ours.session.end_token_ids
    firsts, distances, lengths = 0, [], []
    for prompt in prompts:
        prompt_ids = ids_of(prompt)
        theirs.rewind()
        logits = ours.rows(prompt_ids)[-1], theirs.feed(prompt_ids)
        firsts += int(logits[0].argmax() == logits[1].argmax())
        distances.append(np.abs(logits[0] - logits[1]))
        answers = ours.answer(prompt_ids), theirs.answer(prompt_ids, ends)
        same = [a == b for a, b in zip(*answers, strict=False)]
        lengths.append(same.index(False) if False in same else ANSWER)
    ours_ppl, theirs_ppl = np.exp(sums / count)
    return {
        "file": path.stem.rsplit(".", 1)[-1],
        "same ids": "yes" if same_ids else "no",
        "perplexity": f"{ours_ppl:.3f}",
        "llama.cpp": f"{theirs_ppl:.3f}",
        "ratio": f"{ours_ppl / theirs_ppl:.4f}",
        "same token": f"{agreed / count:.1%}",
        "logits, max": f"{np.max(distances):.2f}",
        "logits, mean": f"{np.mean(distances):.3f}",
        "first token": f"{firsts}/{len(prompts)}",
        "answers": f"{sum(length == ANSWER for length in lengths)}/{len(prompts)}",
        "agree for": f"{np.mean(lengths):.1f}",
    }


def main():
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--weights", choices=["keep", "fp32", "int8", "int4"], default="keep")
    parser.add_argument("--kv-cache", choices=KV_FORMS, default=KV_FORMS[0])
    add_counts(parser, tokens=(2 * WINDOW, "of the text"), threads=(1, "compute threads"))
    options = parser.parse_args()
    llama_cpp.disable_logging()
    for number, path in enumerate(options.models):
        with tempfile.TemporaryDirectory() as directory:
            bundle = Path(directory) / "bundle"
            export_checkpoint(path, bundle, weights=options.weights, context=2 * WINDOW)
            row = compare(path, bundle, options)
        if number == 0:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    run_script(main)

"""Trains the embedded model: `python train.py tokenizer`, then `python train.py run`.

`python train.py draft` trains its smaller sibling, which drafts for it.

In: scenes of `corpus.py`. Out: tokenizer.json, config.json and model.safetensors in `embedded/` or
`embedded-draft/`, rewritten every few minutes, and a checkpoint from which an interrupted run goes
on.
Every step draws scenes that were never seen before; there are no epochs.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy

from corpus import BOS, EOS, TASKS, TRAIN_SEEDS, ask, scene
from model import (
    BOS_ID,
    DRAFT_SHAPE,
    EMBEDDING,
    Params,
    Shape,
    forward,
    mimetic_params,
    save,
)
from recipe import Recipe, rate
from rows import Rows, pool, probe_rows

HERE = Path(__file__).parent
FOLDERS = {"tokenizer": "embedded", "run": "embedded", "draft": "embedded-draft"}


def train_tokenizer(path: Path, num_scenes: int, vocab_size: int) -> None:
    """Byte-level BPE over training scenes; encoding a prompt puts the begin token in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = (
        "\n".join([made.context, *(ask(made, t) + t.answer for t in made.turns)])
        for seed in range(num_scenes)
        for made in (scene(TASKS[seed % len(TASKS)], TRAIN_SEEDS[-1 - seed]),)
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    tokenizer.save(str(beside))
    beside.replace(path)


def run_forward(
    params: Params, shape: Shape, ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    """Logits of rows in bfloat16; a turn sees the context and itself."""
    segment = segments[:, :, None]
    seen = (segments[:, None] == 0) | (segments[:, None] == segment)
    rows = torch.arange(ids.shape[1])
    seen = seen & (rows[None, :] <= rows[:, None])
    halved = {name: weight.bfloat16() for name, weight in params.items()}
    return forward(halved, shape, ids, positions, seen)


def loss(
    params: Params,
    shape: Shape,
    ids: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    positions: torch.Tensor,
    segments: torch.Tensor,
) -> torch.Tensor:
    """Weighted mean surprise at each target."""
    logits = run_forward(params, shape, ids, positions, segments)
    surprise = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (surprise * weights.flatten()).sum() / weights.sum()


def exact_share(
    params: Params, shape: Shape, rows: Rows, run: Callable[..., torch.Tensor] = run_forward
) -> float:
    """Share of rows whose answers are right to the letter when decoded greedily.

    A greedy answer is the wanted one if and only if each of its tokens is the likeliest after the
    wanted ones before it, so that one run tells.
    """
    right = []
    for begin in range(0, len(rows.ids), 16):
        ids, targets, weights, positions, segments = rows.tensors(slice(begin, begin + 16))
        with torch.no_grad():
            logits = run(params, shape, ids, positions, segments)
        right.append(((logits.argmax(-1) == targets) | (weights < 1)).all(-1).numpy())
    return float(np.mean(np.concatenate(right)))


class Trainer:
    """Parameters, optimizers and the number of the next pool.

    Muon changes the matrices between embedding and head, AdamW the embedding and the norms.
    """

    def __init__(self, shape: Shape, recipe: Recipe) -> None:
        self.shape = shape
        self.recipe = recipe
        self.next_pool = 0
        self.params = {
            name: weight.requires_grad_()
            for name, weight in mimetic_params(shape, recipe.seed).items()
        }
        inner = [w for name, w in self.params.items() if w.ndim == 2 and name != EMBEDDING]
        outer = [w for name, w in self.params.items() if w.ndim == 1 or name == EMBEDDING]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                inner, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(outer, betas=(0.9, 0.98), weight_decay=recipe.weight_decay),
        ]
        self.loss: Callable[..., torch.Tensor] = loss
        self.forward: Callable[..., torch.Tensor] = run_forward

    def compile(self) -> None:
        """Makes the steps several times as fast, from the second on."""
        self.loss, self.forward = torch.compile(loss), torch.compile(run_forward)

    def store(self, path: Path) -> None:
        """Writes a checkpoint beside the old one, then renames it over it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save((self.params, states, self.next_pool), beside)
        beside.replace(path)

    def resume(self, path: Path) -> None:
        """Goes on where `store` stopped."""
        params, states, self.next_pool = torch.load(path)
        with torch.no_grad():
            for name, weight in self.params.items():
                weight.copy_(params[name])
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def step(self, tensors: tuple[torch.Tensor, ...]) -> float:
        """One step of the optimizers; gives the loss before it."""
        value = self.loss(self.params, self.shape, *tensors)
        value.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return value.item()

    def first_loss(self, rows: Rows) -> float:
        """Loss on the first batch of a pool, without learning from it."""
        with torch.no_grad():
            tensors = rows.tensors(slice(0, self.recipe.batch_rows))
            return loss(self.params, self.shape, *tensors).item()

    def exact_share(self, probe: Rows) -> float:
        """As of the function of this name, by the compiled forward pass."""
        return exact_share(self.params, self.shape, probe, self.forward)

    def train_pool(self, rows: Rows) -> float:
        """Trains on the rows of the next pool; gives the mean loss."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(self.recipe, self.next_pool)
        num_rows = self.recipe.batch_rows
        losses = [
            self.step(rows.tensors(slice(begin, begin + num_rows)))
            for begin in range(0, len(rows.ids), num_rows)
        ]
        self.next_pool += 1
        return float(np.mean(losses))


def pools(tokenizer_path: Path, recipe: Recipe, begin: int) -> Iterator[Rows]:
    """The pools from `begin` on, each made in another process while the one before is used."""
    make = partial(pool, tokenizer_path, recipe)
    with ProcessPoolExecutor(1) as maker:
        coming = maker.submit(make, begin)
        for number in range(begin, recipe.num_pools):
            rows = coming.result()
            if number + 1 < recipe.num_pools:
                coming = maker.submit(make, number + 1)
            yield rows


def run(recipe: Recipe, shape: Shape, out: Path, checkpoint: Path, save_every_s: float) -> None:
    """Trains to the end of the recipe, saving now and then; goes on where a checkpoint stands."""
    trainer = Trainer(shape, recipe)
    if checkpoint.exists():
        trainer.resume(checkpoint)
    trainer.compile()
    tokenizer_path = out / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    probes = {task: probe_rows(tokenizer, task, recipe) for task in TASKS}
    begun_s = saved_s = time.monotonic()
    if trainer.next_pool == 0:
        first = pool(tokenizer_path, replace(recipe, pool_steps=1), 0)
        print(f"before the first step: loss {trainer.first_loss(first):.4f}")
    print("pool    loss  ids/s " + "".join(f"{task:>9}" for task in TASKS), flush=True)
    for rows in pools(tokenizer_path, recipe, trainer.next_pool):
        value = trainer.train_pool(rows)
        now_s = time.monotonic()
        speed = np.count_nonzero(rows.segments >= 0) / (now_s - begun_s)
        scores = [trainer.exact_share(probes[task]) for task in TASKS]
        print(
            f"{trainer.next_pool:4} {value:7.4f} {speed:6.0f} "
            + "".join(f"{score:9.3f}" for score in scores),
            flush=True,
        )
        begun_s = time.monotonic()
        if begun_s - saved_s > save_every_s or trainer.next_pool == recipe.num_pools:
            save(out, trainer.params, shape)
            trainer.store(checkpoint)
            saved_s = begun_s


def main() -> None:
    """Makes the tokenizer, trains the model for it, or trains the sibling that drafts for that."""
    defaults = Recipe()
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("command", choices=FOLDERS)
    parser.add_argument("--out", type=Path, help="default: embedded/ or embedded-draft/ beside it")
    parser.add_argument("--checkpoint", type=Path, help="default: in build/, by the name of OUT")
    parser.add_argument("--pools", type=int, default=defaults.num_pools)
    parser.add_argument("--save-every-s", type=float, default=150.0)
    arguments = parser.parse_args()
    out = arguments.out or HERE / FOLDERS[arguments.command]
    if arguments.command == "tokenizer":
        train_tokenizer(out / "tokenizer.json", 20_000, Shape().vocab_size)
        return
    shape = Shape()
    if arguments.command == "draft":
        shape = DRAFT_SHAPE
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "embedded" / "tokenizer.json", out)
    checkpoint = arguments.checkpoint or HERE.parent / "build" / f"{out.name}.pt"
    run(Recipe(num_pools=arguments.pools), shape, out, checkpoint, arguments.save_every_s)


if __name__ == "__main__":
    main()

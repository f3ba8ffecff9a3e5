"""Trains the embedded model: `python train.py tokenizer`, then `python train.py run`.

`python train.py draft` trains its smaller sibling, which drafts for it.

In: scenes of `corpus.py`. Out: tokenizer.json, config.json and model.safetensors in `embedded/` or
`embedded-draft/`, rewritten every few minutes, and a checkpoint from which an interrupted run goes
on.
Every step draws scenes that were never seen before; there are no epochs.
"""

import argparse
import pickle
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from corpus import BOS, EOS, TASKS, TRAIN_SEEDS, ask, scene
from model import BOS_ID, DRAFT_SHAPE, EOS_ID, Params, Shape, forward, mimetic_params, save
from scene import Scene

HERE = Path(__file__).parent
FOLDERS = {"tokenizer": "embedded", "run": "embedded", "draft": "embedded-draft"}
ROW_LENS = (224, 256, 320, 384, 512)
"""Rows are padded to one of these lengths, so that there is one compiled step for each."""
POOL_SCENES = 1024
"""Scenes that are drawn, sorted by length and cut into batches together."""


@dataclass(frozen=True)
class Recipe:
    """What a run is made of."""

    num_pools: int = 51
    warmup_pools: int = 3
    decay_share: float = 0.4
    peak_rate: float = 2e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    batch_tokens: int = 4096
    prompt_weight: float = 0.1
    short_pools: int = 12
    """Pools over which the longest row grows from the first to the last of `ROW_LENS`."""
    seed: int = 0


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


def encode(
    tokenizer: Tokenizer, made: Scene, prompt_weight: float
) -> tuple[list[int], list[float]]:
    """Ids of a scene with all its turns, and the weight of each id as something to predict."""
    ids = [BOS_ID]
    weights = [0.0]
    before = made.context + "\n\n"
    for turn in made.turns:
        asked = tokenizer.encode(before + ask(made, turn), add_special_tokens=False).ids
        answer = [*tokenizer.encode(turn.answer, add_special_tokens=False).ids, EOS_ID]
        ids += asked + answer
        weights += [prompt_weight] * len(asked) + [1.0] * len(answer)
        before = ""
    return ids, weights


@dataclass(frozen=True)
class Batch:
    """Rows of one padded length: ids `(rows, len)` i32, weights `(rows, len)` f32."""

    ids: np.ndarray
    weights: np.ndarray


def batches(tokenizer: Tokenizer, recipe: Recipe, pool: int) -> Iterator[Batch]:
    """All batches of one pool, in random order; scenes too long for this part of the run drop."""
    grown = min(1.0, (pool + 1) / recipe.short_pools)
    longest = ROW_LENS[0] + grown * (ROW_LENS[-1] - ROW_LENS[0])
    rows: dict[int, list[tuple[list[int], list[float]]]] = {length: [] for length in ROW_LENS}
    for offset in range(POOL_SCENES):
        seed = TRAIN_SEEDS[(recipe.seed * recipe.num_pools + pool) * POOL_SCENES + offset]
        made = scene(TASKS[offset % len(TASKS)], seed)
        ids, weights = encode(tokenizer, made, recipe.prompt_weight)
        fitting = next((length for length in ROW_LENS if len(ids) <= length), None)
        if fitting is not None and len(ids) <= longest:
            rows[fitting].append((ids, weights))
    made_batches = []
    for length, members in rows.items():
        num_rows = recipe.batch_tokens // length
        for begin in range(0, len(members), num_rows):
            batch = Batch(
                np.full((num_rows, length), EOS_ID, np.int32),
                np.zeros((num_rows, length), np.float32),
            )
            for row, (ids, weights) in enumerate(members[begin : begin + num_rows]):
                batch.ids[row, : len(ids)] = ids
                batch.weights[row, : len(ids)] = weights
            made_batches.append(batch)
    random.Random(pool).shuffle(made_batches)
    yield from made_batches


def loss(params: Params, shape: Shape, ids: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted mean surprise at each id given those before it; the first ids weigh nothing."""
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    logits, _ = forward(params, shape, ids, positions)
    targets = jnp.roll(ids, -1, 1)
    weights = jnp.roll(weights, -1, 1)
    wanted = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    surprise = jax.nn.logsumexp(logits, -1) - wanted
    return jnp.sum(surprise * weights) / jnp.sum(weights)


def optimizer(recipe: Recipe) -> optax.GradientTransformationExtraArgs:
    """AdamW behind a clip; the learning rate is set from outside before each step."""
    return optax.inject_hyperparams(
        lambda learning_rate: optax.chain(
            optax.clip_by_global_norm(recipe.clip_norm),
            optax.adamw(learning_rate, b2=0.98, weight_decay=recipe.weight_decay),
        )
    )(learning_rate=0.0)


def rate(recipe: Recipe, pool: int) -> float:
    """Linear warm-up, a plateau, then linearly to zero over the last part of the run."""
    warm = (pool + 1) / recipe.warmup_pools
    left = (recipe.num_pools - pool) / (recipe.num_pools * recipe.decay_share)
    return recipe.peak_rate * min(1.0, warm, left)


@dataclass
class Trainer:
    """Parameters and optimizer state, and the compiled step that changes them."""

    shape: Shape
    recipe: Recipe
    params: Params
    state: optax.OptState
    next_pool: int = 0

    @classmethod
    def start(cls, shape: Shape, recipe: Recipe) -> "Trainer":
        """A new run."""
        params = mimetic_params(shape, recipe.seed)
        return cls(shape, recipe, params, optimizer(recipe).init(params))

    @classmethod
    def resume(cls, path: Path, shape: Shape, recipe: Recipe) -> "Trainer":
        """The run that `store` left at `path`. Unpickles: give it only files of your own."""
        with path.open("rb") as file:
            params, state, next_pool = jax.tree.map(jnp.asarray, pickle.load(file))
        return cls(shape, recipe, params, state, int(next_pool))

    def store(self, path: Path) -> None:
        """Writes a checkpoint beside the old one, then renames it over it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        with beside.open("wb") as file:
            pickle.dump(jax.tree.map(np.asarray, (self.params, self.state, self.next_pool)), file)
        beside.replace(path)

    def set_rate(self) -> None:
        """Makes the next steps take the learning rate of the next pool."""
        self.state.hyperparams["learning_rate"] = jnp.asarray(rate(self.recipe, self.next_pool))

    def train_batch(self, batch: Batch) -> jax.Array:
        """One step of the optimizer; gives the loss before it."""
        value: jax.Array
        self.params, self.state, value = _step(
            self.params, self.state, batch.ids, batch.weights, self.shape, self.recipe
        )
        return value

    def train_pool(self, tokenizer: Tokenizer) -> tuple[float, int]:
        """Trains on the next pool; gives its mean loss and how many ids it had, padding apart."""
        self.set_rate()
        losses, num_ids = [], 0
        for batch in batches(tokenizer, self.recipe, self.next_pool):
            losses.append(self.train_batch(batch))
            num_ids += int(np.count_nonzero(batch.weights))
        self.next_pool += 1
        return float(np.mean(jax.device_get(losses))), num_ids


@partial(jax.jit, static_argnums=(4, 5), donate_argnums=(0, 1))
def _step(
    params: Params,
    state: optax.OptState,
    ids: jax.Array,
    weights: jax.Array,
    shape: Shape,
    recipe: Recipe,
) -> tuple[Params, optax.OptState, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(params, shape, ids, weights)
    update, state = optimizer(recipe).update(gradient, state, params)
    return optax.apply_updates(params, update), state, value


def run(recipe: Recipe, shape: Shape, out: Path, checkpoint: Path, save_every_s: float) -> None:
    """Trains to the end of the recipe, saving now and then; goes on where a checkpoint stands."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    if checkpoint.exists():
        trainer = Trainer.resume(checkpoint, shape, recipe)
    else:
        trainer = Trainer.start(shape, recipe)
    saved_s = time.monotonic()
    while trainer.next_pool < recipe.num_pools:
        begin_s = time.monotonic()
        value, num_ids = trainer.train_pool(tokenizer)
        now_s = time.monotonic()
        speed = num_ids / (now_s - begin_s)
        print(
            f"pool {trainer.next_pool} loss {value:.4f} ids {num_ids} ids/s {speed:.0f}", flush=True
        )
        if now_s - saved_s > save_every_s or trainer.next_pool == recipe.num_pools:
            save(out, trainer.params, shape)
            trainer.store(checkpoint)
            saved_s = now_s


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
    checkpoint = arguments.checkpoint or HERE.parent / "build" / f"{out.name}.pickle"
    run(Recipe(num_pools=arguments.pools), shape, out, checkpoint, arguments.save_every_s)


if __name__ == "__main__":
    main()

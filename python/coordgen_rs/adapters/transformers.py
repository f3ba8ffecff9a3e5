"""transformers: `model.generate(.., custom_generate=Drafted())`, verified by trees or chains.

In: what `generate` hands to a decoding loop. Out: what it hands back. Branches are told apart by a
4-D mask and positions; logits processors, stopping criteria and sampling are transformers' own.

Versions: transformers 5.23, torch 2.15. One sequence a call, a dynamic cache, full attention.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import ROWS, generate, make_drafter, measured_costs
from coordgen_rs.errors import OptionError

if TYPE_CHECKING:
    import torch


class TransformersHost:
    """A causal language model of transformers.

    Args:
        model: An `AutoModelForCausalLM`.
        logits_processor: Called with the text and a row of scores; None for none.
        do_sample: Whether tokens are drawn, or the likeliest is taken.
        takes_trees: Whether to verify trees; they need a model that adds a 4-D mask to its scores.
        capacity: Most tokens of prompt and answer.

    Attributes:
        takes_trees: As given.
        commit: Same as in `Host`.
        capacity: Same as in `Host`.
        vocab_size: Same as in `Host`.

    Raises:
        OptionError: The model's cache cannot be cut: it has windows or recurrent layers.
    """

    def __init__(
        self,
        model: Any,
        *,
        logits_processor: Any = None,
        do_sample: bool = False,
        takes_trees: bool = True,
        capacity: int | None = None,
    ) -> None:
        self._model, self._processor, self._do_sample = model, logits_processor, do_sample
        config = model.config.get_text_config()
        if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
            raise OptionError(
                "the model has layers with windows or states, whose cache cannot be cut: use "
                "transformers' own loop"
            )
        self.takes_trees = takes_trees
        self.commit = "compact"
        self.vocab_size: int = config.vocab_size
        self.capacity: int = capacity or config.max_position_embeddings
        self._tree: tuple[list[int], list[int]] = ([], [])
        self.clear()

    def clear(self) -> None:
        """Forget all tokens, by a new cache."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)
        self._text: list[int] = []

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        """Compute and commit a prompt, in one run."""
        self._logits = self._forward(token_ids, None, None, logits_to_keep=1)
        self._text += token_ids.tolist()
        self._tree = ([], [])

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        """Compute a tree; a chain needs no mask."""
        import torch

        num_nodes, length = len(token_ids), len(self._text)
        mask = positions = None
        if not np.array_equal(parents[1:], np.arange(num_nodes - 1)):
            sees = np.eye(num_nodes, length + num_nodes, length, dtype=bool)
            sees[:, :length] = True
            depths = np.zeros(num_nodes, np.int64)
            for node in range(1, num_nodes):
                sees[node] |= sees[parents[node]]
                depths[node] = depths[parents[node]] + 1
            dtype = self._model.dtype
            least = torch.finfo(dtype).min
            mask = torch.where(torch.from_numpy(sees), 0.0, least).to(dtype)[None, None]
            positions = torch.from_numpy(length + depths)[None]
        self._tree = (token_ids.tolist(), parents.tolist())
        self._logits = self._forward(token_ids, mask, positions, logits_to_keep=0)

    def choose(self, row: int) -> int:
        """What transformers chooses: processors first, then the likeliest or one that is drawn."""
        import torch

        scores = self._logits[row : row + 1]
        if self._processor:
            scores = self._processor(self._text_up_to(row), scores.clone())
        if not self._do_sample:
            return int(scores.argmax())
        return int(torch.multinomial(scores.softmax(dim=-1), num_samples=1))

    def scores(self, row: int) -> NDArray[np.float32]:
        """The logits after a node, before any processor, `(vocab_size,) f32`."""
        scores: NDArray[np.float32] = self._logits[row].cpu().numpy()
        return scores

    def keep(self, rows: Sequence[int]) -> None:
        """Keep a path: its keys and values move together, and the others are cut off."""
        import torch

        length, token_ids = len(self._text), self._tree[0]
        if list(rows) != list(range(len(rows))):
            moved = torch.tensor([length + row for row in rows])
            with torch.inference_mode():
                layers: Any = self._cache.layers
                for layer in layers:
                    for held in (layer.keys, layer.values):
                        kept = held[:, :, moved.to(held.device)]
                        held[:, :, length : length + len(rows)] = kept
        num_dropped = len(token_ids) - len(rows)
        if num_dropped:
            self._cache.crop(-num_dropped)
        self._text += [token_ids[row] for row in rows]

    def _text_up_to(self, row: int) -> "torch.Tensor":
        import torch

        token_ids, parents = self._tree
        path = token_ids[row : row + 1]  # none behind the prompt
        while row:
            row = parents[row]
            path.append(token_ids[row])
        return torch.tensor([self._text + path[::-1]], device=self._model.device)

    def _forward(
        self, token_ids: NDArray[np.uint32], mask: Any, positions: Any, *, logits_to_keep: int
    ) -> Any:
        import torch

        device = self._model.device
        with torch.inference_mode():
            done = self._model(
                input_ids=torch.from_numpy(token_ids.astype(np.int64))[None].to(device),
                attention_mask=None if mask is None else mask.to(device),
                position_ids=None if positions is None else positions.to(device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=logits_to_keep,
            )
        return done.logits[0].float()


class Drafted:
    """A decoding loop for `generate(custom_generate=..)`; keep one to keep what it learned.

    Args:
        trees: Whether to verify trees, or chains.
        rows: Rows that a step may have, ascending.
        costs: Cost of a step of each; "measured" measures them at the first request, None where
            rows are free, as on a GPU.
        history: Finished requests to draft from; they are remembered there.

    Attributes:
        num_steps: Runs of the model in the last request, the prompt's left out.
    """

    def __init__(
        self,
        *,
        trees: bool = True,
        rows: Sequence[int] = ROWS,
        costs: Sequence[float] | str | None = "measured",
        history: SharedHistory | None = None,
    ) -> None:
        self._trees, self._rows, self._costs, self._history = trees, rows, costs, history
        self._drafter: HostDrafter | None = None
        self.num_steps = 0

    def __call__(
        self,
        model: Any,
        input_ids: "torch.Tensor",
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> "torch.Tensor":
        """The request's tokens, prompt included, `(1, tokens) i64`.

        Raises:
            OptionError: There is more than one sequence, or something that this loop does not do.
            EmptyPromptError, PromptTooLongError, TokenOutOfRangeError: The prompt cannot be used.
        """
        import torch

        config = generation_config or model.generation_config
        if input_ids.shape[0] != 1:
            raise OptionError(f"{input_ids.shape[0]} sequences in a call, but drafts need 1")
        if model_kwargs.get("attention_mask") is not None:
            raise OptionError("the prompt is padded: drafts need all of its tokens")
        if config.return_dict_in_generate or (config.num_beams or 1) > 1:
            raise OptionError(
                "beams and return_dict_in_generate are not for drafts: leave them out"
            )
        host = TransformersHost(
            model,
            logits_processor=logits_processor,
            do_sample=bool(config.do_sample),
            takes_trees=self._trees,
        )
        end_token_ids = _end_token_ids(config)
        drafter = self._drafter_of(host, end_token_ids)
        prompt = input_ids[0].cpu().numpy()
        self.num_steps = 0
        said = input_ids
        steps = generate(
            host,
            prompt,
            drafter=drafter,
            max_new_tokens=config.max_length - len(prompt),
            end_token_ids=end_token_ids,
        )
        for self.num_steps, step in enumerate(steps):
            for token in step.token_ids:
                new = torch.tensor([[token]], device=input_ids.device)
                said = torch.cat([said, new], dim=1)
                if streamer is not None:
                    streamer.put(new[0].cpu())
                if stopping_criteria and bool(stopping_criteria(said, None).all()):
                    steps.close()
                    break
        if self._history is not None:
            self._history.remember(said[0].cpu().numpy().astype(np.uint32))
        if streamer is not None:
            streamer.end()
        return said

    def _drafter_of(self, host: TransformersHost, end_token_ids: set[int]) -> HostDrafter:
        if self._drafter is None:
            costs = measured_costs(host, self._rows) if self._costs == "measured" else self._costs
            self._drafter = make_drafter(
                host,
                rows=self._rows,
                costs=None if isinstance(costs, str) else costs,
                end_token_ids=end_token_ids,
                history=self._history,
            )
        return self._drafter


def _end_token_ids(config: Any) -> set[int]:
    ends = config.eos_token_id
    return set() if ends is None else {ends} if isinstance(ends, int) else {*ends}

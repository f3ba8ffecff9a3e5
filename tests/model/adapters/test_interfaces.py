"""Adapters of engines that are not installed here, by calls as their engines make them."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import generate, make_drafter
from coordgen_rs.adapters.llama_cpp import LlamaHost, branches
from coordgen_rs.adapters.llama_cpp_python import CoordgenDraftModel, measured_costs
from coordgen_rs.adapters.mlx_lm import MlxHost
from coordgen_rs.adapters.sglang import Corpus, padded
from coordgen_rs.adapters.transformers import Drafted
from coordgen_rs.adapters.transformers import drafted as drafted_module
from coordgen_rs.adapters.vllm import Proposer
from coordgen_rs.errors import EmptyPromptError, EngineError, OptionError, TokenOutOfRangeError
from interrupts import Tracer

VOCAB_SIZE = 100
PERIOD = [11, 12, 13, 14, 15]
WINDOW = ("gemma3.attention.sliding_window",)


def says(text: list[int]) -> int:
    """A target that counts in circles, with a slip."""
    return 20 + len(text) % 3 if len(text) % 13 == 0 else PERIOD[len(text) % len(PERIOD)]


def plain(prompt: list[int], num_tokens: int) -> list[int]:
    text = [*prompt]
    while len(text) < len(prompt) + num_tokens:
        text.append(says(text))
    return text


def taken(text: list[int], chain: list[int]) -> list[int]:
    """What a target says when it verifies a chain: the agreed part and its own token."""
    said = []
    for drafted in [*chain, None]:
        said.append(says(text + said))
        if said[-1] != drafted:
            break
    return said


class TestLlamaCppPython:
    def answer(
        self, model: CoordgenDraftModel, prompt: list[int], num_tokens: int
    ) -> tuple[list, int]:
        """As `Llama.generate` does: called with all tokens, the last one sampled included."""
        text, num_steps = [*prompt, says(prompt)], 1
        while len(text) < len(prompt) + num_tokens:
            drafted = model(np.array(text, np.intc))
            assert drafted.dtype == np.intc
            assert len(drafted) <= 10
            text += taken(text, drafted.tolist())
            num_steps += 1
        return text, num_steps

    def test_the_answer_is_the_targets_in_fewer_steps(self):
        model = CoordgenDraftModel(VOCAB_SIZE)
        prompt = plain([1], 12)
        text, num_steps = self.answer(model, prompt, 60)
        assert text[: len(prompt) + 60] == plain(prompt, 60)
        assert num_steps < 30

    def test_a_prompt_that_begins_with_the_last_answer_goes_on(self):
        model = CoordgenDraftModel(VOCAB_SIZE)
        text, _ = self.answer(model, plain([1], 12), 20)
        again, num_steps = self.answer(model, text, 40)
        assert again[: len(text) + 40] == plain([1], len(text) + 39)
        assert num_steps < 20

    def test_tokens_of_another_model_and_no_tokens_are_refused_by_name(self):
        model = CoordgenDraftModel(VOCAB_SIZE)
        for wrong, error in (([VOCAB_SIZE], TokenOutOfRangeError), ([], EmptyPromptError)):
            with pytest.raises(error):
                model(np.array(wrong, np.intc))
        with pytest.raises(OptionError):
            CoordgenDraftModel(VOCAB_SIZE, num_pred_tokens=-1)
        with pytest.raises(OptionError, match="vocabulary"):
            CoordgenDraftModel(VOCAB_SIZE, history=SharedHistory(VOCAB_SIZE + 1))

    def llama(self, *, logits_all: bool) -> SimpleNamespace:
        """As a `Llama`: `eval` appends behind `n_tokens`, whoever sets that."""
        llama = SimpleNamespace(n_tokens=9, evaluated=[], _logits_all=logits_all)
        llama.n_ctx, llama.n_vocab = lambda: 300, lambda: VOCAB_SIZE

        def evaluate(tokens):
            assert llama.n_tokens in (0, 128)
            llama.evaluated.append(len(tokens))
            llama.n_tokens += len(tokens)

        llama.eval, llama.reset = evaluate, lambda: setattr(llama, "n_tokens", 0)
        return llama

    def test_costs_are_those_of_each_number_of_rows_and_nothing_stays(self):
        llama = self.llama(logits_all=True)
        costs = measured_costs(llama, 3)
        assert len(costs) == 4
        assert costs == sorted(costs)
        assert llama.evaluated == [128, *[1, 2, 3, 4] * 6]
        assert llama.n_tokens == 0
        CoordgenDraftModel(VOCAB_SIZE, num_pred_tokens=3, costs=costs)

    def test_costs_of_rows_without_logits_are_not_measured(self):
        with pytest.raises(OptionError, match="logits_all=True"):
            measured_costs(self.llama(logits_all=False))


class TestVllm:
    def proposer(self, num_drafts: int = 6, max_model_len: int = 90) -> Proposer:
        model = SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE, max_model_len=max_model_len)
        speculative = SimpleNamespace(num_speculative_tokens=num_drafts)
        config = SimpleNamespace(model_config=model, speculative_config=speculative)
        proposer = Proposer(config)
        proposer.load_model(None)
        return proposer

    def call(self, proposer: Proposer, rows: list[tuple[list[int], list[int]]]) -> list[list[int]]:
        """Rows of a text before a step and what the step said."""
        table = np.zeros((len(rows) + 2, 100), np.int32)
        lens = np.zeros(len(rows) + 2, np.int32)
        for row, (text, said) in enumerate(rows):
            whole = text + said
            table[row, : len(whole)], lens[row] = whole, len(whole)
        said = [said for _, said in rows]
        drafts = proposer.propose(said, lens, table, slot_mappings=None)
        assert len(drafts) == len(rows)
        return drafts

    def test_rows_that_move_keep_their_drafters(self):
        proposer = self.proposer()
        texts = {name: plain([start], 12) for name, start in (("a", 1), ("b", 2), ("c", 3))}
        drafts: dict[str, list[int]] = {name: [] for name in texts}
        lens = []
        for order in ("abc", "cab", "bc", "cb", "bca"):  # a pauses, and comes back
            said = {name: taken(texts[name], drafts[name]) for name in order}
            rows = [(texts[name], said[name]) for name in order]
            for name, chain in zip(order, self.call(proposer, rows), strict=True):
                texts[name], drafts[name] = texts[name] + said[name], chain
                assert len(chain) <= 6
                lens.append(len(chain))
        assert all(texts[name] == plain(texts[name][:1], len(texts[name]) - 1) for name in "abc")
        assert sum(lens) > 4 * len(lens)

    def test_a_prompt_that_is_read_in_parts_gets_no_draft_until_it_is_whole(self):
        proposer = self.proposer()
        prompt = plain([1], 30)
        assert self.call(proposer, [(prompt[:16], [])]) == [[]]
        assert len(self.call(proposer, [(prompt, [says(prompt)])])[0]) == 6

    def test_no_draft_reaches_beyond_the_longest_text(self):
        proposer = self.proposer(max_model_len=34)
        for num_tokens, most in ((31, 2), (32, 1), (33, 0)):
            prompt = plain([1], num_tokens - 1)
            assert len(self.call(proposer, [(prompt, [says(prompt)])])[0]) <= most

    def test_what_has_left_the_batch_is_drafted_from(self):
        proposer = self.proposer()
        secret = [40, 41, 42, 43, 44, 45, 46]
        self.call(proposer, [(secret, [47])])
        assert self.call(proposer, []) == []
        self.call(proposer, [([1, 2], [3])])
        assert self.call(proposer, [([5, 40, 41], [42])])[0][:4] == [43, 44, 45, 46]

    @pytest.fixture
    def watched(self, monkeypatch) -> SimpleNamespace:
        """Lengths of the prompts that drafters began with, and drafters whose text was read."""
        watched = SimpleNamespace(begun=[], texts_read=[])

        class Watched:
            def __init__(self, *arguments, **options):
                self._core = HostDrafter(*arguments, **options)

            def begin(self, prompt):
                watched.begun.append(len(prompt))
                self._core.begin(prompt)

            def __getattr__(self, name):
                if name == "token_ids":
                    watched.texts_read.append(self)
                return getattr(self._core, name)

        monkeypatch.setattr("coordgen_rs.adapters.vllm.HostDrafter", Watched)
        return watched

    def test_a_prompt_that_is_read_in_parts_ends_no_paused_request(self, watched):
        proposer = self.proposer()
        paused, new = [40, 41, 42], [5, 6, 7, 8]
        self.call(proposer, [(paused, [43])])
        assert self.call(proposer, [(new, [])]) == [[]]
        self.call(proposer, [(new, []), ([*paused, 43], [44])])
        assert watched.begun == [3]
        self.call(proposer, [(new, [9]), ([*paused, 43, 44], [45])])
        assert watched.begun == [3, 4]

    def test_a_prompt_that_continues_a_running_text_begins_a_drafter_of_its_own(self, watched):
        proposer = self.proposer()
        running = [40, 41, 42]
        self.call(proposer, [(running, [43])])
        self.call(proposer, [([*running, 43, 50, 51], [52]), ([*running, 43], [44])])
        assert watched.begun == [3, 6]

    def test_a_paused_request_goes_on_and_has_not_ended(self, watched):
        proposer = self.proposer()
        secret, other = [40, 41, 42, 43, 44, 45, 46], [5, 6]
        self.call(proposer, [(secret, [47]), (other, [40])])
        drafts = self.call(proposer, [([*other, 40], [41])])  # the first is gone: paused
        assert drafts[0][:1] != [42]
        secret.append(47)
        rows = [([*other, 40, 41], [42]), (secret, [])]  # it is read again, in parts
        assert self.call(proposer, rows)[1] == []
        self.call(proposer, [([*other, 40, 41, 42], [43]), (secret, [48])])
        assert watched.begun == [7, 2]
        begins = [
            ([*other, 40, 41, 42, 43], [9]),
            ([1, 2, 45], [46]),
        ]  # and now it is gone for good
        assert self.call(proposer, begins)[1][:2] == [47, 48]

    def test_an_unknown_token_is_named_and_the_next_step_is_right(self):
        proposer, text = self.proposer(), plain([1], 12)
        with pytest.raises(TokenOutOfRangeError):
            self.call(proposer, [(text, [says(text)]), ([3], [VOCAB_SIZE])])
        said = taken(text, [])
        chain = self.call(proposer, [(text, said)])[0]
        assert chain
        assert taken(text + said, chain)[:1] == [says(text + said)]

    def test_the_work_for_a_row_does_not_grow_with_the_batch(self, watched):
        proposer = self.proposer()
        rows = [([start, *plain([1], 12)], [3]) for start in range(30, 60)]
        self.call(proposer, rows)
        self.call(proposer, [([*text, *said], [4]) for text, said in rows[::-1]])
        assert len(set(map(id, watched.texts_read))) == len(rows)  # they were taken up again
        assert len(watched.texts_read) <= 3 * 2 * len(rows)


class TestSglang:
    def test_trees_have_their_size_and_go_on_with_their_requests(self):
        corpus = Corpus(VOCAB_SIZE, 8)
        texts = {"one": plain([1], 20), "two": plain([2], 22)}
        num_steps = 0
        while min(map(len, texts.values())) < 60:
            tails = [text[-12:] for text in texts.values()]
            corpus.synchronize()
            tokens, masks = corpus.batch_get([*texts], tails, [*map(len, texts.values())])
            assert tokens.shape == (16,)
            assert masks.shape == (2 * 8 * 8,)
            assert tokens.dtype == masks.dtype == np.int64
            for row, (name, text) in enumerate(texts.items()):
                tree, mask = tokens[8 * row :][:8], masks.reshape(2, 8, 8)[row]
                assert tree[0] == text[-1]
                node, said = 0, [says(text)]
                while True:
                    below = [
                        child
                        for child in range(node + 1, 8)
                        if mask[child].sum() == mask[node].sum() + 1
                        and mask[child, node]
                        and tree[child] == said[-1]
                    ]
                    if not below:
                        break
                    node = below[0]
                    said.append(says(text + said))
                texts[name] = text + said
            corpus.batch_put(tails)
            num_steps += 1
        assert all(text == plain(text[:1], len(text) - 1) for text in texts.values())
        assert num_steps < 25

    def test_what_has_ended_is_drafted_from_and_forgotten_by_a_reset(self):
        corpus = Corpus(VOCAB_SIZE, 4)
        corpus.batch_get(["one"], [[40, 41, 42, 43, 44]], [5])
        corpus.erase_match_state(["one", "unknown"])
        assert [len(drafter.token_ids) for drafter in corpus._idle] == [0]
        tokens, _ = corpus.batch_get(["two"], [[7, 40, 41]], [3])
        assert tokens.tolist() == [41, 42, 43, 44]
        corpus.reset()
        tokens, _ = corpus.batch_get(["three"], [[7, 40, 41]], [3])
        assert 42 not in tokens

    def test_an_empty_batch_has_an_empty_answer(self):
        corpus = Corpus(VOCAB_SIZE, 4)
        tokens, masks = corpus.batch_get([], [], [])
        assert tokens.shape == masks.shape == (0,)
        assert tokens.dtype == masks.dtype == np.int64
        corpus.batch_put([])
        corpus.erase_match_state([])
        tokens, masks = Corpus(VOCAB_SIZE, 1).batch_get(["one"], [[4, 5]], [2])
        assert (tokens.tolist(), masks.tolist()) == ([5], [1])  # of the root alone

    def test_a_request_that_is_refused_leaves_the_others_as_they_were(self):
        corpus, text = Corpus(VOCAB_SIZE, 4), plain([1], 20)
        expected = corpus.batch_get(["one"], [text], [len(text)])
        for wrong, error in (([], EmptyPromptError), ([VOCAB_SIZE], TokenOutOfRangeError)):
            with pytest.raises(error):
                corpus.batch_get(["one", "two"], [text, wrong], [len(text), len(wrong)])
            again = corpus.batch_get(["one"], [text], [len(text)])
            assert [part.tolist() for part in again] == [part.tolist() for part in expected]

    def test_a_request_that_was_taken_back_begins_anew(self):
        corpus, text = Corpus(VOCAB_SIZE, 4), plain([1], 20)
        corpus.batch_get(["one"], [text], [len(text)])
        tokens, _ = corpus.batch_get(["one"], [text[:9]], [9])
        assert tokens[0] == text[8]

    def test_external_corpora_are_refused_by_name(self):
        corpus = Corpus(VOCAB_SIZE, 4)
        with pytest.raises(OptionError, match=r"'notes'.*SharedHistory"):
            corpus.load_external_corpus_named("notes", [[1, 2, 3]])
        with pytest.raises(OptionError, match="'notes'"):
            corpus.remove_external_corpus("notes")
        assert corpus.list_external_corpora() == {}

    def test_padding_sees_the_root_and_itself(self):
        token_ids, parents = np.array([5, 6, 7], np.uint32), np.array([0, 0, 1], np.uint32)
        tokens, mask = padded(token_ids, parents, 4)
        assert tokens.tolist() == [5, 6, 7, 7]
        seen = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
        assert mask.reshape(4, 4).tolist() == seen


class TestBranches:
    def test_siblings_share_no_sequence_and_ancestors_have_those_of_their_branches(self):
        assert branches([0, 0, 1, 2], 3) == ([[0, 1, 2]] * 4, [0, 1, 2, 3])  # a chain has all
        parents = [0, 0, 1, 0, 1]
        through, depths = branches(parents, 5)
        assert depths == [0, 1, 2, 1, 2]
        assert sorted(through[0]) == [0, 1, 2, 3, 4]
        leaves = [set(through[node]) for node in (2, 3, 4)]
        assert all(leaves)
        assert sum(map(len, leaves)) == len(set.union(*leaves)) == 5
        assert set(through[1]) == leaves[0] | leaves[2]
        with pytest.raises(OptionError, match="n_seq_max"):
            branches([0, 0, 0, 0], 2)


class TestLlamaHost:
    def host(
        self,
        *,
        is_recurrent: bool = False,
        drops: bool = True,
        n_seq_max: int = 1,
        first_place: int = 0,
        metadata: tuple[str, ...] = (),
        **params: bool,
    ) -> LlamaHost:
        vocab = SimpleNamespace(n_vocab=VOCAB_SIZE, is_eog=lambda token: token == 2)
        model = SimpleNamespace(
            get_vocab=lambda: vocab,
            is_recurrent=lambda: is_recurrent,
            is_hybrid=lambda: False,
            metadata=lambda: dict.fromkeys(metadata, "16"),
        )
        context = SimpleNamespace(
            model=model,
            n_ctx=64,
            n_batch=32,
            n_seq_max=4,
            params=SimpleNamespace(**{"kv_unified": True, "swa_full": True, **params}),
            decode=lambda batch: None,
            memory_seq_rm=lambda sequence, first, last: drops,
            memory_seq_pos_min=lambda sequence: first_place,
        )
        library = SimpleNamespace(
            LlamaBatch=lambda **sizes: SimpleNamespace(add=lambda *token: None)
        )
        sampler = SimpleNamespace(reset=lambda: None)
        return LlamaHost(library, context, sampler, n_seq_max=n_seq_max)

    @pytest.mark.parametrize(
        ("given", "match"),
        [
            ({"n_seq_max": 5}, "has 4 sequences"),
            ({"n_seq_max": 0}, "n_seq_max is 0"),
            ({"n_seq_max": 4, "kv_unified": False}, "kv_unified = True"),
            ({"n_seq_max": 4, "metadata": WINDOW, "swa_full": False}, "swa_full = True"),
            ({"is_recurrent": True}, "recurrent layers"),
        ],
    )
    def test_a_context_whose_sequences_are_no_branches_is_refused(self, given, match):
        assert self.host(n_seq_max=4).takes_trees
        assert not self.host(n_seq_max=1, metadata=WINDOW, swa_full=False).takes_trees
        with pytest.raises(OptionError, match=match):
            self.host(**given)

    def test_more_rows_than_branches_are_refused_before_any_token(self):
        host = self.host(n_seq_max=4)
        make_drafter(host, rows=(1, 5))
        with pytest.raises(OptionError, match="5 branches, the host 4"):
            make_drafter(host, rows=(1, 6))
        make_drafter(self.host(n_seq_max=1), rows=(1, 16))  # chains have one

    def test_no_more_is_cut_than_is_there(self):
        host = self.host()
        host.read(np.array([3, 4, 5], np.uint32))
        host.cut(2)
        for wrong in (3, -1):
            with pytest.raises(OptionError, match="2 tokens are committed"):
                host.cut(wrong)
        host = self.host(first_place=1)
        host.read(np.array([3, 4, 5], np.uint32))
        host.cut(3)
        with pytest.raises(EngineError, match="left the model's window"):
            host.cut(2)

    def test_a_rejected_draft_that_stays_in_the_cache_is_an_error(self):
        chain = np.array([3, 4], np.uint32), np.array([0, 0], np.uint32)
        host = self.host()
        host.run(*chain)
        host.keep([0])
        host = self.host(drops=False)
        host.run(*chain)
        with pytest.raises(EngineError, match="cannot drop rejected drafts"):
            host.keep([0])


@pytest.fixture
def mlx_model(monkeypatch):
    """A model of MLX-LM of 100 tokens that counts."""
    core = ModuleType("mlx.core")
    core.array, core.eval, core.inf, core.argmax = np.array, lambda _: None, np.inf, np.argmax
    models = ModuleType("mlx_lm.models")
    models.cache = SimpleNamespace(
        make_prompt_cache=lambda model: [SimpleNamespace()],
        can_trim_prompt_cache=lambda cache: True,
        trim_prompt_cache=lambda cache, num_tokens: num_tokens,
    )
    mlx = ModuleType("mlx")
    mlx.core = core
    for module in (mlx, core, ModuleType("mlx_lm"), models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return lambda token_ids, cache: np.eye(VOCAB_SIZE)[(token_ids + 1) % VOCAB_SIZE]


def test_a_vocabulary_of_another_size_than_the_models_is_refused(mlx_model):
    def answer(host):
        steps = generate(host, [1, 2, 3], drafter=make_drafter(host), max_new_tokens=5)
        return [token for step in steps for token in step.token_ids]

    assert answer(MlxHost(mlx_model, VOCAB_SIZE, 64)) == [4, 5, 6, 7, 8]
    for wrong in (VOCAB_SIZE - 1, 999):
        with pytest.raises(OptionError, match=f"vocab_size is {wrong}, .* logits are 100 wide"):
            answer(MlxHost(mlx_model, wrong, 64))


@pytest.fixture
def made(monkeypatch):
    """A `Drafted`, also where there is no transformers."""
    monkeypatch.setattr(drafted_module, "hand_on_what_was_given", lambda _: None)
    return Drafted(costs=None)


def _request(drafted):
    drafted._alone(lambda: None)


def test_a_request_within_a_request_is_refused(made):
    with pytest.raises(OptionError, match="another request"):
        made._alone(lambda: _request(made))
    _request(made)


def test_an_interrupt_as_a_request_begins_or_ends_keeps_none_from_the_next(made):
    with Tracer() as tracer:
        _request(made)
    assert len(tracer.points) > 2
    for point in tracer.points:
        with pytest.raises(KeyboardInterrupt) as kept, Tracer(point):
            _request(made)
        _request(made)
        assert kept.tb is not None  # what keeps the frames alive

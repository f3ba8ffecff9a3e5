"""What was written against 0.2.0's public API runs: by its names, or by a new one that is named."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import coordgen_rs

NAMES_OF_0_2 = """
    Accepted Answer Bundle Dialogue DraftModel Drafter DynamicTree EnergyMeter Gain History
    HostDrafter JsonSchema Lark LookupTable Matcher Model ModelDrafter OrtSession Piece PrefixPool
    Profile PromptLookup Regex RequestOptions Sampling Session Span Stats Step StepInputs Stream
    SuffixAutomaton Tokenizer Vocabulary generate make_drafter open_session plain
"""
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/renamed.md"
RENAMED = coordgen_rs._RENAMED

ADAPTERS_OF_0_2 = """
    host.Follower host.Host host.HostStep host.generate host.make_drafter host.measured_costs
    llama_cpp.LlamaHost llama_cpp.open_host llama_cpp_python.DraftModel mlx_lm.MlxHost
    onnxruntime_genai.GenaiHost sglang.Corpus transformers.Drafted transformers.TransformersHost
    vllm.Proposer
"""
ADAPTER = """
from coordgen_rs import HostDrafter
from coordgen_rs.adapters.host import generate, make_drafter, measured_costs

CYCLE = [5, 6, 7, 8, 9]

class Host:
    takes_trees, commit, capacity, vocab_size = True, "compact", 256, 64

    def clear(self):
        self.kept = []

    def read(self, token_ids):
        self.kept, self.nodes = token_ids.tolist(), token_ids[-1:].tolist()

    def run(self, token_ids, parents):
        self.nodes = token_ids.tolist()

    def choose(self, row):
        at = CYCLE.index(self.nodes[row]) if self.nodes[row] in CYCLE else 0
        return CYCLE[(at + 1) % len(CYCLE)]

    def keep(self, rows):
        self.kept += [self.nodes[row] for row in rows]

host = Host()
drafter = make_drafter(host, costs=measured_costs(host, prompt_ids=CYCLE), end_token_ids=[2])
assert isinstance(drafter, HostDrafter)
drafter = make_drafter(host, end_token_ids=[2])
steps = [*generate(host, CYCLE * 2, drafter=drafter, max_new_tokens=30, end_token_ids=[2])]
assert sum((step.token_ids for step in steps), []) == CYCLE * 6
assert len(steps) < 30 and sum(step.num_drafted for step in steps)
"""
SCRIPT = """
import sys
from coordgen_rs import (
    Answer, Dialogue, Gain, Model, Piece, Span, Stats, Step, Stream, Tokenizer, generate,
    make_drafter, open_session, plain
)

bundle = sys.argv[1]
with Model.open(bundle, history=None) as model:
    answer = model.generate("Once upon a time", max_new_tokens=8, stop=["no such text"])
    assert isinstance(answer, Answer) and all(isinstance(it, Span) for it in answer.spans)
    with model.stream("Once upon a time", max_new_tokens=8) as stream:
        assert isinstance(stream, Stream)
        gain = stream.step()
        assert isinstance(gain, Gain) and isinstance(gain.step, Step)
        pieces = [*gain.pieces, *stream]
        assert all(isinstance(piece, Piece) and piece.source for piece in pieces)
    assert "".join(piece.text for piece in pieces) == answer.text == stream.answer.text
    dialogue = Dialogue(model, max_new_tokens=4)

session, stats = open_session(bundle), Stats()
tokenizer = Tokenizer.of(session.bundle)
prompt, text_of = tokenizer.encode("Once upon a time"), tokenizer.stream()
drafted = [
    token
    for step in generate(
        session, prompt, max_new_tokens=8, stats=stats, drafter=make_drafter(session)
    )
    for token in step.token_ids
]
assert tuple(drafted) == answer.token_ids and stats.new_tokens == len(drafted)
assert drafted == [t for step in plain(session, prompt, max_new_tokens=8) for t in step.token_ids]
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_public_name_of_0_2_is_there():
    for name in NAMES_OF_0_2.split():
        assert getattr(coordgen_rs, name) is getattr(coordgen_rs, RENAMED.get(name, name))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_adapter_of_0_2_is_there():
    for name in ADAPTERS_OF_0_2.split():
        module, _, name = name.partition(".")
        assert hasattr(import_module(f"coordgen_rs.adapters.{module}"), name)
    with pytest.warns(DeprecationWarning, match=r"is now .*\.CoordgenDraftModel$"):
        _ = import_module("coordgen_rs.adapters.llama_cpp_python").DraftModel


def test_a_drafter_with_a_draft_model_is_made_as_before():
    model, drafter = object(), object()
    with pytest.warns(DeprecationWarning, match="is now ModelDrafter"):
        made = coordgen_rs.DraftModel.drafter(model, drafter, 4, weighs=False)
    assert isinstance(made, coordgen_rs.ModelDrafter)
    assert (made.model, made.drafter) == (model, drafter)
    assert not hasattr(object.__new__(coordgen_rs.ModelDrafter), "no such name")


def test_an_old_name_names_the_new_one_where_it_is_used():
    for old, new in RENAMED.items():
        with pytest.warns(DeprecationWarning, match=rf"\.{old} is now coordgen_rs\.{new}$") as told:
            assert getattr(coordgen_rs, old) is getattr(coordgen_rs, new)
        assert told[0].filename == __file__
        assert new in coordgen_rs.__all__
        assert old not in [*coordgen_rs.__all__, *dir(coordgen_rs)]


def test_the_page_of_renamed_names_has_them_all():
    public, _, _ = PAGE.read_text().partition("\n## Modules\n")
    rows = re.findall(r"^\| `coordgen_rs\.(\w+)` \| `coordgen_rs\.(\w+)` \|", public, re.M)
    assert dict(rows) == RENAMED


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("source", [ADAPTER, SCRIPT], ids=["adapter", "script"])
def test_programs_of_0_2_run_as_they_are(source, bundle_of, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program.py", str(bundle_of("embedded", "fp32"))])
    exec(source, {"__name__": "__main__"})

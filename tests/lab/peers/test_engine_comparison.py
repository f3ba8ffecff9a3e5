"""The comparison of engines with our drafts, with fake engines: what is kept, told and compared."""

import re
from pathlib import Path

import numpy as np
import pytest

from contest import Answer, Contest
from fake_engines import open_absent, open_scripted
from live import adapted, adapted_report, llama_server
from live.engines import Engine as Process
from live.hosted import Hosted, Reader
from live.kept import Kept, key_of, merged
from live.run import Running

MEASURED, FREE = adapted.OURS
SECONDS = {"plain": 4.0, MEASURED: 2.0, FREE: 8.0, "n-gram": 2.5, adapted.SERVER_PLAIN: 5.0}
PROMPTS = {"summary": [np.arange(4, dtype=np.uint32)], "ui": [np.arange(9, dtype=np.uint32)]}


def asked(*, is_equality=False):
    return adapted.Asked(1, 1, 11, True, is_equality, False)


def engine(*processes: Process) -> adapted.Engine:
    return adapted.Engine("fake", "float32", list(processes))


def scripted(*names: str, **options: object) -> Process:
    kinds = {name: SECONDS[name] for name in names}
    return adapted.process(names, open_scripted, {"kinds": kinds, **options})


def contest(steps, other=None):
    """Ten decoded tokens each, in so many steps; one contestant says another token at place 3."""
    tokens = list(range(11))
    slip = [0, 1, 2, 9, *range(4, 11)]
    return Contest(
        {
            name: {"ui": [[Answer(slip if name == other else tokens, 10, num, 1.0, SECONDS[name])]]}
            for name, num in steps.items()
        }
    )


def test_an_engine_is_measured_task_by_task_and_an_absent_part_is_named(tmp_path: Path) -> None:
    fake = engine(scripted("plain"), adapted.process(("n-gram",), open_absent, {}), scripted(FREE))
    told: list[str] = []
    with Running(fake.processes, tmp_path, "fake", 60) as running:
        parts = [
            adapted.measure(fake, running, task, token_ids, asked(), told.append)
            for task, token_ids in adapted.parts(PROMPTS, asked())
        ]
    assert [*merged([part[0] for part in parts]).answers] == ["plain", FREE]
    assert "pip install --group peers" in running.failures["n-gram"]
    assert len(told) == 2
    assert told[0].startswith("fake float32 summary: 1 of 1 prompts")


def test_peers_are_named_once_each_below_the_table(tmp_path, capsys):
    told = [("plain", "a wheel 1.0"), (MEASURED, None), ("n-gram", "x 2.0"), (FREE, "x 2.0")]
    fake = engine(*(scripted(name, **({"about": of} if of else {})) for name, of in told))
    with Running(fake.processes, tmp_path, "fake", 60) as running:
        part = adapted.measure(fake, running, "ui", PROMPTS["ui"], asked(), lambda what: None)
    adapted_report.show(adapted_report.document(fake, [part], asked(), "abc"))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Peer: ")] == [
        "Peer: a wheel 1.0",
        "Peer: x 2.0",
    ]


def test_llama_cpp_is_its_own_loop_with_ours_and_a_server_for_each_setting(tmp_path):
    gguf = tmp_path / "m.Q4_0.gguf"
    places = adapted.Places(tmp_path / "slots", tmp_path / "programs", tmp_path / "logs")
    (found,) = adapted.engines("llama.cpp", gguf, None, asked(), places, {})
    servers = [adapted.SERVER_PLAIN, *list(llama_server.SETTINGS)[1:]]
    assert found.kinds == ["plain", *adapted.OURS, *servers]
    logs = {process.options["log"] for process in found.processes if "log" in process.options}
    assert len(logs) == len(servers)
    absent = places._replace(programs=None)
    (alone,) = adapted.engines("llama.cpp", gguf, None, asked(), absent, {})
    assert alone.kinds == ["plain", *adapted.OURS]
    (equal,) = adapted.engines("llama.cpp", gguf, None, asked(is_equality=True), places, {})
    assert equal.kinds == ["plain", *adapted.WIDEST]


def test_a_part_that_is_kept_is_found_by_its_settings_alone(tmp_path):
    path, first = tmp_path / "kept" / "fake.jsonl", contest({"plain": 10, FREE: 4})
    Kept(path).add(key_of(task="ui", tokens=64), first, {"facts": {}})
    with path.open("a") as file:
        file.write('{"key": "cut o')
    again = Kept(path)
    found, told = again.find(key_of(task="ui", tokens=64))
    assert found.answers == first.answers
    assert told == {"facts": {}}
    assert again.find(key_of(task="ui", tokens=32)) is None
    again.add("other", first, {})
    assert Kept(path).find("other")[0].answers == first.answers


def test_ours_are_compared_with_the_best_of_the_engines_own():
    steps = {"plain": 10, MEASURED: 8, FREE: 4, "n-gram": 5}
    parts = [(contest(steps), {"facts": {}})]
    found = adapted_report.document(engine(scripted(*steps)), parts, asked(), "abc")
    assert found["rows"][FREE]["tokens_per_step"] == {"ui": 2.5, "all": 2.5}
    compared = found["compared"]
    assert compared["tokens a step / its best"] == pytest.approx(2.5 / 2)
    assert compared["speed / plain"] == compared["speed / plain there"] == pytest.approx(2)
    assert compared["speed / its best"] == pytest.approx(2.5 / 2)


def test_a_servers_own_plain_decoding_is_told_apart():
    steps = {"plain": 10, MEASURED: 8, "n-gram": 5, adapted.SERVER_PLAIN: 10}
    parts = [(contest(steps), {"facts": {}})]
    compared = adapted_report.document(engine(scripted(*steps)), parts, asked(), "abc")["compared"]
    assert compared["its best n-grams by speed"] == "n-gram"
    assert compared["speed / its best"] == pytest.approx(2.5 / 2)
    assert compared["the same, each by plain decoding in its own program"] == pytest.approx(1.0)


def test_the_share_of_equal_answers_is_shown_with_places_and_scores(capsys):
    reason = {"position": 3, "one row": [3, 9, 0.01], "ours": [9, 3, 0.02], "largest change": 0.05}
    parts = [
        (contest({"plain": 10, FREE: 4}, other=FREE), {"facts": {}, "reasons": {FREE: reason}}),
        (contest({"plain": 10, FREE: 4}), {"facts": {}, "reasons": {}}),
    ]
    fake = engine(scripted("plain", FREE))
    adapted_report.show(adapted_report.document(fake, parts, asked(is_equality=True), "abc"))
    shown = re.sub(" +", " ", capsys.readouterr().out)
    assert f"| {FREE} | 1 of 2 (0.50) | 3 | 2.50 |" in shown
    assert "token 3: token 3 before 9 by 0.01 in steps of one row, 9 before 3 by 0.02" in shown


@pytest.mark.parametrize(
    ("said", "expected", "place"), [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2)]
)
def test_the_first_difference_is_a_token_or_an_end(said, expected, place):
    assert adapted.first_difference(said, expected) == place


class Wavering:
    """A host whose scores depend on how many rows a run has, by less than they lie apart or not."""

    takes_trees, commit, capacity, vocab_size = False, "canonical", 64, 8

    def clear(self):
        self.num_rows = 1

    def read(self, token_ids):
        self.num_rows = 1

    def run(self, token_ids, parents):
        self.num_rows = len(token_ids)

    def scores(self, row):
        scores = np.zeros(8, np.float32)
        scores[[3, 4]] = 1.0, 1.01 - 0.02 * (self.num_rows == 1)
        return scores

    def choose(self, row):
        return int(self.scores(row).argmax())

    def keep(self, rows):
        pass


def test_scores_tell_why_a_near_tie_falls_otherwise():
    ours = Hosted(FREE, Wavering(), (1, 2, 4), None, [])
    found = ours.explain(np.full(6, 3, np.uint32), 2, 8)
    assert found["one row"][:2] == [3, 4]
    assert found["ours"][:2] == [4, 3]
    assert found["largest change"] == pytest.approx(0.02, abs=1e-5)


def test_a_prompt_that_could_not_be_read_is_read_again():
    class Engine:
        def __init__(self):
            self.text = []

        def clear(self):
            self.text = []

        def cut(self, num_tokens):
            self.text = self.text[:num_tokens]

        def read(self, token_ids):
            if len(token_ids) > 4:
                raise RuntimeError("no room")
            self.text += token_ids.tolist()

        def choose(self, row):
            return sum(self.text)

    engine = Engine()
    reader = Reader(engine)
    short, long = (np.arange(length, dtype=np.uint32) for length in (4, 9))
    reader.read(short)
    with pytest.raises(RuntimeError):
        reader.read(long)
    reader.read(short)
    assert engine.text == short.tolist()

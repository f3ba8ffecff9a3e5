"""Chat templates in the formats of twelve families: rendered as transformers renders them.

What transformers made of them is recorded in `templates/expected.json`, so it is not needed here.
"""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.text import chat_template
from coordgen_rs.text.chat_template import ChatTemplate

FOLDER = Path(__file__).parent / "templates"
RECORDED = json.loads((FOLDER / "expected.json").read_text("utf-8"))
SOURCES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
FEATURES = {
    "statements": "Break Continue Macro AssignBlock NSRef CondExpr",
    "expressions": "Slice Neg Concat Dict List Tuple Mod Compare",
    "filters": "capitalize default dictsort first format indent int items join last length list "
    "map reject rejectattr replace selectattr string title tojson trim",
    "tests": "defined even false iterable mapping none number sameas string true",
    "methods": "endswith get index items lower lstrip replace rfind rstrip split strip",
    "functions": "dict namespace raise_exception strftime_now",
    "of loops": "first index index0 last nextitem previtem",
    "given": "add_generation_prompt bos_token documents enable_thinking eos_token messages tools",
}


@pytest.mark.parametrize("family", SOURCES)
def test_a_family_renders_as_transformers_renders_it(family, monkeypatch):
    now = datetime.fromisoformat(RECORDED["now"])
    monkeypatch.setattr(chat_template, "_strftime_now", now.strftime)
    template = ChatTemplate(SOURCES[family], RECORDED["tokens"])
    for name, dialogue in RECORDED["dialogues"].items():
        expected = RECORDED["rendered"][family][name]
        if "error" in expected:
            with pytest.raises(ChatTemplateError) as refused:
                template.render(**dialogue)
            if expected["error"] in SOURCES[family]:  # its own words, and not Python's
                assert expected["error"] in str(refused.value), name
        else:
            assert template.render(**dialogue) == expected["text"], name


def test_what_was_recorded_is_of_these_templates():
    assert len(SOURCES) == 12
    assert set(SOURCES) == set(RECORDED["rendered"])
    assert all("text" in RECORDED["rendered"][family]["three turns"] for family in SOURCES)


def test_together_they_use_what_real_templates_use():
    jinja = Environment(extensions=["jinja2.ext.loopcontrols"])
    marks = re.compile("{%-? (end)?generation -?%}")
    trees = [jinja.parse(marks.sub("", source)) for source in SOURCES.values()]
    found = [node for tree in trees for node in tree.find_all(nodes.Node)]
    attributes = [node for node in found if isinstance(node, nodes.Getattr)]
    kinds = {type(node).__name__ for node in found}
    names = {node.name for node in found if isinstance(node, nodes.Name)}
    used = {
        "statements": kinds,
        "expressions": kinds,
        "filters": {node.name for node in found if isinstance(node, nodes.Filter)},
        "tests": {node.name for node in found if isinstance(node, nodes.Test)},
        "methods": {node.attr for node in attributes},
        "functions": names,
        "of loops": {
            node.attr
            for node in attributes
            if isinstance(node.node, nodes.Name) and node.node.name == "loop"
        },
        "given": names,
    }
    missing = {what: set(features.split()) - used[what] for what, features in FEATURES.items()}
    assert not any(missing.values()), missing

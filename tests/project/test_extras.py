"""What to type for an extra, by where the package came from."""

import json
import re
from types import SimpleNamespace

import pytest

from checkpoints import ROOT
from coordgen_rs.errors import extras


@pytest.fixture
def installed_from(monkeypatch):
    def install(origin):
        text = origin if origin is None or isinstance(origin, str) else json.dumps(origin)
        found = SimpleNamespace(read_text=lambda name: text)
        monkeypatch.setattr(extras.metadata, "distribution", lambda name: found)

    return install


def test_an_extra_is_installed_from_where_the_package_came(installed_from, tmp_path):
    place = tmp_path / "a checkout"
    place.mkdir()
    gone = {"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}}
    for origin in (None, "damaged", "[]", {}, {"url": "https://host/x.whl"}, gone):
        installed_from(origin)
        assert extras.how_to_install("plots") == "pip install 'coordgen-rs[plots]'"
    installed_from({"url": place.as_uri(), "dir_info": {}})
    assert extras.how_to_install("qnn") == f"pip install 'coordgen-rs[qnn] @ {place.as_uri()}'"
    installed_from({"url": place.as_uri(), "dir_info": {"editable": True}})
    assert extras.how_to_install("qnn") == f"pip install -e '{place}[qnn]'"


def test_a_package_that_is_not_installed_has_its_name(monkeypatch):
    monkeypatch.setattr(extras, "_NAME", "not-installed-anywhere")
    assert extras.how_to_install("export") == "pip install 'not-installed-anywhere[export]'"


def test_only_one_place_in_the_code_says_how():
    told = [
        path.name
        for path in (ROOT / "python").rglob("*.py")
        if re.search(r"pip install", path.read_text("utf-8"))
    ]
    assert told == ["extras.py"]


def test_documents_install_from_the_checkout_that_they_are_in():
    for path in (
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "models").glob("*.md"),
    ):
        assert "coordgen-rs[" not in path.read_text("utf-8"), path

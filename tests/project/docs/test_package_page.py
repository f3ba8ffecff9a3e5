"""What an index of packages shows of this one."""

import re
import tomllib

from checkpoints import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_package_names_the_authors_and_the_version_that_are_to_be_cited():
    (cited,) = re.findall(r"^authors:\n((?:  - name: .*\n)+)", CITATION, re.MULTILINE)
    named = [{"name": name} for name in re.findall(r"name: (.*)", cited)]
    assert PROJECT["authors"] == named
    assert f"\nversion: {PROJECT['version']}\n" in CITATION


def test_the_package_names_the_pythons_that_it_is_for():
    found = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert found[0] == PROJECT["requires-python"].removeprefix(">=")
    assert "Programming Language :: Python :: Implementation :: CPython" in PROJECT["classifiers"]

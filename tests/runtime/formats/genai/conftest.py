"""A folder of GenAI that tests share."""

import shutil

import pytest

from coordgen_rs import open_bundle
from genai_folders import write_folder


@pytest.fixture(scope="session")
def written(bundle_of, tmp_path_factory):
    """A folder of the embedded model's weights; not to be changed."""
    return write_folder(
        open_bundle(bundle_of("embedded", "fp32")), tmp_path_factory.mktemp("genai") / "folder"
    )


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "folder")

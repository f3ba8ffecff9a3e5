"""The bundle of ours whose graphs those of Genie's are."""

import pytest

from coordgen_rs import open_bundle
from qnn_bundles import qnn_bundle


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    sizes = {"context": 40, "prefill_rows": 8, "decode_rows": 8}
    return open_bundle(qnn_bundle(tmp_path_factory.mktemp("own"), "embedded", "8-gen-2", **sizes))

"""What is given for `draft` and for the session is named where it is wrong."""

import pytest

from coordgen_rs import Model, generate, make_drafter, open_session, plain
from coordgen_rs.errors import OptionError


@pytest.fixture(scope="module")
def session(bundle_of):
    return open_session(bundle_of("embedded", "fp32"))


def test_an_unknown_method_is_named_by_its_argument(bundle_of, session):
    with pytest.raises(OptionError, match=r"^draft is 'foo', but must be one of auto, .*plain"):
        Model.open(bundle_of("embedded", "fp32"), draft="foo")
    with pytest.raises(OptionError, match=r"^draft is 'foo', but must be one of auto, "):
        make_drafter(session, draft="foo")


@pytest.mark.parametrize("wrong", [5, None, "session"])
def test_what_is_no_session_is_named(wrong):
    for call in (lambda: next(generate(wrong, [1])), lambda: next(plain(wrong, [1]))):
        with pytest.raises(OptionError, match="session must be a session, but is"):
            call()
    with pytest.raises(OptionError, match="session must be a session, but is"):
        make_drafter(wrong)

"""A fake model, and a client of a server that has it."""

import pytest


@pytest.fixture
def model():
    from fake_model import FakeModel

    return FakeModel()


@pytest.fixture
def client(model):
    from fake_served import serving

    with serving(model) as client:
        yield client

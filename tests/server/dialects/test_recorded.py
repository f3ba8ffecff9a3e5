"""What is recorded of a real model's server, over a fake one: the same statuses and refusals."""

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from recorded_http import RECORDED, Raw, is_refused_alike, read_recording, requests_of

OF_MODEL = {
    **{"completions": 1, "grammars": 20},
    **{"routes": 13, "bodies": 8, "in-words": 0, "chat": 9, "messages": 0, "ollama": 1},
    **{"refused-completions": 9, "refused-chats": 1, "refused-tools": 6, "refused-grammars": 15},
    **{"refused-responses": 0, "refused-messages": 1, "refused-ollama": 2, "responses": 0},
}
"""How many answers of a group are the model's own: of its name, tokens, template and grammars."""


@pytest.mark.parametrize("group", OF_MODEL)
def test_refusals_are_those_that_are_recorded(model, client, group):
    model.context, recorded = 1024, read_recording(RECORDED / f"{group}.txt")
    others = [
        case.name
        for case in requests_of(group)
        if not isinstance(case, Raw)  # HTTP itself is not here
        and not {*case.headers} & {"Content-Length", "Transfer-Encoding"}
        and not is_refused_alike(client, case, recorded[case.name])
    ]
    assert len(others) == OF_MODEL[group], others

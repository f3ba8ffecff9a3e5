"""A local server for one model, in the form of OpenAI's API.

Data flow: `serving.py` binds the address and starts `worker.py`, the one thread that has the model
-> `app.py` has the routes, behind `guard.py` (hosts, origins, and the keys of `keys.py`) ->
`bodies.py` reads a body -> `asked.py`, `asked_response.py` and `asked_tokens.py` check it, by
`fields.py`, `content.py`, `dialogue.py` and `tools.py` -> a `Job` waits in the worker's queue ->
`answering.py` sends what it yields, in the shapes of `forms.py` or `response_form.py`, with
`timings.py`; `tool_calls.py` finds calls in it. `figures.py` counts, `refusal.py` tells what goes
wrong, `page.py` gives the chat page out.
"""

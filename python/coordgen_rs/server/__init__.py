"""A local server for one model, in the form of OpenAI's API.

Data flow: `serving.py` binds the address and starts `worker.py`, the one thread that has the model
-> `app.py` has the routes, behind `network/guard.py` (hosts, origins, and the keys of
`network/keys.py`) -> `asked/bodies.py` reads a body -> `asked/completion.py`, `asked/response.py`
and `asked/tokens.py` check it, by `asked/fields.py`, `asked/content.py`, `asked/dialogue.py` and
`tools/functions.py` -> a `Job` waits in the worker's queue -> `answers/answering.py` sends what it
yields, in the shapes of `answers/forms.py` or `answers/response_form.py`, with
`answers/timings.py`; `tools/calls.py` finds calls in it. `figures.py` counts, `refusal.py` tells
what goes wrong, `page.py` gives the chat page out.
"""

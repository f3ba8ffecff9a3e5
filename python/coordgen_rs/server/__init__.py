"""A local server for one model, in the form of OpenAI's API.

Data flow: `serving.py` binds the address and starts `worker.py`, the one thread that has the model
-> `app.py` has the routes, behind `guard.py` (keys, hosts, origins) -> `asked.py` checks a body, by
`content.py` and `fields.py` -> a `Job` waits in the worker's queue -> `answering.py` sends what it
yields, in the shapes of `forms.py`; `figures.py` counts it; `refusal.py` tells what goes wrong.
`page.py` gives the chat page out.
"""

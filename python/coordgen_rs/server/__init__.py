"""A local server for one model or several, in the forms of OpenAI, Anthropic and Ollama.

Data flow: `serving.py` binds the address and starts the models of `models/`; each has a
`worker.py`, which opens and closes it -> `network/` lets connections, hosts, origins and keys
through -> `app.py` has the routes -> `requests/body.py` reads a body -> the model is awaited, and
one function of `requests/` for each endpoint parses the fields into a `Request` -> it takes its
turn (`turns.py`), and the worker reads what the model's engine makes -> `answers/reader.py` tells
thinking, text and calls (`tools/`) apart -> a writer of the dialect in `answers/` makes events or
one object of them, and `answers/answering.py` sends those. `figures.py` counts, `refusal.py` tells
what goes wrong, `documents.py` adds what is drafted from, `page.py` gives the chat page out.
"""

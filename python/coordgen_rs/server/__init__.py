"""A local server for one model or several, in the forms of OpenAI, Anthropic and Ollama.

Data flow: `serving.py` binds the address and starts the models of `models/`; each has a worker,
which opens and closes it -> `connections.py` and `guard.py` let connections, hosts, origins and
keys through -> `app.py` has the routes, and the chat page -> `dialects/fields.py` reads a body ->
the model is awaited, and one function of `dialects/` for each endpoint parses the fields into a
`Request` -> it takes its turn (`clients.py`), and the worker reads what the model's engine makes ->
`dialects/reader.py` tells thinking, text and calls (`tools/`) apart -> a writer of the dialect
makes events or one object of them, and `models/answering.py` sends those. `metrics.py` counts,
`api_error.py` tells what goes wrong, `documents.py` adds what is drafted from.
"""

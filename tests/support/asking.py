"""Requests to a server by their paths, as clients without a library make them."""

import http.client
import json
from urllib.parse import urlsplit


def ask(url, path, body=None, key="5f0c"):
    """Status and whole text of what a path answers."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    content = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, content, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def complete(url, prompt, key="5f0c", **fields):
    asked = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, **fields}
    status, text = ask(url, "/v1/completions", asked, key)
    assert status == 200, text
    return json.loads(text)

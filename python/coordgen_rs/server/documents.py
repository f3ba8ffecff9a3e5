"""`/v1/documents`: what a client adds to draft from, in the namespace of its key.

In: requests. Out: answers, once what they ask for is done: documents are stored when the answer
comes, and the next request drafts from them. One client at a time changes documents, in a thread of
low priority; answers of others go on meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordgen_rs.errors import HistoryBusyError, HistoryError, HistoryIndexError, OptionError
from coordgen_rs.server.api_error import APIError, UnavailableError
from coordgen_rs.server.clients import Client, FairExecutor, client_of
from coordgen_rs.server.dialects.fields import MOST_BODY_BYTES, Fields, read

if TYPE_CHECKING:
    from coordgen_rs.model import Corpus

PATH = "/v1/documents"

MOST_TOKENS = 64_000_000
"""Tokens of a namespace beyond which no document is added: about 200 MB of text, 600 MB of disk."""

MOST_DOCUMENTS = 100_000
"""Documents of a namespace beyond which none is added: their names are listed in one answer."""

_MOST_NAME = 1024
"""Characters of a document's name."""
_WAIT_S = 10.0
"""How long other processes may change the documents before a client is asked to come again."""
_BUSY = "other documents are being added"


class Documents:
    """What the path answers.

    Args:
        corpus: Gives what opens the documents that a client may ask for.
        executor: Runs what takes long before documents are stored, such as parsing.
        slot: Holds a client's slot for a request without a body; it may refuse. One with a body has
            its slot already (`Guard`).
    """

    def __init__(
        self,
        corpus: Callable[[Request], Awaitable[Callable[[], "Corpus"]]],
        executor: FairExecutor,
        slot: Callable[[Client], AbstractContextManager[None]],
    ) -> None:
        self._corpus, self._executor, self._slot = corpus, executor, slot
        self._changing = asyncio.Lock()

    async def list(self, request: Request) -> Response:
        """All documents of the namespace."""
        with self._slot(client_of(request.scope)):
            return await self._done(request, _listed)

    async def add(self, request: Request) -> Response:
        """Add the documents of the body."""
        run = partial(self._executor.run, client_of(request.scope))
        fields = await read(request, MOST_BODY_BYTES, run)
        texts = await run(partial(_texts_of, fields))
        async with self._turn():
            return await self._done(request, partial(_added, texts))

    async def remove(self, request: Request) -> Response:
        """Remove a document, or all whose names begin with its name and a slash.

        Raises:
            APIError: The name is empty.
        """
        name = request.path_params["name"]
        if not name.strip("/"):
            raise APIError("the name of a document is empty", param="name")
        with self._slot(client_of(request.scope)):
            async with self._turn():
                return await self._done(request, partial(_removed, name))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until no other client changes documents.

        Raises:
            UnavailableError: One does for long.
        """
        try:
            await asyncio.wait_for(self._changing.acquire(), _WAIT_S)
        except TimeoutError as error:
            raise UnavailableError(_BUSY) from error
        try:
            yield
        finally:
            self._changing.release()

    async def _done(self, request: Request, what: Callable[["Corpus"], dict[str, Any]]) -> Response:
        """Do something with the documents of a client, in another thread.

        Raises:
            APIError: There is no history to keep documents in, or others change them.
        """
        corpus_of = await self._corpus(request)

        def done() -> Response:
            try:
                try:
                    opened = corpus_of()
                except OptionError as error:
                    raise APIError(str(error), code="no_history") from error
                with opened as corpus:
                    return JSONResponse(what(corpus))
            except HistoryBusyError as error:
                raise UnavailableError(_BUSY) from error
            except (HistoryError, HistoryIndexError) as error:  # their messages name paths
                logging.getLogger(__name__).error("documents: %s", error)
                raise APIError(
                    "the documents cannot be read or changed: the server's log says why",
                    status=500,
                    kind="server_error",
                ) from error

        return await asyncio.to_thread(done)


def _texts_of(fields: Fields) -> dict[str, str]:
    """The body of a request to add documents.

    Raises:
        APIError: It is malformed.
    """
    fields.end(but="documents")
    texts: dict[str, str] = {}
    for document in fields.objects("documents", "must be a list of documents", least=1):
        name, text = document.text("name"), document.text("text")
        document.end()
        if not name or len(name) > _MOST_NAME:
            raise document.wrong("name", f"must be a name of 1 to {_MOST_NAME} characters")
        if text is None:
            raise document.wrong("text", "must be the text of the document")
        if "\0" in text:
            raise document.wrong("text", "holds a zero byte")
        if name in texts:
            raise document.wrong("name", "is that of another document, too")
        texts[name] = text
    return texts


def _listed(corpus: "Corpus") -> dict[str, Any]:
    told = ("name", "num_bytes", "num_tokens", "added_at")
    documents = [{name: getattr(one, name) for name in told} for one in corpus.documents()]
    return {"object": "list", "data": documents}


def _added(texts: dict[str, str], corpus: "Corpus") -> dict[str, Any]:
    documents, full = corpus.documents(), None
    if len(texts.keys() | {document.name for document in documents}) > MOST_DOCUMENTS:
        full = f"would have more than {MOST_DOCUMENTS:,} documents"
    elif sum(document.num_tokens for document in documents) >= MOST_TOKENS:
        full = f"has {MOST_TOKENS:,} tokens of documents, which is all that it may"
    if full is not None:
        said = f"the namespace {full}: remove some"
        raise APIError(said, status=413, code="documents_full")
    added = corpus.add_texts(texts, wait_s=_WAIT_S)
    return {
        "added": added.num_added,
        "unchanged": added.num_unchanged,
        "num_tokens": added.num_tokens,
        "lost": added.lost,
    }


def _removed(name: str, corpus: "Corpus") -> dict[str, Any]:
    removed = corpus.remove([name], wait_s=_WAIT_S)
    if not removed:
        raise APIError(
            "there is no such document", status=404, kind="not_found_error", param="name"
        )
    return {"removed": removed, "lost": [name for name in corpus.lost if name not in {*removed}]}

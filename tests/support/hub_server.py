"""A Hugging Face Hub on the loopback address: files of a directory, as the hub answers for them."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1", COMMIT)


class Hub:
    """Serves `directory/OWNER/NAME/FILE` as `/OWNER/NAME/resolve/REVISION/FILE`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fetched: list[str] = []
        """The files whose content was sent, in order."""


@contextlib.contextmanager
def hub_of(directory: Path) -> Iterator[Hub]:
    """A hub that runs while the block does."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_content=False)

        def do_GET(self) -> None:
            self.answer(with_content=True)

        def answer(self, *, with_content: bool) -> None:
            repository, _, rest = self.path.strip("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            file = directory / repository / name
            wrong = None
            if not (directory / repository).is_dir():
                wrong = "RepoNotFound"
            elif (directory / repository / "gated").exists():
                wrong = "GatedRepo"
            elif revision not in REVISIONS:
                wrong = "RevisionNotFound"
            elif not file.is_file():
                wrong = "EntryNotFound"
            content = b"" if wrong else file.read_bytes()
            self.send_response({None: 200, "GatedRepo": 403}.get(wrong, 404))
            if wrong:
                self.send_header("X-Error-Code", wrong)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_content and not wrong:
                hub.fetched.append(name)
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

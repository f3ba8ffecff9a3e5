"""The socket that a server listens on, and how many connections it may have.

In: a host and a port. Out: a socket that asyncio accepts from, even where the process has no
descriptor left: then the connection that waits is closed at once, without an error, and the next
one comes to its turn.
"""

import errno
import os
import socket
from contextlib import ExitStack

from coordgen_rs.errors import OptionError

MOST_CONNECTIONS = 512
"""Most connections however many descriptors there are: one request is answered at a time."""

ACCEPTED_AT_ONCE = 4
"""Connections between two looks at the others."""

_OTHER_DESCRIPTORS = 192
"""Descriptors that the model's files and the connections of one look may need."""

_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


class ListeningSocket(socket.socket):
    """A socket of TCP that never fails to accept for want of descriptors.

    Its connections send what is written at once: asyncio sets `TCP_NODELAY` where the protocol is
    known. With Nagle's algorithm, the end of an answer waits for the client's acknowledgement of
    its beginning, about 40 ms.

    Args:
        family: The address family.
    """

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, object]:
        """The next connection.

        Raises:
            BlockingIOError: There is none, or it was closed for want of descriptors.
            OSError: It failed.
        """
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NONE_LEFT or self._spare is None:
                raise
            self._refuse()
            raise BlockingIOError from error

    def _refuse(self) -> None:
        """Close the connection that waits, by the descriptor that is kept for this."""
        if self._spare is not None:
            os.close(self._spare)
        self._spare = None
        super().accept()[0].close()
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Listen no more."""
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def bound(host: str, port: int) -> ListeningSocket:
    """A socket that listens.

    Raises:
        OptionError: The address is in use, or not one of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        listening = _listening(family, address[:2])
    except (OSError, OverflowError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            said = "another program listens there: give --port, or 0 for any that is free"
        raise OptionError(f"cannot listen on {host} port {port}: {said}") from error
    return listening


def _listening(family: int, address: tuple[object, ...]) -> ListeningSocket:
    listening = ListeningSocket(family)
    with ExitStack() as unless_it_listens:
        unless_it_listens.callback(listening.close)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(MOST_CONNECTIONS)
        unless_it_listens.pop_all()
    return listening


def url_of(listening: socket.socket) -> str:
    """The URL at which it listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def most_connections() -> int:
    """How many connections there may be, with the descriptors that the process may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return MOST_CONNECTIONS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(min(MOST_CONNECTIONS, most - _OTHER_DESCRIPTORS), 8)

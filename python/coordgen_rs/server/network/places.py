"""How many requests of a client are in the server at once, from its head to the end of its answer.

In: clients. Out: a place for each request, or a refusal before anything of its body is read. A
client has its own bound, and so have all addresses of a key together, whose number nobody knows;
what one key does never takes a place of another.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordgen_rs.server.network.client import Client
from coordgen_rs.server.refusal import RefusalError

FULL_CLIENTS = 4
"""How many clients of one key can have as many requests as a client may."""


class Places:
    """Who has how many requests.

    Args:
        most: Most requests of a client.
        when_full: Gives the seconds after which a client with so many requests may try again.

    Attributes:
        most: The `most` argument; it may be changed.
    """

    def __init__(self, most: int, when_full: Callable[[int], int]) -> None:
        self.most, self._when_full = most, when_full
        self._of_client, self._of_key = Counter[Client](), Counter[str]()

    @contextmanager
    def one(self, client: Client) -> Iterator[None]:
        """Hold a place until the end of the block.

        Raises:
            RefusalError: There is none.
        """
        with self.more(client, 1):
            yield

    @contextmanager
    def more(self, client: Client, num_more: int) -> Iterator[None]:
        """Hold so many places, or none if there are fewer, until the end of the block.

        Raises:
            RefusalError: There are fewer.
        """
        num, num_of_key = self._of_client[client], self._of_key[client.key]
        most_of_key = FULL_CLIENTS * self.most
        if num + num_more > self.most or num_of_key + num_more > most_of_key:
            raise self._full(num)
        self._of_client[client] += num_more
        self._of_key[client.key] += num_more
        try:
            yield
        finally:
            self._of_client -= Counter({client: num_more})
            self._of_key -= Counter({client.key: num_more})

    def _full(self, num: int) -> RefusalError:
        after = self._when_full(num)
        return RefusalError(
            f"{num} requests of this client are waiting or being answered, which is all that the "
            f"queue holds: try again in {after} s",
            status=429,
            kind="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(after)},
        )

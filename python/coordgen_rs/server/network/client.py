"""Who asks, as turns and bounds count: a key, and where its requests come from.

In: a request's scope. Out: a `Client`. Whoever has one address of IPv6 has all of its network, so
they count as one.
"""

import ipaddress
from typing import NamedTuple

from starlette.types import Scope

KEY_NAME = "coordgen.key_name"
"""Where in a request's scope the name behind its key stands."""


class Client(NamedTuple):
    """Who asks.

    Attributes:
        key: The name behind the key; "" without one.
        network: An address of IPv4, or a network of 64 bits of IPv6.
    """

    key: str
    network: str


def client_of(scope: Scope) -> Client:
    """Who sends a request that the guard has let through."""
    host = scope["client"][0] if scope.get("client") else ""
    return Client(scope.get(KEY_NAME) or "", network_of(host))


def network_of(host: str) -> str:
    """What counts as one address."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host

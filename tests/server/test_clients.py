"""How much of the server one client can take: requests, and time of the threads that prepare."""

import asyncio
import threading
from contextlib import ExitStack

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.clients import (
    FULL_CLIENTS,
    Client,
    ClientSlots,
    FairExecutor,
    client_of,
    network_of,
)

ALICE, BOB = Client("alice", "10.0.0.1"), Client("bob", "10.0.0.1")


def taken(places, client, num):
    with ExitStack() as held:
        for _ in range(num):
            held.enter_context(places.hold(client))
        return held.pop_all()


def test_a_client_that_has_all_its_places_is_told_when_to_come_again():
    places = ClientSlots(3, lambda num: 7 * num)
    held = taken(places, ALICE, 3)
    with pytest.raises(APIError, match="3 requests of this client") as refused, places.hold(ALICE):
        pass
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert refused.value.headers == {"Retry-After": "21"}
    held.close()
    with places.hold(ALICE):
        pass


def test_what_one_key_does_never_takes_a_place_of_another():
    places = ClientSlots(2, lambda _: 1)
    with ExitStack() as held:
        for number in range(FULL_CLIENTS):
            held.enter_context(taken(places, Client("alice", f"10.0.0.{number}"), 2))
        for number in range(100):  # addresses of a key are bounded, too
            client = Client("alice", f"10.0.1.{number}")
            with pytest.raises(APIError), places.hold(client):
                pass
        held.enter_context(taken(places, BOB, 2))


def test_places_that_were_left_take_no_memory():
    places = ClientSlots(2, lambda _: 1)
    for number in range(1000):
        with places.hold(Client("", f"10.0.{number // 250}.{number % 250}")):
            pass
    assert not places._of_client
    assert not places._of_key


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("no address:", "no address:"),
        ("", ""),
    ],
)
def test_an_address_of_ipv6_counts_as_its_network(host, network):
    assert network_of(host) == network
    assert client_of({"type": "http", "client": (host, 1)}) == Client("", network)


def test_a_client_has_one_lane_and_leaves_the_others_to_others():
    begun, may_end = [], threading.Event()

    def slow(name):
        begun.append(name)
        may_end.wait()
        return name

    async def test():
        lanes = FairExecutor()
        alice = [asyncio.create_task(lanes.run(ALICE, lambda: slow("alice"))) for _ in range(9)]
        while not begun:
            await asyncio.sleep(0)
        assert await lanes.run(BOB, lambda: "bob") == "bob"
        assert begun == ["alice"]
        may_end.set()
        assert await asyncio.gather(*alice) == ["alice"] * 9
        assert not lanes._own

    asyncio.run(test())


def test_what_a_function_raises_is_raised_and_the_lane_is_free_again():
    async def test():
        lanes = FairExecutor()
        for _ in range(20):
            with pytest.raises(ZeroDivisionError):
                await lanes.run(ALICE, lambda: 1 // 0)
        assert await lanes.run(ALICE, lambda: 1) == 1

    asyncio.run(test())


def test_several_places_are_held_together_or_not_at_all():
    places, client = ClientSlots(4, lambda _: 1), ALICE
    with places.hold(client), places.hold(client, 2):
        with pytest.raises(APIError), places.hold(client, 2):
            pass
        with places.hold(client, 1), pytest.raises(APIError), places.hold(client):
            pass
    assert not places._of_client
    assert not places._of_key

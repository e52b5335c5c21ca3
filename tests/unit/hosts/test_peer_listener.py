from __future__ import annotations

from holdfast.core.routes import Address, Offer
from holdfast.hosts.peer_listener import bind_addresses, with_known_way

LO, ETH = Address("127.0.0.1", "lo", "loopback"), Address("10.0.0.5", "eth0")


def test_where_an_agent_listens() -> None:
    assert bind_addresses(("", 0), "127.0.0.1:4000", beyond=False) == [("127.0.0.1", 0)]
    assert bind_addresses(("", 0), "gpu7:4000", beyond=True) == [("::", 0), ("0.0.0.0", 0)]
    assert bind_addresses(("10.0.0.9", 5000), "10.0.0.5:4000", beyond=True) == [("10.0.0.9", 5000)]


def test_the_address_that_led_to_the_coordinator_is_worth_a_try() -> None:
    offers = {0: Offer("a", "host 0", 4000, (ETH,)), 1: Offer("b", "host 1", 5000, (ETH,))}
    known = with_known_way(offers, "203.0.113.7:4000")
    assert known[0].addresses == (ETH, Address("203.0.113.7", "")) and known[1] == offers[1]
    assert with_known_way(offers, "[fd00::7]:4000")[0].addresses == (ETH, Address("fd00::7", ""))


def test_but_not_one_that_is_known_or_leads_to_another_door() -> None:
    offers = {0: Offer("a", "host 0", 4000, (ETH,))}
    for peer in ("10.0.0.5:4000", "203.0.113.7:9999", "gpu7:4000"):
        assert with_known_way(offers, peer) == offers
    assert with_known_way({}, "10.0.0.5:4000") == {}

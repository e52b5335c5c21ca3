"""Who holds the state where lanes need not keep step, and along which chain copies of it travel."""

from __future__ import annotations

import pytest

from holdfast.core.standing import Link, home_of, link_of, replicas_of


@pytest.mark.parametrize("home", range(5))
@pytest.mark.parametrize("number", range(7))
def test_the_chain_leads_from_the_home_through_every_replica_once(home: int, number: int) -> None:
    hosts = [0, 1, 1, 2, 3, 4]
    replicas = replicas_of(hosts, home, number)
    assert len(replicas) == min(number, 4) and home not in replicas
    walked, link = [home], link_of(home, home, replicas)
    assert link.before is None
    while link.after is not None:
        assert link_of(link.after, home, replicas).before == walked[-1], "both sides know of each other"
        walked.append(link.after)
        link = link_of(link.after, home, replicas)
    assert tuple(walked) == (home, *replicas)
    assert all(link_of(host, home, replicas) == Link() for host in set(hosts).difference(walked))


def test_a_host_that_joins_later_comes_after_those_that_hold_something() -> None:
    assert replicas_of([2, 0, 1], home=1, number=3)[:2] == replicas_of([2, 0, 1, 7], home=1, number=3)[:2] == (0, 2)


def test_the_home_is_the_host_that_needs_no_source() -> None:
    assert home_of([0, 1, 1, 2], {0: 2, 1: 2}) == 2

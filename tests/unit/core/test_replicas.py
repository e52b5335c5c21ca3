"""Who holds the state in relaxed modes, and along which chain copies of it travel."""

from __future__ import annotations

import pytest

from holdfast.core.roles import ChainLink, chain_link, primary_of


@pytest.mark.parametrize("primary", range(5))
@pytest.mark.parametrize("number", range(5))
def test_the_chain_leads_from_the_primary_through_every_replica_once(primary: int, number: int) -> None:
    hosts = [0, 1, 2, 3, 4]
    replicas = [host for host in (3, 1, 4, 0, 2) if host != primary][:number]
    walked, link = [primary], chain_link(primary, primary, replicas)
    assert link.before is None
    while link.after is not None:
        assert chain_link(link.after, primary, replicas).before == walked[-1], "both sides know of each other"
        walked.append(link.after)
        link = chain_link(link.after, primary, replicas)
    assert walked == [primary, *replicas]
    assert all(chain_link(host, primary, replicas) == ChainLink() for host in set(hosts).difference(walked))


def test_the_primary_is_the_host_that_needs_no_source() -> None:
    assert primary_of([0, 1, 1, 2], {0: 2, 1: 2}) == 2

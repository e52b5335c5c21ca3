"""Who owns what on a worker's host, from what a generation says."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.core.roles import Assignment, ChainLink, Role, chain_link, primary_of
from holdfast.core.slices import even_shares

SIZES = [1] * 6


def owners(worker: int, crew: Assignment) -> tuple[int, ...]:
    standing = Role.of(worker, crew, partial(even_shares, SIZES), [0] * len(SIZES), complete=False)
    return tuple(standing.owner)


@pytest.mark.parametrize("worker", [0, 1, 2, 3])
def test_servers_own_what_they_are_given(worker: int) -> None:
    members = (0, 1, 2, 3)
    assert owners(worker, Assignment(members, members, (0, 1), servers=(2, 3))) == (2, 2, 2, 3, 3, 3)
    given = (2, 3, 3, 3, 3, 3)
    assert owners(worker, Assignment(members, members, (0, 1), servers=(2, 3), owners=given)) == given


def test_a_host_without_servers_shares_among_its_own_workers() -> None:
    crew = Assignment((0, 2, 3, 4, 5), range(5), (0, 4), (0, 0, 0, 1, 1), servers=(2, 3), owners=(2, 3, 3, 3, 3, 3))
    assert owners(0, crew) == (2, 3, 3, 3, 3, 3)
    assert owners(4, crew) == owners(5, crew) == (4, 4, 4, 5, 5, 5)


def test_a_home_without_servers_shares_among_its_own_workers() -> None:
    """In relaxed modes: servers are on host 0, and the state is on host 1 since host 0 was lost once."""
    crew = Assignment(
        (0, 2, 3, 4), range(4), (0, 4), (0, 0, 0, 1), servers=(2, 3), primary=1, owners=(2, 3, 3, 3, 3, 3)
    )  # fmt: skip
    assert {owners(worker, crew) for worker in (0, 2, 4)} == {(4,) * 6}


# ---------------------------------------------------------------- replicas


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

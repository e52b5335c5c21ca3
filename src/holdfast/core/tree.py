"""The reduction tree: what a set of lanes sends, and how the sum is finished.

Lane gradients are summed over one fixed binary tree of lane numbers, whoever computes them:

    num_lanes = 6          [0, 6)                the node of span 2^k at i covers [i * 2^k, (i + 1) * 2^k),
                          /      \\               clipped to num_lanes. It is left + right; where one half
                     [0, 4)      [4, 6)          has no lane with work, it is the other half as it is.
                     /    \\      /    \\
                 [0, 2) [2, 4)  4      5         Here [4, 6) and the clipped [4, 8) are the same node.
                  / \\    / \\
                 0   1  2   3

Rules:

* Only the shape of this tree decides the bits of a sum. Float addition is commutative, so it does not
  matter which of two children lies in the buffer that is added to; it is never associative.
* A `Node` is *complete*: it holds every lane with work of its run. Nothing here names half a node.
* A node is stored in the slot of its first lane. So in every merge the left child takes in the right
  one, and a `Plan` names slots by lane.
* Lanes without work in a step (a batch smaller than the lanes) are absent leaves, not zeros:
  adding zero would turn -0.0 into 0.0.

Any disjoint cover of the lanes with work finishes to the same bits (`plan`, `fold`), so partial sums of
a worker that is gone stay as good as those of its heirs. `reference_sum` is the definition; tests and the
simulation hold everything else against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

__all__ = [
    "Contribution", "Merge", "Node", "Plan", "bits", "contribution", "cover", "fold", "keep", "maximal_nodes", "plan",
    "push", "reference_sum", "uncovered",
]  # fmt: skip

T = TypeVar("T")

#: Postfix: n >= 0 pushes the value in the slot of lane n, ADD replaces the top two by their sum.
Plan = tuple[int, ...]
ADD = -1


class Node(NamedTuple):
    """The complete partial sum of lanes [lane, lane + span)."""

    lane: int
    span: int


class Merge(NamedTuple):
    """Add `take` into the slot of `into`, which then holds `gives`. `into` is the left child."""

    into: Node
    take: Node
    gives: Node


class Contribution(NamedTuple):
    """What a host sends of its lanes: at most one sum that it has to make first, and nodes as they lie there."""

    merged: Node | None  #: the complete sum of `parts`
    parts: tuple[Node, ...]  #: what `merged` is made of; empty where nothing is merged
    plain: tuple[Node, ...]  #: sent as they are


def uncovered(lanes: Sequence[int], nodes: Sequence[Node]) -> list[int]:
    """Return the lanes that no node covers, ascending.

    >>> uncovered(range(6), [Node(0, 2), Node(3, 1)])
    [2, 4, 5]
    """
    covered = cover(nodes)
    missing = [lane for lane in lanes if not covered >> lane & 1]
    missing.sort()
    return missing


def bits(lanes: Iterable[int]) -> int:
    """Lanes as one number, a bit each.

    >>> bin(bits([0, 3]))
    '0b1001'
    """
    return cover((lane, 1) for lane in lanes)


def cover(nodes: Iterable[tuple[int, int]]) -> int:
    """The lanes that nodes cover, a bit each: every worker asks this several times a step.

    >>> bin(cover([Node(0, 2), Node(3, 1)]))
    '0b1011'
    """
    covered = 0
    for lane, span in nodes:
        covered |= ((1 << span) - 1) << lane
    return covered


def maximal_nodes(lo: int, hi: int, num_lanes: int) -> list[Node]:
    """Return the largest nodes that make up the run [lo, hi): what its driver has to send.

    >>> maximal_nodes(1, 6, 6)
    [Node(lane=1, span=1), Node(lane=2, span=2), Node(lane=4, span=2)]
    """
    if not 0 <= lo <= hi <= num_lanes:
        raise ValueError(f"the run [{lo}, {hi}) does not lie in [0, {num_lanes})")
    nodes = []
    while lo < hi:
        span = 1
        while lo % (2 * span) == 0 and span < num_lanes and min(lo + 2 * span, num_lanes) <= hi:
            span *= 2
        end = min(lo + span, num_lanes)
        nodes.append(Node(lo, end - lo))
        lo = end
    return nodes


def push(stack: Sequence[Node], leaf: Node, num_lanes: int) -> tuple[list[Merge], list[Node]]:
    """Say what a worker that holds `stack` merges now that `leaf` is complete.

    Two nodes merge exactly when they are the two children of one node. The stack need not be a run, and
    lanes may come in any order. Returns the merges in the order to do them, and the stack afterwards
    with the node that holds `leaf` last; `stack` itself stays as it was.

    Withdraw the slots that are merged before the first add, and publish only the node that comes out last.
    Lanes then count as uncovered until their sum is whole: nobody reads half a sum, neither while this
    worker adds nor after it died adding. So every lane of `stack` must be driven by this worker (`keep`).

    >>> push([Node(0, 2), Node(2, 1)], Node(3, 1), 4)[1]
    [Node(lane=0, span=4)]
    """
    merges, rest = _push(tuple(stack), leaf, num_lanes)
    return list(merges), list(rest)


@lru_cache(maxsize=4096)
def _push(stack: tuple[Node, ...], leaf: Node, num_lanes: int) -> tuple[tuple[Merge, ...], tuple[Node, ...]]:
    merges: list[Merge] = []
    rest = list(stack)
    for lane, span in rest:
        if lane < leaf.lane + leaf.span and leaf.lane < lane + span:
            raise ValueError(f"{leaf} overlaps {Node(lane, span)}, which is held already")
    grown = leaf
    while (sibling := _sibling(grown, num_lanes)) in rest:
        assert sibling is not None
        rest.remove(sibling)
        left, right = (grown, sibling) if grown.lane < sibling.lane else (sibling, grown)
        grown = Node(left.lane, left.span + right.span)
        merges.append(Merge(left, right, grown))
    rest.append(grown)
    return tuple(merges), tuple(rest)


def keep(stack: Sequence[Node], driver: Sequence[int], worker: int) -> list[Node]:
    """Return what of its stack a worker may go on merging when a new generation drives the lanes so.

    A node with a lane of somebody else stays published, but is not merged any more: while it was withdrawn,
    that other worker would see its lane uncovered and begin to compute it.

    >>> keep([Node(0, 2), Node(2, 1)], (1, 1, 2, 2), 1)
    [Node(lane=0, span=2)]
    """
    return [node for node in stack if all(driver[lane] == worker for lane in range(node.lane, node.lane + node.span))]


def contribution(nodes: Sequence[Node], num_lanes: int) -> Contribution:
    """Say what a host sends for the disjoint nodes that its workers have published.

    Where they make up several larger nodes, only the one with the most parts is merged: the room for one is all
    there is, and the lanes of a host are a run that seldom makes up more than one.

    >>> contribution([Node(0, 2), Node(2, 1), Node(3, 1)], 6).merged
    Node(lane=0, span=4)
    """
    return _contribution(tuple(sorted(nodes)), num_lanes)


@lru_cache(maxsize=4096)
def _contribution(ordered: tuple[Node, ...], num_lanes: int) -> Contribution:
    stack: list[Node] = []
    for node in ordered:
        _, stack = push(stack, node, num_lanes)
    parts = {top: tuple(n for n in ordered if top.lane <= n.lane < top.lane + top.span) for top in stack}
    best = max(parts, key=lambda top: (len(parts[top]), -top.lane), default=None)
    if best is None or len(parts[best]) < 2:
        return Contribution(None, (), ordered)
    return Contribution(best, parts[best], tuple(n for n in ordered if n not in parts[best]))


def plan(nodes: Sequence[Node], lanes: Sequence[int], num_lanes: int) -> Plan:
    """Say how any disjoint cover `nodes` of the lanes with work is finished to the sum of the tree.

    Raises `ValueError` when the nodes leave a lane out, overlap, or are not nodes of the tree: an
    invariant of ours is broken then, and no sum may be published.

    >>> plan([Node(0, 2), Node(2, 1), Node(3, 1)], range(4), 4)
    (0, 2, 3, -1, -1)
    """
    return _plan(tuple(sorted(nodes)), tuple(lanes), num_lanes)


def fold(plan: Plan, load: Callable[[int], T], add: Callable[[T, T], T]) -> T:
    """Carry out a plan: `load(lane)` gives the value in that lane's slot, `add(left, right)` their sum.

    `load` is called once a slot, so `add` may write into its left argument where `load` gave a copy.
    At most log2(num_lanes) + 1 values are alive at a time.
    """
    values: list[T] = []
    for code in plan:
        if code == ADD:
            right = values.pop()
            values.append(add(values.pop(), right))
        else:
            values.append(load(code))
    (result,) = values
    return result


def reference_sum(values: Mapping[int, T], num_lanes: int, add: Callable[[T, T], T]) -> T:
    """Sum the leaves by recursion over the tree: the definition of a step's gradient.

    >>> reference_sum({0: "a", 1: "b", 2: "c", 4: "e"}, 5, lambda x, y: f"({x}+{y})")
    '(((a+b)+c)+e)'
    """
    if not values or min(values) < 0 or max(values) >= num_lanes:
        raise ValueError(f"no sum over lanes {sorted(values)} of {num_lanes}")

    def total(lo: int, span: int) -> list[T]:
        if span == 1:
            return [values[lo]] if lo in values else []
        half = span // 2
        left, right = total(lo, half), total(lo + half, half)
        return [add(left[0], right[0])] if left and right else left or right

    return total(0, _root_span(num_lanes))[0]


def _root_span(num_lanes: int) -> int:
    return 1 << max(num_lanes - 1, 0).bit_length()


def _sibling(node: Node, num_lanes: int) -> Node | None:
    """Return the other child of the node's parent, or None for the root."""
    lane, length = node
    span = 1 << (length - 1).bit_length()
    clipped = lane + length == num_lanes
    if length < 1 or lane < 0 or lane % span or (length != span and not clipped) or lane + length > num_lanes:
        raise ValueError(f"{node} is no node of the tree over {num_lanes} lanes")
    if lane == 0 and clipped:
        return None
    if clipped:
        # While the right sibling would begin beyond the last lane, the parent is this same node.
        while lane % (2 * span) == 0:
            span *= 2
    if lane % (2 * span):
        return Node(lane - span, span)
    return Node(lane + span, min(span, num_lanes - lane - span))


@lru_cache(maxsize=4096)
def _plan(nodes: tuple[Node, ...], lanes: tuple[int, ...], num_lanes: int) -> Plan:
    what = f"nodes {[tuple(node) for node in nodes]} for lanes {list(lanes)} of {num_lanes}"
    work = sorted(set(lanes))
    if not work or len(work) != len(lanes) or work[0] < 0 or work[-1] >= num_lanes:
        raise ValueError(f"lanes with work must be distinct, at least one, and in range: {what}")
    holder: dict[int, Node] = {}
    held: dict[Node, int] = {}
    for node in nodes:
        for lane in range(node.lane, node.lane + node.span):
            if lane in holder:
                raise ValueError(f"lane {lane} is covered twice: {what}")
            holder[lane] = node
        held[node] = sum(node.lane <= lane < node.lane + node.span for lane in work)
        if not held[node]:
            raise ValueError(f"{node} covers no lane with work: {what}")
    if missing := [lane for lane in work if lane not in holder]:
        raise ValueError(f"lanes {missing} are not covered: {what}")

    def code(lo: int, span: int) -> Plan:
        inside = [lane for lane in work if lo <= lane < lo + span]
        if not inside:
            return ()
        node = holder[inside[0]]
        # A node is the sum of its lanes *with work*, so that is what it is matched by.
        if held[node] == len(inside) and holder[inside[-1]] is node:
            return (node.lane,)
        if span == 1:
            raise ValueError(f"{node} is no node of the tree: {what}")
        half = span // 2
        left, right = code(lo, half), code(lo + half, half)
        return (*left, *right, ADD) if left and right else left or right

    return code(0, _root_span(num_lanes))

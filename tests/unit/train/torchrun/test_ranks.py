"""What the environment says about ranks, and what `join` makes of it in its first lines."""

from __future__ import annotations

import threading

import pytest

import holdfast as hf
from holdfast.errors import ConfigError, UsageError
from holdfast.train.torchrun.ranks import ADOPTED, RankEntry, RankNode, World, named, nodes, world

FULL = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "gpu7", "MASTER_PORT": "29500"}
TORCHRUN = FULL | {
    "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MASTER_ADDR": "gpu7", "MASTER_PORT": "29500"},
        {"RANK": "3"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1", "MASTER_ADDR": "gpu7"},
        FULL | {"WORLD_SIZE": "1", "RANK": "0"},
        {"RANK": "", "WORLD_SIZE": " "},
        FULL | {ADOPTED: "4711"},  # started by a rank that has joined
    ],
)
def test_alone(environ: dict[str, str]) -> None:
    assert world(environ, 1234) is None


def test_ranks_of_any_launcher_and_of_torchrun() -> None:
    assert world(FULL) == World(1, 2, "gpu7", 29500)
    assert world(FULL | {ADOPTED: "1234"}, 1234) == World(1, 2, "gpu7", 29500)
    assert world(TORCHRUN) == World(1, 2, "gpu7", 29500, scope="job/3", group="0", restart=3, served=True)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"RANK": "1", "WORLD_SIZE": "2"},
            "RANK = 1 and WORLD_SIZE = 2 are set in the environment, but MASTER_ADDR and MASTER_PORT are not. A "
            "launcher such as torchrun sets all four; set what is missing, or unset RANK and WORLD_SIZE to train in "
            "this process alone.",
        ),
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            "WORLD_SIZE = 2, MASTER_ADDR = a and MASTER_PORT = 1 are set in the environment, but RANK is not. A "
            "launcher such as torchrun sets all four; set what is missing, or unset WORLD_SIZE to train in this "
            "process alone.",
        ),
        (
            {"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            "RANK = 0, MASTER_ADDR = a and MASTER_PORT = 1 are set in the environment, but WORLD_SIZE is not. A "
            "launcher such as torchrun sets all four; set what is missing, or unset RANK to train in this process "
            "alone.",
        ),
    ],
)
def test_half_an_environment_is_told_with_what_is_missing(environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as error:
        world(environ)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"RANK": "2"}, "RANK = 2: must be a whole number from 0 to 1 (set by the environment)."),
        ({"RANK": "-1"}, "RANK = -1: must be a whole number from 0 to 1 (set by the environment)."),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE = two: must be a whole number of at least 1 (set by the environment)."),
        (
            {"MASTER_PORT": "70000"},
            "MASTER_PORT = 70000: must be a whole number from 1 to 65535 (set by the environment).",
        ),
    ],
)  # fmt: skip
def test_values_that_cannot_be(changed: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        world(FULL | changed)
    assert str(error.value) == told


def test_nodes_are_led_by_their_lowest_rank() -> None:
    roll = {rank: RankEntry(rank, "", "m", place) for rank, place in enumerate("baabc")}
    assert nodes(roll) == [RankNode((0, 3)), RankNode((1, 2)), RankNode((4,))]
    assert [node.leader for node in nodes(roll)] == [0, 1, 4]


def test_names() -> None:
    assert named([2]) == "rank 2" and named({4, 1}) == "ranks 1 and 4"
    assert named(range(12)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"


# ---------------------------------------------------------------- hf.join()


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (FULL | {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("ranked")
def test_more_ranks_than_lanes_are_refused_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        hf.join(lanes=2)
    assert str(error.value) == (
        "workers = 3: more than lanes = 2 (set by hf.join), so some would have no work (set by WORLD_SIZE). Start 2 "
        "ranks or fewer, or use hf.join(lanes=3) (this changes the result)."
    )


@pytest.mark.usefixtures("ranked")
def test_join_must_be_in_the_main_thread() -> None:
    told: list[str] = []

    def act() -> None:
        with pytest.raises(UsageError) as error:
            hf.join()
        told.append(str(error.value))

    thread = threading.Thread(target=act, name="trainer")
    thread.start()
    thread.join()
    assert told == [
        "hf.join() was called in the thread trainer. Call it in the main thread: a rank of a launcher must hear "
        "signals."
    ]


def test_one_rank_is_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    run = hf.join(lanes=2)
    assert run.steered is None and run.workers == 1
    run.close()

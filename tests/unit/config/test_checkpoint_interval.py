"""How far apart checkpoints are, as people write it."""

from __future__ import annotations

import pytest

from holdfast.config.checkpoint_interval import Interval, parse
from holdfast.config.resolve import Sources
from holdfast.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("5m", Interval(300.0)), ("1.5h", Interval(5400.0)), ("200steps", Interval(steps=200)),
        ("1 step", Interval(steps=1)), ("off", Interval()),
    ],
)  # fmt: skip
def test_what_people_write(text: str, interval: Interval) -> None:
    assert parse(text) == interval and parse(text).off == (text == "off")


@pytest.mark.parametrize("text", ["", "often", "0steps", "0s", "-5m", "5", "steps"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse(text)
    with pytest.raises(ConfigError, match=r"checkpoint = .* must be .* The default is 5m"):
        Sources().flag("script", "a.py").flag("checkpoint", text).resolve()


def test_when_one_is_due() -> None:
    assert Interval(10.0).due(10.0, 1) and not Interval(10.0).due(9.9, 50)
    assert not Interval(10.0).due(99.0, 0), "nothing has happened since"
    assert Interval(steps=5).due(0.0, 5) and not Interval(steps=5).due(99.0, 4)
    assert not Interval().due(1e9, 10**9)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"keep": 0}, "keep = 0: the newest checkpoint always stays"),
        ({"changed_script": "ok"}, "changed_script = ok: no run is resumed"),
        ({"changed_script": "maybe", "resume": "a"}, "must be refuse or ok"),
        ({"resume": "a", "on": "slurm"}, "a run on slurm cannot be resumed there yet"),
        ({"checkpoint_to": "backup"}, "checkpoint_to = backup: must be a URL"),
        ({"checkpoint_to": "s3://a/b", "checkpoint": "off"}, "there are none with checkpoint = off"),
    ],
)
def test_what_cannot_be_asked_for(settings: dict[str, object], says: str) -> None:
    sources = Sources().flag("script", "a.py")
    for name, value in settings.items():
        sources.flag(name, value)
    with pytest.raises(ConfigError, match=says):
        sources.resolve()

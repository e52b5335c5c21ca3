from __future__ import annotations

import pytest

from holdfast.config.limits import FIXED
from holdfast.config.resolve import Sources
from holdfast.config.run_config import SECTIONS, CrewConfig, LocalSgdConfig, RunConfig
from holdfast.errors import ConfigError, UsageError


def resolve(*, file: str = "", sets: tuple[str, ...] = (), **flags: object) -> RunConfig:
    sources = Sources()
    if file:
        sources.file("run.toml", file)
    for text in sets:
        sources.assign(text)
    for name, value in flags.items():
        sources.flag(name, value)
    return sources.flag("script", "train.py").resolve().config


def test_defaults_leave_the_result_to_the_script() -> None:
    config = resolve()
    assert config == RunConfig("train.py")
    assert config.overrides() == {}
    assert resolve(lanes=8, seed=0).overrides() == {"lanes": 8, "seed": 0}


@pytest.mark.parametrize(("said", "share"), [("off", 0.0), ("0", 0.0), ("0.25", 0.25), ("1", 1.0)])
def test_the_share_that_is_verified_may_be_off(said: str, share: float) -> None:
    assert resolve(verify=said).verify == resolve(sets=(f"verify={said}",)).verify == share
    assert resolve(file='verify = "off"').verify == 0.0 and resolve().verify is None


def test_the_later_source_wins() -> None:
    file = 'workers = 2\nlanes = 6\n[crew]\nsettle = 2.5\njoin_grace = "1m"\n'
    config = resolve(file=file, sets=("lanes=8", "crew.settle=500ms"), workers=3)
    assert (config.workers, config.lanes) == (3, 8)
    assert config.crew == CrewConfig(settle=0.5, join_grace=60.0)


def test_every_value_is_shown_with_its_source() -> None:
    sources = Sources().file("run.toml", "workers = 2").assign("crew.settle=2s").flag("seed", 5).flag("lanes", None)
    shown = sources.flag("script", "train.py", "the command line").resolve().show().splitlines()
    lines = {text.strip(): source for text, _, source in (line.rpartition(" # ") for line in shown)}
    assert lines["workers = 2"] == "run.toml"
    assert lines["crew.settle = 2.0"] == "--set"
    assert lines["seed = 5"] == "--seed"
    assert lines["# lanes = 4"] == "default, unless the script's join() says otherwise"
    assert lines["sync = \"exact\""] == "default"
    plain = len(RunConfig.__struct_fields__) - len(SECTIONS)
    sections = (CrewConfig, LocalSgdConfig, *map(type, FIXED.values()))
    assert len(lines) == plain + sum(len(section.__struct_fields__) for section in sections)
    assert lines["# network.dial = 5.0"] == "fixed"


def test_a_fixed_limit_cannot_be_set() -> None:
    with pytest.raises(ConfigError) as caught:
        Sources().assign("network.dial=3s")
    assert str(caught.value) == "network.dial = 3s: is fixed: it is shown for information (set by --set). Leave it out."


def test_what_is_shown_can_be_a_file_again() -> None:
    sources = Sources().assign("crew.settle=2s").flag("workers", 2).flag("script", "train.py").flag("lanes", 4)
    first = sources.flag("seed", 0).flag("threads", 1).resolve()
    again = Sources().file("run.toml", first.show()).resolve()
    assert again.config == first.config


def test_what_is_shown_of_a_plain_run_decides_nothing_more_as_a_file() -> None:
    first = Sources().flag("script", "train.py").resolve()
    again = Sources().file("run.toml", first.show()).resolve()
    assert again.config == first.config


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"workers": 0}, "workers = 0: must be 1 or more (set by --workers). Use --workers 1."),
        ({"workers": -1}, "workers = -1: must be 1 or more (set by --workers). Use --workers 1."),
        ({"lanes": 0}, "lanes = 0: must be 1 to 234 (set by --lanes). Use --lanes 4."),
        ({"threads": 0}, "threads = 0: must be 1 or more (set by --threads). Use --threads 1."),
        ({"seed": -1}, "seed = -1: must be 0 to 2**63 - 1 (set by --seed). Use --seed 0."),
        (
            {"workers": 8, "lanes": 4},
            "workers = 8: more than lanes = 4, and a lane has one worker at a time (set by --workers). Use --workers 4 "
            "or fewer, or --lanes 8 (the number of lanes changes the result, the number of workers does not).",
        ),
        ({"servers": -1}, "servers = -1: must be 0 or more (set by --servers). Use --servers 0."),
        ({"servers": 17}, "servers = 17: must be 0 to 16 (set by --servers). Use --servers 1."),
        (
            {"sync": "bouned:3"},
            "sync = bouned:3: unknown; there is exact, bounded:S, async, quorum:K, local:H. Did you mean bounded:3? "
            "(set by --sync). Use --sync bounded:3, or leave it out.",
        ),
        (
            {"sync": "bounded:-1"},
            "sync = bounded:-1: a lane cannot be -1 steps ahead: S is 0 to 64 (set by --sync). Use --sync bounded:0, "
            "or leave it out.",
        ),
        (
            {"sync": "quorum:5", "lanes": 4},
            "sync = quorum:5: a quorum of 5 cannot come together: K is 1 to 4, the number of lanes (set by --sync). "
            "Use --sync quorum:4, or leave it out.",
        ),
        ({"sets": ("local.lr=0",)}, "local.lr = 0.0: must be more than 0 (set by --set). The default is 0.8."),
        (
            {"sets": ("local.momentum=1",)},
            "local.momentum = 1.0: must be 0 or more and less than 1 (set by --set). The default is 0.3.",
        ),
        (
            {"sets": ("staleness=drop",)},
            "staleness = drop: unknown; there is auto, plain, scale, compensate (set by --set). Leave it out.",
        ),
        (
            {"sets": ("staleness=compensate",), "sync": "local:4"},
            "staleness = compensate: nothing is stale with sync = local:4 (set by --set). Leave it out, or use --sync "
            "bounded:4.",
        ),
        (
            {"sets": ("staleness=compensate",)},
            "staleness = compensate: nothing is stale with sync = exact (set by --set). Leave it out, or use --sync "
            "bounded:4.",
        ),
        *(
            (
                {"sets": ("staleness=compensate", f"compensation={value}"), "sync": "async"},
                f"compensation = {shown}: must be a number of at least 0 (set by --set). The default is 0.04.",
            )
            for value, shown in (("-0.1", "-0.1"), ("nan", "nan"), ("inf", "inf"))
        ),
        (
            {"sets": ("staleness=compensate", "compensation=much"), "sync": "async"},
            "compensation = much: must be a number (set by --set).",
        ),
        (
            {"sets": ("compensation=0.1",), "sync": "async"},
            "compensation = 0.1: nothing is compensated with staleness = auto (set by --set). Leave it out, or add "
            "--set staleness=compensate.",
        ),
        (
            {"sets": ("optimizer=adam",), "servers": 1},
            "optimizer = adam: must be servers or workers (set by --set). Leave it out.",
        ),
        (
            {"sets": ("optimizer=workers",)},
            "optimizer = workers: without servers the workers run it anyway (set by --set). Leave it out, or add "
            "--servers 1.",
        ),
        (
            {"sets": ("optimizer=workers",), "servers": 1, "sync": "async"},
            "optimizer = workers: with sync = async servers apply pushes as they come, so they have to run the "
            "optimizer (set by --set). Leave it out, or use --sync exact.",
        ),
        (
            {"sets": ("staleness=scale",)},
            "staleness = scale: nothing is stale with sync = exact (set by --set). Leave it out, or use --sync "
            "bounded:4.",
        ),
        ({"hosts": 0}, "hosts = 0: must be 1 or more (set by --hosts). Use --hosts 1."),
        (
            {"hosts": 2},
            "hosts = 2: other machines cannot join a run that does not listen (set by --hosts). Say where: --listen "
            "0.0.0.0, or an address of this machine.",
        ),
        ({"tls": True}, "tls = True: there is no connection to encrypt in a run that does not listen (set by --tls)."),
        (
            {"token_file": "mine"},
            "token_file = mine: nobody is let in by a token in a run that does not listen (set by --token_file). Say "
            "where: --listen 0.0.0.0, or leave --token-file out.",
        ),
        (
            {"sets": ("slurm.time=2h",)},
            "slurm.time = 7200.0: this run is on local, which does not look at it (set by --set). Add --on slurm, or "
            "leave it out.",
        ),
        (
            {"sets": ("ray.wait=2m",), "on": "kubernetes"},
            "ray.wait = 120.0: this run is on kubernetes, which does not look at it (set by --set). Add --on ray, or "
            "leave it out.",
        ),
        (
            {"sets": ("ray.most=2",), "on": "ray", "hosts": 3},
            "ray.most = 2: fewer than hosts = 3, which the first step waits for (set by --set). Use --set ray.most=3, "
            "or --hosts 2.",
        ),
        (
            {"workers": -1, "listen": "::1"},
            "workers = -1: must be 0 (this machine only coordinates) or more (set by --workers). Use --workers 1.",
        ),
        ({"on": "moon"}, "on = moon: unknown; there is local, ray, slurm, kubernetes (set by --on). Use --on local."),
        ({"on": "rey"}, "on = rey: unknown; there is local, ray, slurm, kubernetes (set by --on). Use --on ray."),
        ({"sets": ("crew.settle=0s",)}, "crew.settle = 0.0: must be more than 0 (set by --set). The default is 1.0."),
        ({"sets": ("crew.settle=soon",)}, "crew.settle = soon: must be a time such as 30s (set by --set)."),
        ({"sets": ("verify=often",)}, "verify = often: must be a share such as 0.01, or off (set by --set)."),
        (
            {"verify": "2"},
            "verify = 2.0: must be a share of the steps, 0 to 1 (set by --verify). Use --verify 0.01, or off.",
        ),
        ({"sets": ("lanes=many",)}, "lanes = many: must be a whole number (set by --set)."),
        ({"file": "lanes = 2.5"}, "lanes = 2.5: must be a whole number (set by run.toml)."),
        (
            {"sets": ("crew.setle=1s",)},
            "crew.setle = 1s: there is no such setting (set by --set). Did you mean crew.settle?",
        ),
        ({"sets": ("settle=1s",)}, "settle = 1s: there is no such setting (set by --set). Did you mean crew.settle?"),
        ({"file": "[crew]\nluck = 3"}, "crew.luck = 3: there is no such setting (set by run.toml)."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_source(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(**wrong)  # type: ignore[arg-type]
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Sources().assign("lanes"), "--set lanes: a setting is written name=value."),
        (lambda: Sources().file("x.toml", "lanes = = 2"), "x.toml is not a TOML file:"),
        (lambda: Sources().resolve(), "No script was named."),
    ],
)
def test_what_is_no_setting_at_all(build: object, told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("(", r"\(")):
        build()  # type: ignore[operator]


def test_a_file_may_serve_several_clusters() -> None:
    config = resolve(file="[slurm]\ntime = '2h'\n[ray]\nmost = 2\n", on="ray")
    assert (config.slurm.time, config.ray.most) == (7200.0, 2)


def test_replicas_may_be_asked_for_in_exact_for_the_mode_that_comes_later() -> None:
    assert resolve(sync="exact", replicas=1, listen="127.0.0.1:0").replicas == 1


def test_a_run_that_listens_may_have_no_workers_of_its_own() -> None:
    config = resolve(workers=0, listen="127.0.0.1:0", hosts=2, tls=True)
    assert (config.workers, config.listen, config.hosts, config.tls) == (0, "127.0.0.1:0", 2, True)


@pytest.mark.parametrize("on", ["local", "ray"])
def test_the_outer_step_of_local_rounds_is_shown_whatever_the_engine(on: str) -> None:
    """The section is called like the engine `local`, and has nothing to do with it."""
    shown = Sources().flag("script", "train.py").flag("on", on).resolve().show()
    assert "local.lr = 0.8" in shown and "local.momentum = 0.3" in shown


def test_what_a_cluster_is_told_is_shown_where_the_run_goes_there() -> None:
    sources = Sources().flag("script", "train.py").assign("slurm.time=2h").flag("on", "slurm")
    resolved = sources.resolve()
    assert resolved.config.slurm.time == 7200.0
    shown = resolved.show()
    assert "slurm.time = 7200.0" in shown and "slurm.partition" in shown
    assert "kubernetes." not in shown and "ray." not in shown
    assert Sources().file("run.toml", shown).resolve().config == resolved.config

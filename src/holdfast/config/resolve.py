"""One road for settings: defaults, then a file, then `--set` and flags; and who set each value.

    Sources()                            every default
      .file("run.toml", text)            a TOML file: fields at the top, [crew] as a table
      .assign("crew.settle=30s")         --set, as text
      .flag("workers", 2)                a flag of its own, `None` when it was not given
      .resolve()                         -> Resolved(config, sources), checked

The later one wins. An unknown name is an error that suggests the nearest one.
"""

from __future__ import annotations

import tomllib
from typing import Any, NamedTuple

import msgspec

from holdfast.config.limits import FIXED, Seconds
from holdfast.config.run_config import ENGINES, SAID_BY_JOIN, SECTIONS, RunConfig, Share, check
from holdfast.errors import ConfigError, UsageError

__all__ = ["Resolved", "Sources"]

_TYPES: dict[str, Any] = {
    **{field.name: field.type for field in msgspec.structs.fields(RunConfig) if field.name not in SECTIONS},
    **{
        f"{section}.{field.name}": field.type
        for section, struct in SECTIONS.items() for field in msgspec.structs.fields(struct)
    },
}  # fmt: skip
#: Sections that are said to a cluster.
_CLUSTERS = frozenset(ENGINES) - {"local"}
_MUST_BE = {
    int: "must be a whole number", int | None: "must be a whole number", float: "must be a number",
    Seconds: "must be a time such as 30s", Share | None: "must be a share such as 0.01, or off",
}  # fmt: skip


class Resolved(NamedTuple):
    """A checked configuration, and who set each value that is not a default."""

    config: RunConfig
    sources: dict[str, str]

    def show(self) -> str:
        """Every value with its source, one per line, ready for a `--config` file.

        What is decided only when the run starts is a comment there: a file that said it would decide it now. What is
        said to a cluster is shown where the run goes to one. Limits that cannot be set are comments, too.
        """
        lines = []
        for name in _TYPES:
            section, _, field = name.rpartition(".")
            # The section `local` is about local:H, whichever engine is called local.
            if section in _CLUSTERS and section != self.config.on and name not in self.sources:
                continue
            value = getattr(getattr(self.config, section) if section else self.config, field)
            source, mark = self.sources.get(name, "default"), ""
            if name == "workers" and value is None:
                value, source, mark = 0, "default: one per CPU, at most one per lane", "# "
            elif value is None:
                value, source, mark = SAID_BY_JOIN[name], "default, unless the script's join() says otherwise", "# "
            text = msgspec.json.encode(value).decode()
            lines.append(f"{mark + name + ' = ' + text:<32} # {source}")
        for section, limits in FIXED.items():
            for name, value in msgspec.structs.asdict(limits).items():
                lines.append(f"{f'# {section}.{name} = {value}':<32} # fixed")
        return "\n".join(lines)


class Sources:
    """Collects settings; the later one wins."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}

    def file(self, name: str, text: str) -> Sources:
        """Take a TOML file's settings."""
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{name} is not a TOML file: {error}. Fix that line, or leave --config out.") from None
        for key, value in tree.items():
            if isinstance(value, dict):
                for field, inner in value.items():
                    self._put(f"{key}.{field}", inner, name)
            else:
                self._put(key, value, name)
        return self

    def assign(self, text: str) -> Sources:
        """Take one `name=value` of the command line."""
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: a setting is written name=value. For example: --set crew.settle=30s.")
        self._put(name.strip(), value.strip(), "--set")
        return self

    def flag(self, name: str, value: object, source: str = "") -> Sources:
        """Take the value of a flag, unless it was not given."""
        if value is not None:
            self._put(name, value, source or f"--{name}")
        return self

    def resolve(self) -> Resolved:
        """The configuration, or the first thing that is wrong with it."""
        if not self._values.get("script"):
            raise UsageError("No script was named. For example: holdfast run --workers 2 train.py")
        top: dict[str, Any] = {name: value for name, value in self._values.items() if "." not in name}
        for section, struct in SECTIONS.items():
            inner = {name: value for name, value in self._values.items() if name.startswith(f"{section}.")}
            top[section] = struct(**{name.partition(".")[2]: value for name, value in inner.items()})
        config = RunConfig(**top)
        check(config, self._sources)
        return Resolved(config, dict(self._sources))

    def _put(self, name: str, value: Any, source: str) -> None:
        section, _, field = name.partition(".")
        if field and hasattr(FIXED.get(section), field):
            raise ConfigError(name, value, "is fixed: it is shown for information", source=source, fix="Leave it out.")
        if name not in _TYPES:
            raise ConfigError(name, value, "there is no such setting", source=source, fix=_nearest(name))
        self._values[name] = _convert(name, value, source)
        self._sources[name] = source


def _convert(name: str, value: Any, source: str) -> Any:
    kind = _TYPES[name]
    if isinstance(value, str) and kind is Seconds:
        value = _seconds(value)
    if kind == Share | None and value == "off":
        value = 0.0
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        raise ConfigError(name, value, _MUST_BE.get(kind, "has the wrong type"), source=source) from None


def _seconds(text: str) -> Any:
    """A time as people write it, in seconds; what is no time comes back as it was."""
    from holdfast.quantities import Duration

    for read in (float, lambda text: Duration(text).seconds):
        try:
            return read(text)
        except ValueError:
            continue  # not written in this way; the type check says so where it is in none
    return text


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, _TYPES, n=1, cutoff=0.5) or [
        known for known in _TYPES if known.rpartition(".")[2] == name.rpartition(".")[2]
    ]
    return f"Did you mean {near[0]}?" if near else "holdfast run --show-config SCRIPT lists them all."

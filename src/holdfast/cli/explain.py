"""`holdfast explain DIR`: the story of a run, from its first decision to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.cli.options import Parser
from holdfast.cli.rundir import open_run
from holdfast.control.story import Story
from holdfast.errors import RunError, UsageError
from holdfast.observe import audit
from holdfast.observe.directory import read_json, running
from holdfast.observe.progress import short_time

__all__ = ["main", "tell"]


def main(argv: Sequence[str]) -> int:
    """Tell the story."""
    it = Parser("explain", "Tell a run's story: what was decided, and why.")
    it.add_argument("dir", metavar="DIR", help="the run's directory")
    it.add_argument("--json", action="store_true", help="one JSON object per line: now, kind, sentence")
    it.add_argument("--samples", action="store_true", help="judge the audit trail of a run made with --set audit=true")
    options = it.parse(argv)
    path = open_run(options.dir)
    if options.samples:
        return _samples(path)
    try:
        story = Story.decode((path / "story.jsonl").read_bytes())
    except FileNotFoundError:
        story = Story()
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"{path}/story.jsonl cannot be read: {error}.") from None
    if options.json:
        print(story.encode().decode(), end="")
        return 0
    print(tell(story, read_json(path / "run.json"), read_json(path / "summary.json"), going=running(path)))
    return 0


def _samples(path: Path) -> int:
    """Say of each pass whether every sample was used exactly once. Exit status 1 if not."""
    lines = audit.read(path / "audit")
    if not lines:
        raise UsageError(f"{path} has no audit trail. Run with --set audit=true.")
    steps = read_json(path / "summary.json").get("steps")
    audits = audit.audit(lines, steps if isinstance(steps, int) else 1 << 62)
    print("\n".join(one.told() for one in audits))
    return 0 if all(one.exact for one in audits) else 1


def tell(story: Story, record: dict[str, object], summary: dict[str, object], *, going: bool) -> str:
    """The story for people. Pure."""
    config = record.get("config")
    script = config.get("script") if isinstance(config, dict) else None
    began = record.get("started")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began)) if isinstance(began, (int, float)) else "unknown"
    lines = [f"{script or 'A run'}, begun {when} on {record.get('host', 'this machine')}"]
    lines += [f"{_clock(entry.now):>9}  {entry.sentence}" for entry in story]
    if going:
        lines.append("the run is going")
    elif summary:
        lines.append(f"ended: {summary.get('outcome')}" + _because(summary))
    return "\n".join(lines)


def _because(summary: dict[str, object]) -> str:
    if error := summary.get("error"):
        return f" ({str(error).splitlines()[0]})"
    counts = {name: summary.get(name) for name in ("steps", "generations")}
    facts = [f"{count} {name[:-1] if count == 1 else name}" for name, count in counts.items() if count is not None]
    return f" ({', '.join(facts)}, weights_sha256 {summary.get('weights_sha256') or 'unknown'})" if facts else ""


def _clock(seconds: float) -> str:
    return f"{short_time(seconds)}.{int(seconds * 10) % 10}"

"""The Python and TOML blocks of the documentation run, and its tables and links are true.

A page's Python blocks are one program, run in order in one namespace. No page has a block that no test runs.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import errors
from holdfast.cli.main import COMMANDS
from holdfast.config.limits import Seconds
from holdfast.config.resolve import Sources
from holdfast.config.run_config import CrewConfig
from tests.markdown import PAGES, ROOT, Block, blocks, links

#: Language -> who runs it. "text" is for pictures made of characters.
RUN = {
    "python": "here, or by tests/process/test_docs.py if it is a file", "console": "tests/process/test_docs.py",
    "diff": "tests/process/test_docs.py", "toml": "here", "sh": "here, without doing it", "text": "nobody",
}  # fmt: skip


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and not block.file]


@pytest.fixture
def _own_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A run of its own for a page, and torch as it was afterwards. What other tests have seeded it with is no seed."""
    import torch

    from holdfast.train import seeding
    from holdfast.train.run import current

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    monkeypatch.setattr(seeding, "_newest", None)
    torch.seed()
    monkeypatch.chdir(tmp_path)
    yield
    if (run := current()) is not None:
        run.close()
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.usefixtures("_own_run")
@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)], ids=name)
def test_python_blocks_run(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in programs(page):
        padding = "\n" * (block.line - 1)  # so that a traceback shows the line of the page
        exec(compile(padding + block.text, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "toml" for b in blocks(p))], ids=name)
def test_settings_files_are_taken(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            Sources().file(page.name, block.text).flag("script", "train.py").resolve()


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "sh" for b in blocks(p))], ids=name)
def test_set_up_commands_exist(page: Path) -> None:
    for block in blocks(page):
        for line in block.text.splitlines() if block.language == "sh" else ():
            command = line.partition("#")[0].split()
            if command[0] == "make":
                subprocess.run(["make", "-n", *command[1:]], cwd=ROOT, check=True, capture_output=True)
            else:
                assert command == ["pip", "install", "-e", "."]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_somebody_who_runs_it(page: Path) -> None:
    unknown = [(block.line, block.language) for block in blocks(page) if block.language not in RUN]
    assert not unknown, f"{page.name}: blocks in a language that no test runs; known are {', '.join(RUN)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_every_crew_setting_is_in_its_table_with_its_default() -> None:
    rows = re.findall(r"^\| `crew\.(\w+)` \|.*\| ([\d.]+)( s)? \|$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE)
    told = {field: (float(default), bool(unit)) for field, default, unit in rows}
    assert told == {
        field.name: (float(field.default), field.type == Seconds)
        for field in msgspec.structs.fields(CrewConfig)
    }


def test_every_exit_code_is_in_its_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (`.*`) \|", (ROOT / "docs/failures.md").read_text(), re.MULTILINE)
    told = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    classes = {name: item for name, item in vars(errors).items() if isinstance(item, type) and name in told}
    assert {name: item.exit_code for name, item in classes.items()} == told
    families = {"HoldfastError", "RunError", "Stopped"}
    every = {name for name, item in vars(errors).items() if isinstance(item, type)}
    assert every - families == set(told)


def test_every_command_is_shown() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert [command for command in COMMANDS if f"  {command:<10} {COMMANDS[command]}" not in page] == []


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "images").glob("*.png"))
    assert pictures
    assert {picture.name: size for picture in pictures if (size := picture.stat().st_size) >= 150_000} == {}

"""Bytes from a socket or a store become data, never code: what serving may not import or call, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
FILES = sorted([*(ROOT / "serve").rglob("*.py"), *(ROOT / "model").rglob("*.py")])
#: They run code out of what they read.
RUNNING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "jsonpickle"}
#: They fetch from, or tell, somebody else: no URL is fetched for a client, and there is no telemetry.
CALLING = {"urllib", "urllib.request", "requests", "http.client", "httpx", "aiohttp", "ftplib", "smtplib", "xmlrpc"}
#: Memory with a name can be opened by whoever knows it.
NAMED = {"multiprocessing.shared_memory", "multiprocessing"}
#: Where a user's own file is run, which is what was asked for.
OWN_CODE = ROOT / "model" / "user_code.py"


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            found |= {item.value for item in node.args if isinstance(item, ast.Constant)}
    return {".".join(name.split(".")[:depth]) for name in found for depth in (1, 2)}


def wrong(source: str, own_code: bool = False) -> list[str]:
    """What there is in a source that may not be."""
    tree = ast.parse(source)
    found = sorted(imported(tree) & (RUNNING | CALLING | NAMED))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("eval", "exec", "compile", "os.system", "os.popen") and not own_code:
            found.append(called)
        if called in ("torch.load", "torch.jit.load", "torch.export.load", "torch.hub.load", "trust_remote_code"):
            found.append(called)
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg in ("allow_pickle", "shell") and value is not False:
                found.append(f"{called}({keyword.arg})")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_code_comes_from_bytes(file: Path) -> None:
    assert not wrong(file.read_text(), own_code=file == OWN_CODE)


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "def f():\n import cloudpickle", "import torch\ntorch.load(f)",
     "eval(x)", "exec(x)", "importlib.import_module('marshal')", "numpy.load(f, allow_pickle=True)",
     "from multiprocessing import shared_memory", "from urllib import request", "subprocess.run(x, shell=True)"],
)  # fmt: skip
def test_what_is_looked_for_is_found(source: str) -> None:
    assert wrong(source)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 40 and OWN_CODE in FILES

"""Watches the folder of a model for new versions, and offers those that are whole to its service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.config.limits import SERVING
from holdfast.errors import ModelError
from holdfast.model.library import FoundVersion, resolve, version_at, versions
from holdfast.serve.models.model_service import ModelService, VersionOnDisk

__all__ = ["first_version", "watch"]



def first_version(path: Path) -> tuple[VersionOnDisk, list[str]]:
    """The version to begin with, and a sentence for each newer one that is passed over. Raises ModelError."""
    version, passed_over = resolve(path)
    return VersionOnDisk(version.path, version.manifest), passed_over


async def watch(root: Path, service: ModelService, note: Callable[[str], None]) -> None:
    """Offer what appears in a folder; for ever. A version that cannot be used is said once."""
    said: set[Path] = set()
    newest = service.current or max(service.versions, default=0)
    while True:
        await asyncio.sleep(SERVING.new_versions)
        for found in reversed(await asyncio.to_thread(_newer, root, newest)):
            if found.path in said:
                continue
            said.add(found.path)
            try:
                version = await asyncio.to_thread(_proven, found)
            except ModelError as error:
                note(f"{service.name}: version {found.number} is not used: {error}")
                continue
            newest = max(newest, found.number)
            if why := service.offer(version):
                note(f"{service.name}: {why}")


def _newer(root: Path, than: int) -> list[FoundVersion]:
    try:
        return [found for found in versions(root) if found.number > than]
    except ModelError:
        return []  # the folder is away for a moment, or for good: what is served is served on


def _proven(found: FoundVersion) -> VersionOnDisk:
    version = version_at(found.path)
    version.verify()
    return VersionOnDisk(version.path, version.manifest)

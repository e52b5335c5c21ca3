"""Buffer records: what a unit gave besides its gradient, as it lies in the arena and as it travels. No torch.

    which parameters got a gradient, a byte each | which buffers it changed, a byte each | these buffers
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.dataplane.memory.manifest import Manifest

__all__ = ["BufferRecords"]


class BufferRecords:
    """The records of all lanes, twice: a faster host may be a step ahead, and steps take turns.

    `present` is the section that says which parameters got a gradient; its records may be counted in another way.
    """

    def __init__(self, manifest: Manifest, section: Callable[[str], memoryview], present: str) -> None:
        self._manifest, self._flags = manifest, len(manifest.buffers)
        self._present, self._changed = section(present), section("buffers-changed")
        self._buffers = section("buffers")[2 * manifest.buffers_size :]  # behind the two copies that are published

    def at(self, step: int, lane: int) -> int:
        """Which record a lane's unit of a step has."""
        return step % 2 * self._manifest.lanes + lane

    def pack(self, record: int, present: int) -> list[bytes]:
        """The parts of a record, to be sent."""
        entries, base = self._manifest.entries, record * self._manifest.buffers_size
        changed = bytes(self._changed[record * self._flags : (record + 1) * self._flags])
        return [
            bytes(self._present[present * entries : (present + 1) * entries]), changed,
            *(
                bytes(self._buffers[base + begin : base + begin + size])
                for flag, (begin, size) in zip(changed, self._manifest.buffers, strict=True) if flag
            ),
        ]  # fmt: skip

    def size(self, data: memoryview) -> int:
        """How many bytes the record has, or should have, that `data` begins with."""
        head = self._manifest.entries + self._flags
        changed = data[self._manifest.entries : head]
        return head + sum(size for flag, (_, size) in zip(changed, self._manifest.buffers, strict=False) if flag)

    def unpack(self, record: int, present: int, data: memoryview) -> None:
        """Put the record in place that `data` begins with, and that is whole."""
        entries, base = self._manifest.entries, record * self._manifest.buffers_size
        offset = entries + self._flags
        self._present[present * entries : (present + 1) * entries] = data[:entries]
        self._changed[record * self._flags : (record + 1) * self._flags] = data[entries:offset]
        for flag, (begin, size) in zip(data[entries:offset], self._manifest.buffers, strict=True):
            if flag:
                self._buffers[base + begin : base + begin + size] = data[offset : offset + size]
                offset += size

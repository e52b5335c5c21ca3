"""The front door's end of a replica on this machine: its link, and the memory in which its batches lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from holdfast.model.signature import DATATYPES, TensorSpec
from holdfast.serve.protocol.requests import InferInput, InferOutput
from holdfast.serve.replica import messages as say
from holdfast.serve.replica.batch_memory import BatchReader, BatchWriter, aligned
from holdfast.transport.link import Link

__all__ = ["ReplicaLink"]


class ReplicaLink:
    """Sends batches, and takes apart what comes back. `close` ends the link, and with it the replica."""

    def __init__(self, link: Link, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, batched: bool):
        self.link = link
        self._inputs, self._outputs, self._batched = inputs, outputs, batched
        self._written, self._read = BatchWriter(), BatchReader()
        self._batches = 0
        #: Of the batch at hand, by input: the longest shape of an item, where items of several lengths are padded.
        self._padded: dict[int, tuple[int, ...]] = {}

    def load(self, wanted: say.Load) -> None:
        """Have it load a version."""
        self.link.send(say.encode(wanted))

    def compute(self, requests: Sequence[Sequence[InferInput]]) -> bool:
        """Put the tensors of these requests together, and have them computed. False: nobody is there any more."""
        placed: list[say.Placed] = []
        at = 0
        for index, spec in enumerate(self._inputs):
            tensors = [request[index] for request in requests]
            shape = self._together(index, spec, [tensor.shape for tensor in tensors])
            if spec.datatype == "BYTES":
                size = sum(len(tensor.data) for tensor in tensors)
            else:
                size = math.prod(shape) * numpy.dtype(DATATYPES[spec.datatype]).itemsize
            placed.append(say.Placed(at, size, shape))
            at = aligned(at + size)
        fds = self._written.room(at)
        for index, (spec, one) in enumerate(zip(self._inputs, placed, strict=True)):
            if index in self._padded:
                self._pad(spec, one, [request[index] for request in requests])
                continue
            begin = one.begin
            for request in requests:
                data = request[index].data
                self._written.memory[begin : begin + len(data)] = data
                begin += len(data)
        self._batches += 1
        return self.link.send(say.encode(say.Compute(self._batches, tuple(placed))), fds)

    def _together(self, index: int, spec: TensorSpec, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of a whole batch."""
        self._padded.pop(index, None)
        first = shapes[0]
        if not self._batched:
            return first
        items = sum(shape[0] for shape in shapes)
        if spec.padding is not None and any(shape[1:] != first[1:] for shape in shapes):
            longest = tuple(max(sizes) for sizes in zip(*(shape[1:] for shape in shapes), strict=True))
            self._padded[index] = longest
            return (items, *longest)
        return (items, *first[1:])

    def _pad(self, spec: TensorSpec, placed: say.Placed, tensors: Sequence[InferInput]) -> None:
        """Write items of different lengths, filled up to the longest."""
        dtype = numpy.dtype(DATATYPES[spec.datatype])
        count = math.prod(placed.shape)
        whole = numpy.frombuffer(self._written.memory, dtype, count, placed.begin).reshape(placed.shape)
        whole[...] = spec.padding
        row = 0
        for tensor in tensors:
            own = numpy.frombuffer(tensor.data, dtype).reshape(tensor.shape)
            whole[(slice(row, row + len(own)), *(slice(0, size) for size in tensor.shape[1:]))] = own
            row += len(own)

    def hear(self) -> say.FromReplica | None:
        """What it says; None: it is gone. Raises BlockingIOError where it says nothing."""
        frame = self.link.recv()
        if frame is None:
            return None
        self._read.take(frame.fds)
        return say.decode_from_replica(frame.data)

    def answers(
        self, computed: say.Computed, requests: Sequence[Sequence[InferInput]], items: Sequence[int]
    ) -> list[list[InferOutput]]:
        """For each request the outputs of its items, copied out of the memory."""
        answers: list[list[InferOutput]] = [[] for _ in requests]
        for spec, placed in zip(self._outputs, computed.outputs, strict=True):
            data = self._read.memory[placed.begin : placed.begin + placed.size]
            if len(requests) == 1 and not self._padded:
                answers[0].append(InferOutput(spec.name, spec.datatype, placed.shape, bytes(data)))
                continue
            row = 0
            each = placed.size // placed.shape[0] if placed.shape[0] else 0
            for number, count in enumerate(items):
                if placed.ends:
                    begin, end = placed.ends[row - 1] if row else 0, placed.ends[row + count - 1]
                else:
                    begin, end = row * each, (row + count) * each
                shape = (count, *placed.shape[1:])
                tensor = InferOutput(spec.name, spec.datatype, shape, bytes(data[begin:end]))
                answers[number].append(self._cut(spec, tensor, requests[number]) if self._padded else tensor)
                row += count
        return answers

    def _cut(self, spec: TensorSpec, tensor: InferOutput, request: Sequence[InferInput]) -> InferOutput:
        """Take off what only padding has given: a variable dimension that is as long as that of a padded input."""
        index, longest = next(iter(self._padded.items()))
        own = request[index].shape[1:]
        wanted = [
            own[at] if at < len(own) and spec.shape[at + 1] == -1 and size == longest[at] else size
            for at, size in enumerate(tensor.shape[1:])
        ]
        if tuple(wanted) == tensor.shape[1:] or spec.datatype == "BYTES":
            return tensor
        array = numpy.frombuffer(tensor.data, DATATYPES[spec.datatype]).reshape(tensor.shape)
        cut = array[(slice(None), *(slice(0, size) for size in wanted))]
        return InferOutput(spec.name, spec.datatype, cut.shape, cut.tobytes())

    def close(self) -> None:
        """End the link: the replica sees it, and ends."""
        self.link.close()
        self._written.close()
        self._read.close()

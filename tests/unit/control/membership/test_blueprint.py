"""What two workers have built, compared part by part."""

from __future__ import annotations

import random

import msgspec

from holdfast.control.membership import blueprint
from holdfast.control.membership.blueprint import Part, compared, fingerprint, pack, unpack
from holdfast.control.protocol.messages import Ready, decode_from_worker, encode
from holdfast.transport.link import MAX_MESSAGE

NET: list[Part] = [
    ("optimizer", "SGD with 1 group"), ("optimizer options of group 0", "lr"),
    ("parameter fc1.weight", "[128, 784] float32"), ("parameter fc1.bias", "[128] float32"),
]  # fmt: skip
BOTH = "worker 0 on host 0", "worker 2 on host 1"


def test_the_same_differ_in_nothing() -> None:
    assert compared(NET, NET, BOTH) == ""


def test_another_shape_is_told_with_both_and_whose_they_are() -> None:
    assert compared(NET, [*NET[:2], ("parameter fc1.weight", "[256, 784] float32"), NET[3]], BOTH) == (
        "parameter fc1.weight (worker 0 on host 0: [128, 784] float32; worker 2 on host 1: [256, 784] float32)"
    )


def test_a_parameter_that_one_lacks() -> None:
    assert compared(NET, NET[:3], BOTH) == (
        "parameter fc1.bias (worker 0 on host 0: [128] float32; worker 2 on host 1: none)"
    )
    assert compared(NET[:3], NET, BOTH) == (
        "parameter fc1.bias (worker 0 on host 0: none; worker 2 on host 1: [128] float32)"
    )


def test_another_order() -> None:
    assert compared(NET, [*NET[:2], NET[3], NET[2]], BOTH) == (
        "the order, which first differs at (worker 0 on host 0: parameter fc1.weight; "
        "worker 2 on host 1: parameter fc1.bias)"
    )


def test_what_follows_from_a_difference_is_not_told() -> None:
    other = [("optimizer", "Adam with 1 group"), ("optimizer options of group 0", "betas, lr"), *NET[2:]]
    assert compared(NET, other, BOTH) == (
        "optimizer (worker 0 on host 0: SGD with 1 group; worker 2 on host 1: Adam with 1 group)"
    )
    same_class = [NET[0], ("optimizer options of group 0", "lr, scale"), *NET[2:]]
    assert compared(NET, same_class, BOTH) == (
        "optimizer options of group 0 (worker 0 on host 0: lr; worker 2 on host 1: lr, scale)"
    )


def test_the_first_few_are_named_and_the_rest_counted() -> None:
    many = [(f"parameter {number}", "[1] float32") for number in range(1000)]
    told = compared(many, [(what, "[2] float32") for what, _ in many], ("worker 0", "worker 1"))
    assert told.startswith("parameter 0 (worker 0: [1] float32; worker 1: [2] float32), parameter 1 (")
    assert told.endswith("parameter 3 (worker 0: [1] float32; worker 1: [2] float32), and 996 more")


def test_what_may_be_among_the_parts_that_were_cut_off_is_not_called_missing() -> None:
    assert compared(NET, NET[:3], BOTH, cut=True) == ""


def test_thousands_of_parameters_fit_into_a_message() -> None:
    parts = [
        (f"parameter transformer.h.{layer}.{part}.weight", f"[{768 * (1 + layer % 4)}, 3072] bfloat16 in group 1")
        for layer in range(400)
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    ]
    assert unpack(pack(parts)) == parts


def test_what_does_not_fit_is_cut_to_size() -> None:
    rng = random.Random(0)
    parts = [(f"parameter {rng.randbytes(100).hex()}", "[1] float32") for _ in range(3000)]
    packed = pack(parts)
    assert len(packed) <= blueprint.MOST_BYTES
    known = unpack(packed)
    assert 100 < len(known) < len(parts)
    assert known[0][0] == parts[0][0][:157] + "..."
    ready = Ready(1, {}, "golden", fingerprint(parts), 4096, parts=packed, num_parts=len(parts))
    data = encode(ready)
    assert len(data) < MAX_MESSAGE
    assert decode_from_worker(data) == ready


def test_nonsense_is_no_blueprint() -> None:
    assert unpack(b"") == unpack(b"nonsense") == []
    bomb = blueprint.zlib.compress(msgspec.msgpack.encode([("a" * 8_000_000, "b")]))
    assert unpack(bomb) == []


def test_the_fingerprint_is_of_all_parts_and_their_order() -> None:
    other = [*NET[:3], ("parameter fc1.bias", "[1] float32")]
    assert len({fingerprint(parts) for parts in (NET, NET[:3], NET[::-1], other)}) == 4

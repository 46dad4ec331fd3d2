from array import array

from gdsckpt.checkpointer.stale import fingerprint
from gdsckpt.format.table import TensorEntry


def entry(name, dtype, shape, record):
    return TensorEntry(
        name=name, dtype=dtype, shape=shape, strides=None, record=record, byte_offset=0
    )


TENSORS = (
    entry("w", "float32", (4, 4), 0),
    entry("b", "bfloat16", (4,), 1),
    entry("step", "float32", (), 2),
    entry("one", "float32", (1,), 3),
    entry("rng", "uint8", (5056,), 4),
)


def test_counters_and_random_generators_are_left_out():
    assert fingerprint(TENSORS, array("I", [7, 8, 1, 2, 3])) == fingerprint(
        TENSORS, array("I", [7, 8, 4, 5, 6])
    )


def test_one_trained_tensor_that_differs_is_seen():
    assert fingerprint(TENSORS, array("I", [7, 8, 1, 2, 3])) != fingerprint(
        TENSORS, array("I", [7, 9, 1, 2, 3])
    )


def test_without_trained_tensors_all_storages_count():
    tensors = TENSORS[2:]
    crcs = array("I", [0, 0, 1, 2, 3])
    assert fingerprint(tensors, crcs).crcs == crcs


def test_nothing_saved_is_nothing_to_compare():
    assert fingerprint((), array("I")).is_empty

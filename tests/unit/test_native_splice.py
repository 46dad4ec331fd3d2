"""What the native splice makes of pickles, beside what Python's own pickler and unpickler say."""

import collections
import datetime
import io
import pickle
import pickletools
from array import array

import pytest

from gdsckpt import native
from gdsckpt.errors import ConfigError

NO_PIECE = 2**64 - 1


class Reference:
    """Stands for a tensor; what it is rebuilt to here is a tuple."""

    def __init__(self, number):
        self.number = number


def rebuild(*arguments):
    return ("rebuilt", *arguments)


def rebuild_elsewhere(*arguments):
    return ("rebuilt elsewhere", *arguments)


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, Reference):
            return obj.number
        return ("storage", obj.n) if isinstance(obj, Other) else None


class Other:
    def __init__(self, n):
        self.n = n


class Unpickler(pickle.Unpickler):
    def persistent_load(self, pid):
        return ("pid", *pid)


def pickled(value):
    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def piece(value):
    return pickletools.optimize(pickle.dumps(value, protocol=2))[2:-1]


PIECES = [piece(v) for v in (rebuild, rebuild_elsewhere, int, "cpu", (3, 4), (4, 1), (), float)]


def row(key, *, function=0, numel=12, offset=0, size=4, stride=5, grad=0, dtype=NO_PIECE):
    return (function, 2, dtype, key, 3, numel, offset, size, stride, grad)


def rows_of(*rows):
    return array("Q", [number for row in rows for number in row])


def spliced(value, *rows):
    raw = native.splice_pickle(pickled(value), rows_of(*rows), PIECES)
    return Unpickler(io.BytesIO(raw)).load()


def rebuilt(key, *, name="rebuilt", numel=12, offset=0, size=(3, 4), stride=(4, 1), grad=False):
    storage = ("pid", "storage", int, str(key), "cpu", numel)
    return (name, storage, offset, size, stride, grad, None)


ZOO = [
    None,
    [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**80, -(2**3000)],
    [True, False, 0.1, float("inf"), 1j, "", "é" * 300, "x" * 70_000, b"", b"\xff" * 300],
    {"a": {"b": ({}, [], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {1, 2}, frozenset("ab"))}},
    collections.OrderedDict(a=1),
    [datetime.datetime(2000, 1, 1), datetime.timedelta(1), range(3), slice, Other(3)],
    [[n] for n in range(1000)],
    [str(n) for n in range(1000)] * 2,
    dict(enumerate("abcdefgh" * 500)),
    bytearray(b"abc"),
    print,
]


@pytest.mark.parametrize("value", ZOO, ids=range(len(ZOO)))
def test_splice_without_tensors_changes_nothing(value):
    raw = pickled(value)
    assert native.splice_pickle(raw, rows_of(), []) == raw


def test_splice_of_text_opcodes_changes_nothing():
    raw = pickle.dumps([1, "a\nb", 2.5, 2**70, (1,), {"k": None}], protocol=0)
    assert native.splice_pickle(raw, rows_of(), []) == raw


def test_splice_puts_tensors_where_their_numbers_were():
    value = {"a": Reference(0), "b": [1, Reference(1), {"c": (Reference(2), "x")}], "n": 7}
    assert spliced(value, row(5), row(6, grad=1, offset=9), row(7, size=6, stride=6)) == {
        "a": rebuilt(5),
        "b": [1, rebuilt(6, grad=True, offset=9), {"c": (rebuilt(7, size=(), stride=()), "x")}],
        "n": 7,
    }


@pytest.mark.parametrize("number", [0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**63, 2**64 - 1])
def test_splice_writes_every_number(number):
    found = spliced([Reference(0)], row(number, numel=number, offset=number))
    assert found == [rebuilt(number, numel=number, offset=number)]


def test_splice_with_own_dtype_names_it_last():
    found = spliced([Reference(0)], row(1, function=1, dtype=7))
    assert found == [(*rebuilt(1, name="rebuilt elsewhere"), float)]


def test_splice_of_one_tensor_at_several_places_gives_one_object():
    a, b, c = spliced([Reference(0), Reference(1), Reference(0)], row(1), row(2))
    assert (a, b) == (rebuilt(1), rebuilt(2))
    assert a is c


def test_splice_of_equal_parts_writes_them_once():
    references = [Reference(n) for n in range(3000)]
    raw = native.splice_pickle(pickled(references), rows_of(*map(row, range(3000))), PIECES)
    assert Unpickler(io.BytesIO(raw)).load() == [rebuilt(n) for n in range(3000)]
    assert raw.count(b"rebuild\n") == raw.count(b"cpu") == raw.count(b"storage") == 1


def test_splice_keeps_the_memo_of_the_pickle_apart():
    shared = [str(n) for n in range(300)]
    value = [shared, Reference(0), shared, Reference(1), shared]
    found = spliced(value, row(1), row(2))
    assert found == [shared, rebuilt(1), shared, rebuilt(2), shared]
    assert found[0] is found[2] is found[4]


@pytest.mark.parametrize("count", [1, 255, 256, 65536, 65537])
def test_splice_finds_numbers_of_every_length(count):
    raw = native.splice_pickle(
        pickled([Reference(0), Reference(count - 1)]), rows_of(*map(row, range(count))), PIECES
    )
    assert Unpickler(io.BytesIO(raw)).load() == [rebuilt(0), rebuilt(count - 1)]


def test_splice_leaves_other_persistent_ids_and_whole_numbers():
    found = spliced([Other(3), 5, Reference(0), Other(3), 0], row(1))
    assert found == [("pid", "storage", 3), 5, rebuilt(1), ("pid", "storage", 3), 0]


def test_splice_of_a_pickle_that_ends_too_early_raises():
    raw = pickled([Reference(0), "text", 2.5, 2**70, print, -3, Other(1)])
    for end in range(len(raw)):
        with pytest.raises(ConfigError, match="the pickle (ends within|has no end)") as caught:
            native.splice_pickle(raw[:end], rows_of(row(0)), PIECES)
        assert caught.value.field == "pickle"


@pytest.mark.parametrize("opcode", [b"\x95", b"\x8c", b"\xff", b"\0", b"@"])
def test_splice_of_an_unknown_opcode_raises(opcode):
    with pytest.raises(ConfigError, match="opcode that protocol 2 does not have at byte 2"):
        native.splice_pickle(b"\x80\x02" + opcode + b"N.", rows_of(), [])


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x07\0\0\0"])
def test_splice_of_a_count_beyond_the_end_raises(length):
    with pytest.raises(ConfigError, match="ends within an opcode"):
        native.splice_pickle(b"\x80\x02X" + length + b"abc.", rows_of(), [])


def test_splice_of_a_tensor_without_a_row_raises():
    with pytest.raises(ConfigError, match="names a tensor that has no row"):
        native.splice_pickle(pickled([Reference(1)]), rows_of(row(0)), PIECES)


@pytest.mark.parametrize("column", [0, 1, 2, 4, 7, 8])
def test_splice_of_a_row_without_its_piece_raises(column):
    numbers = [*row(0)]
    numbers[column] = len(PIECES)
    with pytest.raises(ConfigError, match="names piece 8 of 8") as caught:
        native.splice_pickle(pickled([Reference(0)]), rows_of(numbers), PIECES)
    assert caught.value.field == "rows"


def test_splice_of_rows_of_another_width_raises():
    with pytest.raises(ConfigError, match="it must hold rows of 10 unsigned 64-bit numbers"):
        native.splice_pickle(pickled(None), array("Q", range(9)), PIECES)

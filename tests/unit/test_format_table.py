import json

import pytest

from gdsckpt.errors import FormatError
from gdsckpt.format import table
from gdsckpt.format.table import ChunkTable, TensorEntry

TABLE = ChunkTable(
    chunk_bytes=100,
    covered_bytes=250,
    chunk_crc32=(1, 2, 2**32 - 1),
    tensors=(
        TensorEntry("model.w", "float32", (2, 3), None, 0, 0),
        TensorEntry("tied \u00e9 \ud800", "bfloat16", (), (), 1, 64),
        TensorEntry("view", "int8", (3, 2), (1, 3), 0, 5),
    ),
)


def test_decode_gives_what_was_encoded_odd_names_too():
    assert table.decode(table.encode(TABLE), "f", 9) == TABLE


def test_encode_is_json_in_the_documented_columns():
    document = json.loads(table.encode(TABLE).decode("utf-8", "surrogatepass"))
    assert document["format"] == 1
    assert document["chunk_crc32"] == [1, 2, 2**32 - 1]
    assert document["tensors"]["name"][0] == "model.w"
    assert document["tensors"]["strides"] == [None, [], [1, 3]]
    assert set(document["tensors"]) == {
        "name",
        "dtype",
        "shape",
        "strides",
        "record",
        "byte_offset",
    }


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        table.encode(TABLE).replace(b'"covered_bytes":250', b'"covered_bytes":1000'),
        table.encode(TABLE).replace(b'"covered_bytes":250', b'"covered_bytes":-1'),
        table.encode(TABLE).replace(b'"chunk_bytes":100', b'"chunk_bytes":0'),
        table.encode(TABLE).replace(b'"record":[0,1,0]', b'"record":[0,1]'),
        table.encode(TABLE).replace(b'"record":[0,1,0]', b'"record":[0,1,"x"]'),
    ],
    ids=range(11),
)
def test_decode_anything_else_is_a_format_error(raw):
    with pytest.raises(FormatError) as caught:
        table.decode(raw, "f", 9)
    assert (caught.value.path, caught.value.offset) == ("f", 9)

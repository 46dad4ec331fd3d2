import dataclasses

from gdsckpt.engine import base


def test_pack_columns_gives_row_after_row():
    rows = base.pack_columns(([1, 2], range(3, 5), (1 << 63, 0)))
    assert (rows.typecode, rows.tolist()) == ("Q", [1, 3, 1 << 63, 2, 4, 0])
    assert base.pack_columns(([], [])).tolist() == []


def test_pack_columns_of_the_fields_of_extents_equals_pack_extents():
    extents = [base.Extent(4096 * n, n, 3 * n) for n in range(1, 4)]
    columns = list(zip(*map(dataclasses.astuple, extents), strict=True))
    assert base.pack_columns(columns) == base.pack_extents(extents)

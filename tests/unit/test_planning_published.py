import pytest

from gdsckpt.planning.published import mlperf_parameters, published

BY_NAME = {entry.name: entry for entry in published()}


@pytest.mark.parametrize(
    ("name", "said", "nbytes", "tolerance"),
    [
        ("8B, MLPerf Storage v2.0", "105 GB", 105 * 2**30, 0.003),
        ("70B, MLPerf Storage v2.0", "912 GB", 912 * 2**30, 0.001),
        ("405B, MLPerf Storage v2.0", "5.29 TB", 5290 * 2**30, 0.001),
        ("1T, MLPerf Storage v2.0", "18 TB", 18e12, 0.035),
        ("70B, rule of 14 bytes", "980 GB", 980e9, 0),
        ("70B, rule of 12 bytes", "840 GB", 840e9, 0),
        ("Llama 3 70B, HyperPod", "521 GB", 521 * 2**30, 0.002),
    ],
)
def test_published_figure_comes_out_of_the_parts_it_counts(name, said, nbytes, tolerance):
    entry = BY_NAME[name]
    assert entry.said == said
    assert entry.published_bytes == nbytes
    assert entry.computed_bytes == pytest.approx(nbytes, rel=tolerance)
    assert abs(entry.difference) <= tolerance


@pytest.mark.parametrize(
    ("name", "bytes_per_parameter"),
    [
        ("Llama 3 70B, HyperPod", 8),
        ("70B, rule of 12 bytes", 12),
        ("70B, rule of 14 bytes", 14),
        ("70B, MLPerf Storage v2.0", 14),
    ],
)
def test_published_figures_for_70b_differ_by_what_they_count(name, bytes_per_parameter):
    assert BY_NAME[name].bytes_per_parameter == bytes_per_parameter


def test_published_912_gb_of_mlperf_are_the_980_gb_of_the_rule():
    rule, mlperf = BY_NAME["70B, rule of 14 bytes"], BY_NAME["70B, MLPerf Storage v2.0"]
    assert rule.published_bytes == pytest.approx(mlperf.published_bytes, rel=0.001)


def test_published_entries_say_source_date_and_reading():
    assert all(entry.source and entry.as_of and entry.note for entry in BY_NAME.values())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("8B", 8_030_261_248), ("70B", 69_882_617_856), ("405B", 405_853_388_800)],
)
def test_mlperf_parameters_are_those_of_dlio(name, parameters):
    # By hand: 2 v h + h + l (2 h + h (h + 2 k) + h h + 3 f h), with k = h / heads * kv heads.
    assert mlperf_parameters(name) == parameters

import math

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.failures import LLAMA3_MTBF_GPU_S, FailureRates, FailureSource

HOUR_S = 3600.0


def test_rates_llama3_job_fails_every_three_hours():
    source = FailureSource(mtbf_gpu_s=Band.exactly(LLAMA3_MTBF_GPU_S))
    rates = source.rates(num_gpus=16384, gpus_per_node=8)
    # 54 days x 24 h / 419 interruptions.
    assert rates.likely.mtbf_s / HOUR_S == pytest.approx(3.093, abs=0.001)


def test_rates_of_nodes_count_begun_nodes():
    source = FailureSource(mtbf_node_s=Band.exactly(900.0), node_loss_share=Band.exactly(0.25))
    rates = source.rates(num_gpus=9, gpus_per_node=4).likely
    assert rates.process_per_s == pytest.approx(3 / 900 * 0.75)
    assert rates.node_per_s == pytest.approx(3 / 900 * 0.25)


def test_rates_measured_job_is_not_scaled():
    source = FailureSource(mtbf_job_s=Band.exactly(5000.0))
    assert source.rates(num_gpus=512, gpus_per_node=8).likely.mtbf_s == pytest.approx(5000.0)


def test_rates_worst_is_shortest_time_and_most_losses():
    source = FailureSource(mtbf_gpu_s=Band(1e6, 2e6, 4e6), node_loss_share=Band(0.1, 0.2, 0.4))
    rates = source.rates(num_gpus=100, gpus_per_node=4)
    assert rates.worst.node_per_s == pytest.approx(100 / 1e6 * 0.4)
    assert rates.best.node_per_s == pytest.approx(100 / 4e6 * 0.1)


def test_rates_spot_nodes_add_preemptions():
    source = FailureSource(
        mtbf_job_s=Band.exactly(1e9), preemption_mtbf_node_s=Band.exactly(36000.0)
    )
    assert source.rates(num_gpus=80, gpus_per_node=8).likely.preemption_per_s == 10 / 36000


def test_rates_without_failures_mtbf_is_infinite():
    assert FailureRates(process_per_s=0.0, node_per_s=0.0).mtbf_s == math.inf


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "mtbf_gpu_s"),
        ({"mtbf_gpu_s": Band.exactly(1e6), "mtbf_job_s": Band.exactly(1e4)}, "mtbf_job_s"),
        ({"mtbf_gpu_s": Band.exactly(0.0)}, "mtbf_gpu_s"),
        ({"mtbf_gpu_s": Band(-1e6, 1e6, 1e6)}, "mtbf_gpu_s"),
        (
            {"mtbf_job_s": Band.exactly(1e4), "node_loss_share": Band(0.5, 0.9, 1.1)},
            "node_loss_share",
        ),
        (
            {"mtbf_job_s": Band.exactly(1e4), "preemption_mtbf_node_s": Band.exactly(0.0)},
            "preemption_mtbf_node_s",
        ),
    ],
)
def test_source_contradictory_or_absurd_is_refused(values, field):
    with pytest.raises(ConfigError) as caught:
        FailureSource(**values)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_rates_negative_or_not_finite_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        FailureRates(process_per_s=0.0, node_per_s=value)
    assert caught.value.field == "node_per_s"

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.checkpointer.targets import InFlight, Rates, Targets, choose_targets

GB = 10**9
# 10 GB take 10 s to the drive and 20 s more to the store; 80 % of the remaining time is used.
RATES = Rates(local_bytes_per_s=1 * GB, upload_bytes_per_s=0.5 * GB)


def chosen(remaining_s, rates=RATES, in_flight=None, has_store=True):
    targets = choose_targets(
        remaining_s, 10 * GB, rates=rates, in_flight=in_flight, has_store=has_store
    )
    return targets.save, targets.upload


@pytest.mark.parametrize(
    ("remaining_s", "expected"),
    [
        (37.6, (True, True)),  # 30.08 s usable, 30 s needed
        (37.4, (True, False)),
        (12.6, (True, False)),  # 10.08 s usable, 10 s needed
        (12.4, (True, False)),  # nothing fits: tried
        (0.0, (True, False)),
        (-5.0, (True, False)),
    ],
)
def test_choose_targets_with_nothing_in_flight(remaining_s, expected):
    assert chosen(remaining_s) == expected


def test_choose_targets_without_a_store_never_uploads():
    assert chosen(1000.0, has_store=False) == (True, False)
    assert chosen(1.0, in_flight=InFlight(7, 1 * GB, 0), has_store=False) == (False, False)


@pytest.mark.parametrize(
    ("remaining_s", "expected"),
    [
        # 4 GB first to the drive and 5 GB first to the store: 4 + 10, 14 + 20 s.
        (42.6, (True, True)),
        (42.4, (True, False)),
        (17.6, (True, False)),  # 14.08 s usable, 14 s for both saves
        (17.4, (False, False)),  # 13.92 s: not the new save, and the old upload ends after 14 s
        (5.1, (False, False)),
        (1.0, (False, False)),  # nothing fits: the old save is tried
    ],
)
def test_choose_targets_with_a_save_in_flight_counts_its_bytes_first(remaining_s, expected):
    assert chosen(remaining_s, in_flight=InFlight(7, 4 * GB, 5 * GB)) == expected


@pytest.mark.parametrize(
    ("upload_bytes", "remaining_s", "expected"),
    [
        (2 * GB, 12.4, (False, True)),  # 4 s for the upload in flight, 10 s for a new save
        (2 * GB, 12.6, (True, False)),
        (9 * GB, 12.4, (False, True)),  # 18 s: nothing fits, and only the upload is left to do
    ],
)
def test_choose_targets_with_a_committed_save_finishes_its_upload(
    upload_bytes, remaining_s, expected
):
    assert chosen(remaining_s, in_flight=InFlight(7, 0, upload_bytes)) == expected


def test_choose_targets_with_a_committed_save_and_no_store_tries_a_new_save():
    assert chosen(1.0, in_flight=InFlight(7, 0, 0), has_store=False) == (True, False)


@pytest.mark.parametrize(
    ("rates", "remaining_s", "expected"),
    [
        (Rates(), 0.1, (True, True)),
        (Rates(local_bytes_per_s=1 * GB), 12.6, (True, True)),
        (Rates(local_bytes_per_s=1 * GB), 12.4, (True, False)),
        (Rates(upload_bytes_per_s=0.5 * GB), 25.1, (True, True)),
        (Rates(upload_bytes_per_s=0.5 * GB), 24.9, (True, False)),
        (Rates(0.0, 0.0), 0.1, (True, True)),
    ],
)
def test_choose_targets_with_unknown_rates_tries_what_depends_on_them(rates, remaining_s, expected):
    assert chosen(remaining_s, rates=rates) == expected


def test_choose_targets_says_why_with_the_numbers():
    in_flight = InFlight(7, 0, 2 * GB)
    targets = choose_targets(10.0, 10 * GB, rates=RATES, in_flight=in_flight, has_store=True)
    assert targets == Targets(
        False,
        True,
        "finish only the save and upload of step 7: a new save of 10 GB ends after 10 s and its "
        "upload after 30 s, and 10 s remain",
    )


@given(
    first_s=st.floats(0, 1e6),
    more_s=st.floats(0, 1e6),
    local=st.none() | st.floats(1, 1e12),
    upload=st.none() | st.floats(1, 1e12),
    in_flight=st.none()
    | st.builds(InFlight, st.just(7), st.integers(0, 10**12), st.integers(0, 10**12)),
)
def test_choose_targets_with_more_time_chooses_no_less(first_s, more_s, local, upload, in_flight):
    def rank(remaining_s):
        save, upload_too = chosen(remaining_s, Rates(local, upload), in_flight)
        return 2 * save + upload_too

    assert rank(first_s) <= rank(first_s + more_s)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.planning import hour
from gdsckpt.planning.cadence import SaveCosts, Schedule


def spans(found, kind):
    return [(span.begin_s, span.end_s) for span in found.spans if span.kind == kind]


def test_hour_of_saves_that_keep_up():
    costs = SaveCosts(stall_s=10, commit_s=30, upload_s=600)
    found = hour.hour_of(costs, Schedule(interval_s=1200))
    assert spans(found, hour.STALL) == [(0, 10), (1200, 1210), (2400, 2410)]
    assert spans(found, hour.WRITE) == [(0, 30), (1200, 1230), (2400, 2430)]
    assert spans(found, hour.UPLOAD) == [(30, 630), (1230, 1830), (2430, 3030)]
    assert spans(found, hour.WAIT) == []
    assert found.shown_s == 3600
    assert found.seconds_of(hour.STALL) == 30


def test_hour_of_uploads_that_fall_behind_makes_saves_wait():
    costs = SaveCosts(stall_s=0, commit_s=0, upload_s=2000)
    found = hour.hour_of(costs, Schedule(interval_s=600, max_in_flight=2))
    assert spans(found, hour.UPLOAD) == [(0, 2000), (2000, 4000), (4000, 6000)]
    assert spans(found, hour.WAIT) == [(1200, 2000), (2600, 4000)]
    assert (found.num_saves, found.num_uploads, found.num_skipped) == (3, 3, 0)


def test_hour_of_uploads_that_fall_behind_skips_some():
    costs = SaveCosts(stall_s=0, commit_s=0, upload_s=2000)
    found = hour.hour_of(costs, Schedule(interval_s=600, max_in_flight=1, back_pressure="skip"))
    assert spans(found, hour.UPLOAD) == [(0, 2000), (2400, 4400)]
    assert (found.num_saves, found.num_uploads, found.num_skipped) == (6, 2, 4)
    assert spans(found, hour.WAIT) == []


def test_hour_of_every_third_upload():
    costs = SaveCosts(stall_s=1, commit_s=1, upload_s=10)
    found = hour.hour_of(costs, Schedule(interval_s=600, upload_every=3))
    assert spans(found, hour.UPLOAD) == [(1, 11), (1801, 1811)]


def test_hour_of_a_fast_cadence_shows_its_beginning():
    found = hour.hour_of(SaveCosts(stall_s=0.1, commit_s=0.2), Schedule(interval_s=1))
    assert found.num_saves == hour.NUM_SAVES_MAX
    assert found.shown_s == pytest.approx(hour.NUM_SAVES_MAX)


@given(
    st.floats(0, 100),
    st.floats(0, 1000),
    st.floats(0, 5000),
    st.floats(1, 5000),
    st.sampled_from(["wait", "skip"]),
)
def test_hour_has_no_negative_times(stall_s, more_s, upload_s, interval_s, back_pressure):
    costs = SaveCosts(stall_s=stall_s, commit_s=stall_s + more_s, upload_s=upload_s)
    found = hour.hour_of(costs, Schedule(interval_s=interval_s, back_pressure=back_pressure))
    assert all(0 <= span.begin_s < span.end_s for span in found.spans)
    for kind in (hour.STALL, hour.WRITE, hour.UPLOAD, hour.WAIT):
        ordered = spans(found, kind)
        assert all(
            before[1] <= after[0] + 1e-6
            for before, after in zip(ordered, ordered[1:], strict=False)
        )

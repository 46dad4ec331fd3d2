"""What a save can still reach in the time before the process is killed: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from gdsckpt.units import format_bytes, format_duration

USABLE_SHARE = 0.8
"""Share of the remaining time that is planned with: rates vary, and syncing has a tail."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What earlier saves of this run reached, in bytes per second; None where none has ended yet.

    Attributes:
        local_bytes_per_s: To the local drive, from the call to the durable manifest.
        upload_bytes_per_s: To the object store.
    """

    local_bytes_per_s: float | None = None
    upload_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class InFlight:
    """An earlier save that has not ended.

    Attributes:
        step: Its step.
        local_bytes: What the local drive has yet to get; 0 when it is committed.
        upload_bytes: What the object store has yet to get.
    """

    step: int
    local_bytes: int
    upload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Targets:
    """What is to be done before the end.

    Attributes:
        save: Save the state of now; otherwise only what is in flight is finished.
        upload: Wait for the upload too: of the new step, or without one of the step in flight.
        reason: Why, with the numbers.
    """

    save: bool
    upload: bool
    reason: str


def choose_targets(
    remaining_s: float,
    nbytes: int,
    *,
    rates: Rates,
    in_flight: InFlight | None = None,
    has_store: bool = False,
) -> Targets:
    """Choose the best end that fits into the remaining time.

    In this order: a new save with its upload; a new save on the local drive alone; the save in
    flight, which is nearer to its end. Where nothing fits, what is nearest to its end is tried: an
    unfinished save is invisible, and the kill may come later than announced. The drive takes one
    save after the other, and so does the store.

    Args:
        remaining_s: Seconds until the kill; ``USABLE_SHARE`` of them are planned with.
        nbytes: Size of a new save.
        rates: Measured rates; where one is unknown, what depends on it is tried.
        in_flight: The save that has not ended, if any.
        has_store: There is an object store to upload to.
    """
    if in_flight is not None and not (in_flight.local_bytes or has_store):
        in_flight = None
    ends = _ends(nbytes, rates, in_flight)
    usable_s = max(0.0, remaining_s) * USABLE_SHARE
    times = ends.described(has_store) + f", and {format_duration(max(0.0, remaining_s))} remain"
    if ends.saved_s <= usable_s:
        if has_store and ends.uploaded_s <= usable_s:
            return Targets(True, True, f"save and upload: {times}")
        why = "the upload would not end" if has_store else "there is no store"
        return Targets(True, False, f"save on the local drive only ({why}): {times}")
    if in_flight is None:
        return Targets(True, False, f"try to save on the local drive, perhaps in vain: {times}")
    # One that is committed can gain from nothing but its upload.
    upload = has_store and (ends.in_flight_uploaded_s <= usable_s or not in_flight.local_bytes)
    end_s = ends.in_flight_uploaded_s if upload else ends.in_flight_saved_s
    sort = "finish" if end_s <= usable_s else "try to finish"
    what = "save and upload" if upload else "save"
    return Targets(False, upload, f"{sort} only the {what} of step {in_flight.step}: {times}")


@dataclass(frozen=True, slots=True)
class _Ends:
    """Seconds from now until each stage ends; stages of unknown rate count as 0."""

    nbytes: int
    in_flight_saved_s: float
    in_flight_uploaded_s: float
    saved_s: float
    uploaded_s: float

    def described(self, has_store: bool) -> str:
        text = f"a new save of {format_bytes(self.nbytes)} ends after {_about(self.saved_s)}"
        return text + (f" and its upload after {_about(self.uploaded_s)}" if has_store else "")


def _ends(nbytes: int, rates: Rates, in_flight: InFlight | None) -> _Ends:
    local_bytes = in_flight.local_bytes if in_flight else 0
    upload_bytes = in_flight.upload_bytes if in_flight else 0
    in_flight_saved_s = _seconds(local_bytes, rates.local_bytes_per_s)
    in_flight_uploaded_s = in_flight_saved_s + _seconds(upload_bytes, rates.upload_bytes_per_s)
    saved_s = _seconds(local_bytes + nbytes, rates.local_bytes_per_s)
    # A file is uploaded once it is committed, and after the ones before it.
    upload_s = _seconds(nbytes, rates.upload_bytes_per_s)
    uploaded_s = max(saved_s, in_flight_uploaded_s) + upload_s
    return _Ends(nbytes, in_flight_saved_s, in_flight_uploaded_s, saved_s, uploaded_s)


def _seconds(nbytes: int, bytes_per_s: float | None) -> float:
    return nbytes / bytes_per_s if bytes_per_s else 0.0


def _about(seconds: float) -> str:
    return format_duration(seconds) if seconds else "an unknown time"

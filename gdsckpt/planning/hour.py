"""One hour of saves, second by second and without failures: stalls, writing, uploads, waiting."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gdsckpt.planning.cadence import SaveCosts, Schedule

HOUR_S = 3600.0
NUM_SAVES_MAX = 240
"""More would be a grey bar; of a faster cadence the beginning is shown."""

STALL, WAIT, WRITE, UPLOAD = "stall", "wait", "write", "upload"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts, in seconds from the first save.

    Attributes:
        kind: ``stall`` (training stands still for a save), ``wait`` (for earlier saves and
            uploads), ``write`` (until it is on NVMe) or ``upload``.
        begin_s: When it begins.
        end_s: When it ends; may be after the hour.
    """

    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Hour:
    """What happens.

    Attributes:
        spans: In order of their beginning within each kind.
        shown_s: Seconds that the spans cover; an hour, less of a very fast cadence.
        num_saves: Saves that begin.
        num_uploads: Uploads that begin.
        num_skipped: Uploads that are left out.
    """

    spans: tuple[Span, ...]
    shown_s: float
    num_saves: int
    num_uploads: int
    num_skipped: int

    def seconds_of(self, kind: str) -> float:
        """Give how much of the time shown is taken by one kind."""
        return sum(
            max(0.0, min(span.end_s, self.shown_s) - span.begin_s)
            for span in self.spans
            if span.kind == kind
        )


def hour_of(costs: SaveCosts, schedule: Schedule) -> Hour:
    """Go through one hour from the beginning of a save."""
    return _Hour(costs, schedule).run()


class _Hour:
    """The clock, and what is under way."""

    def __init__(self, costs: SaveCosts, schedule: Schedule) -> None:
        self._costs = costs
        self._schedule = schedule
        self._spans: list[Span] = []
        self._upload_ends: deque[float] = deque()
        self._num_saves = self._num_uploads = self._num_skipped = 0

    def run(self) -> Hour:
        now, committed_s = 0.0, 0.0
        while now < HOUR_S and self._num_saves < NUM_SAVES_MAX:
            begin = self._when_there_is_room(max(now, committed_s))
            self._add(WAIT, now, begin)
            if begin >= HOUR_S:
                now = begin
                break
            self._add(STALL, begin, begin + self._costs.stall_s)
            committed_s = begin + self._costs.commit_s
            self._add(WRITE, begin, committed_s)
            if self._num_saves % self._schedule.upload_every == 0:
                self._upload(committed_s)
            self._num_saves += 1
            now = begin + max(self._schedule.interval_s, self._costs.stall_s)
        return Hour(
            tuple(self._spans),
            HOUR_S if now >= HOUR_S else now,
            self._num_saves,
            self._num_uploads,
            self._num_skipped,
        )

    def _add(self, kind: str, begin_s: float, end_s: float) -> None:
        if end_s > begin_s:
            self._spans.append(Span(kind, begin_s, end_s))

    def _forget_done(self, now: float) -> None:
        while self._upload_ends and self._upload_ends[0] <= now:
            self._upload_ends.popleft()

    def _when_there_is_room(self, now: float) -> float:
        """Give when the next save may begin, if it is to be uploaded and uploads are waited for."""
        is_uploaded = self._num_saves % self._schedule.upload_every == 0
        if self._schedule.back_pressure != "wait" or not is_uploaded:
            return now
        self._forget_done(now)
        excess = len(self._upload_ends) - self._schedule.max_in_flight
        return now if excess < 0 else max(now, self._upload_ends[excess])

    def _upload(self, ready_s: float) -> None:
        self._forget_done(ready_s)
        if len(self._upload_ends) >= self._schedule.max_in_flight:
            self._num_skipped += 1
            return
        begin = max(ready_s, self._upload_ends[-1] if self._upload_ends else 0.0)
        end = begin + self._costs.upload_s
        self._upload_ends.append(end)
        self._add(UPLOAD, begin, end)
        self._num_uploads += 1

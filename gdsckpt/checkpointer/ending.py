"""The end of a training that is preempted: do what fits into the time that is left."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from gdsckpt.checkpointer.pipeline import Order, Pipeline
from gdsckpt.checkpointer.preemption import Request
from gdsckpt.checkpointer.targets import Targets, choose_targets
from gdsckpt.errors import GdsckptError
from gdsckpt.handle import SaveHandle
from gdsckpt.report import PreemptionReport

logger = logging.getLogger(__name__)

_MARGIN_S = 0.5
"""Left for the process to end by itself."""


def end_in_time(
    pipeline: Pipeline, request: Request, order: Order, state: Any | Callable[[], Any]
) -> PreemptionReport:
    """Save what can be saved before this process is stopped.

    What does not end in time is given up. That, and failures, do not raise: the report has them.

    Args:
        pipeline: Where saves go.
        request: What announced the end.
        order: The step that is over.
        state: Its state, or what gives it.
    """
    deadline = time.monotonic() + max(0.0, request.remaining_s() - _MARGIN_S)
    pipeline.give_up_at(deadline)
    handle: SaveHandle | None = None
    try:
        order = dataclasses.replace(order, deadline=deadline)
        targets, handle = _begin(pipeline, request, order, state)
    except GdsckptError as error:
        targets, failures = Targets(False, False, "nothing could be begun"), [str(error)]
    else:
        failures = [] if handle is None else _wait_for(handle, deadline, upload=targets.upload)
    report = PreemptionReport(
        reason=request.reason,
        choice=targets.reason,
        step=handle.step if handle is not None and handle.is_committed else None,
        is_uploaded=handle is not None and handle.is_uploaded,
        failures=tuple(failures),
        remaining_s=request.remaining_s(),
    )
    logger.warning("%s", report)
    return report


def _begin(
    pipeline: Pipeline, request: Request, order: Order, state: Any | Callable[[], Any]
) -> tuple[Targets, SaveHandle | None]:
    """Choose, and begin to save where that is chosen; gives the save that is to be waited for."""
    has_store = pipeline.uploads is not None
    newest = pipeline.saves.newest
    if newest is not None and newest.step == order.step and newest.failure is None:
        return Targets(False, has_store, f"step {order.step} was saved at this boundary"), newest
    prepared = pipeline.prepare(state() if callable(state) else state)
    targets = choose_targets(
        request.remaining_s(),
        prepared.content.payload_bytes,
        rates=pipeline.rates(),
        in_flight=pipeline.in_flight(),
        has_store=has_store,
    )
    return targets, pipeline.submit(order, prepared) if targets.save else newest


def _wait_for(handle: SaveHandle, deadline: float, *, upload: bool) -> list[str]:
    """Wait for a save, but for no drive and no store that hangs; gives what went wrong."""
    stages = (handle.committed, handle.uploaded) if upload else (handle.committed,)
    failures = []
    for stage in stages:
        try:
            # Given up by itself at the deadline, it says more than we could.
            error = stage.exception(max(0.0, deadline - time.monotonic()) + _MARGIN_S / 2)
        except TimeoutError:
            handle.receive()  # whatever it will be
            what = "save" if stage is handle.committed else "upload"
            failures.append(f"the {what} of step {handle.step} hangs, and did not end in time.")
            break
        if error is not None and str(error) not in failures:
            failures.append(str(error))
    return failures

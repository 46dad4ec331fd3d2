"""One step of a probe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """One thing that was tried.

    Attributes:
        name: Which; stays the same from version to version.
        ok: Whether it is there and works.
        reason: What was found.
        needed: Whether saves and loads need it; the others only make them faster or safer.
        mend: What the user can do about it; empty where there is nothing to do.
    """

    name: str
    ok: bool
    reason: str
    needed: bool = False
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A step, and what follows from it for cuFile.

    Attributes:
        step: What was found.
        rules_out: cuFile cannot work because of it, so nothing that costs more needs to be tried.
    """

    step: ProbeStep
    rules_out: bool = False

"""Exit codes: the same for every command."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """What the process tells the shell."""

    OK = 0
    FINDING = 1
    USAGE = 2
    UNVERIFIABLE = 3
    FAILED = 4
    INTERRUPTED = 130
    NO_READER = 141


MEANINGS = {
    Exit.OK: "done, and nothing bad was found",
    Exit.FINDING: "a negative finding: damaged, different, not usable, a claim that failed",
    Exit.USAGE: "wrong usage: the command line or a setting",
    Exit.UNVERIFIABLE: "nothing damaged was found, but a file carries no checksums of gdsckpt",
    Exit.FAILED: "the command failed: the error says what, why and what to do",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.NO_READER: "nobody reads the output any more (as in `gdsckpt ls | head`)",
}
"""For ``--help`` and ``docs/cli.md``."""

# An incomplete answer outweighs a bad one, and that one a missing one.
_ORDER = (Exit.OK, Exit.UNVERIFIABLE, Exit.FINDING, Exit.FAILED)


def worst(codes: list[Exit]) -> Exit:
    """Give the code for several results: failed, else finding, else not verifiable, else ok."""
    return max(codes, key=_ORDER.index, default=Exit.OK)

"""How the demo tells what it does, and keeps what it claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdsckpt.demo.checks import Claim
from gdsckpt.demo.resume import Resumed

LINES_OF_LOSS = 6
"""Steps of a run that are shown."""

Say = Callable[[str], None]
"""Told each line, without its end."""


class Story:
    """Says lines, and collects claims.

    Args:
        say: Gets the lines.
        claims: Where claims are added.
    """

    def __init__(self, say: Say, claims: list[Claim]) -> None:
        self.say = say
        self._claims = claims

    def head(self, text: str) -> None:
        """Begin a part."""
        self.say("")
        self.say(f"== {text}")

    def claim(self, claim: Claim) -> None:
        """Add a claim, and say its evidence."""
        self._claims.append(claim)
        self.say(f"{'ok  ' if claim.ok else 'FAIL'}  {claim.evidence}")

    def compare_losses(
        self, name: str, losses: Sequence[float], resumed: Resumed, *, num_lines: int
    ) -> None:
        """Claim that a resumed run had the losses of the one that went on.

        Args:
            name: Of the claim.
            losses: Of the run that went on.
            resumed: The other one.
            num_lines: Steps at the end that are shown; steps that differ always are.
        """
        self.say(f"process {resumed.pid} began after step {resumed.first_step}")
        pairs = list(zip(losses, resumed.losses, strict=False))
        if num_lines:
            self.say(f"{'step':>6}  {'never interrupted':<22}  {'resumed':<22}")
        for n, (a, b) in enumerate(pairs):
            if a != b or n >= len(pairs) - num_lines:
                step = resumed.first_step + 1 + n
                mark = "=" if a == b else "DIFFERENT"
                self.say(f"{step:>6}  {a.hex():<22}  {b.hex():<22}  {mark}")
        same = sum(a.hex() == b.hex() for a, b in pairs)
        self.claim(
            Claim(
                name,
                tuple(losses) == resumed.losses,
                f"{same} of {len(losses)} losses are equal to the last bit",
            )
        )

    def compare_ends(self, name: str, final: str, resumed: Resumed) -> None:
        """Claim that both runs ended in the same state, whose fingerprint is ``final``."""
        is_same = resumed.fingerprint == final
        how = "equal to the last bit" if is_same else "DIFFERENT"
        self.claim(Claim(name, is_same, f"model, optimizer and RNG at the end: {how}"))

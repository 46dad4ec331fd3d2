"""What has to be true of a root after crashes, by the events that the killed runs have written."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from crash_training import SCRIPTS, Back, Save, Train


@dataclass(frozen=True)
class Position:
    """What a root holds once so many saves of a script are committed.

    Attributes:
        live: By step, the number of the save that the step is of; retention aside.
        kept: The steps that retention keeps.
    """

    live: dict
    kept: frozenset


def positions(script):
    """Give the position after each number of saves, from 0."""
    step, live, kept = 0, {}, frozenset()
    found = [Position(live, kept)]
    for op in SCRIPTS[script].ops:
        if isinstance(op, Train):
            step += op.num_steps
        elif isinstance(op, Back):
            step = op.step
        elif isinstance(op, Save):
            live = {old: n for old, n in live.items() if old < step} | {step: len(found)}
            left = sorted({*(old for old in kept if old < step), step})
            kept = frozenset(left[-SCRIPTS[script].keep_local :])
            found.append(Position(live, kept))
    return found


@dataclass
class Reference:
    """A run that nobody has interrupted.

    Attributes:
        script: Its key.
        saves: By the number of a save: its step and digest.
        end: The digest of the training when the script was over.
        seconds: What it took.
    """

    script: str
    saves: dict = field(default_factory=dict)
    end: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, script, events, seconds):
        """Take it from the events of the run."""
        made = cls(script, seconds=seconds)
        for each in events:
            if each["event"] == "begun":
                made.saves[each["save"]] = (each["step"], each["digest"])
            elif each["event"] == "over":
                made.end = each["digest"]
        return made


def read_events(path):
    """Give the events of a file, in order."""
    path = Path(path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def require_clean(seen):
    """Fail where a root has more than its steps, and what training went back from."""
    num_steps = len(seen["local"])
    steps = [name for name in seen["tree"] if name.startswith("step")]
    assert steps == sorted(("step", "step/manifest.json", "step/shard") * num_steps)
    aside = ".gdsckpt/quarantine/superseded.step"
    allowed = {aside, f"{aside}/manifest.json", f"{aside}/shard"}
    private = ("", "/lock", "/reports.jsonl", "/pruned", "/quarantine")
    allowed |= {f".gdsckpt{name}" for name in private}
    others = {name for name in seen["tree"] if not name.startswith("step")}
    assert others <= allowed, others - allowed
    assert seen["tree"].count(aside) <= 3


class Checker:
    """Goes through the events of the runs of one root, and fails where a promise was broken.

    Args:
        reference: What the same script gives when nobody interrupts it.

    Attributes:
        num_committed: Saves of the script that the root was last seen to hold.
        is_over: Whether a run has come to the end of the script.
    """

    def __init__(self, reference):
        self._reference = reference
        self._positions = positions(reference.script)
        # Of the saves begun, any may be committed; those that were said to be must be.
        self._reported = self._begun = 0
        self._uploaded = set()
        self.num_committed = 0
        self.is_over = False

    def check(self, events):
        """Go through further events."""
        for each in events:
            {
                "opened": self._opened,
                "loaded": self._loaded,
                "begun": self._save_begun,
                "committed": self._save_committed,
                "uploaded": self._save_uploaded,
                "over": self._over,
                "clean": self._clean,
            }[each["event"]](each)

    def _opened(self, seen):
        self._look(seen)
        # What was begun and is not there is gone; the run does it again.
        self._reported = self._begun = self.num_committed

    def _loaded(self, said):
        assert said["save"] == self.num_committed
        assert said["digest"] == self._digest(said["save"])

    def _save_begun(self, said):
        # The training is where the uninterrupted one was, bit by bit.
        wanted = self._reference.saves[said["save"]]
        assert wanted == (said["step"], said["digest"]), f"save {said['save']} has another state"
        self._begun = said["save"]

    def _save_committed(self, said):
        self._reported = said["save"]

    def _save_uploaded(self, said):
        self._uploaded.add(said["save"])

    def _over(self, seen):
        self._look(seen)
        assert self.num_committed == len(self._reference.saves)
        assert seen["digest"] == self._reference.end
        self.is_over = True

    def _clean(self, seen):
        """The root is as if nobody had been killed, but for what training went back from."""
        self._look(seen)
        require_clean(seen)

    def _look(self, seen):
        """Check the steps of a root: which they are, and of which save each is."""
        local = {step: save for step, save, _ in seen["local"]}
        newest = max(local, default=None)
        self.num_committed = 0 if newest is None else local[newest]
        assert self._reported <= self.num_committed <= self._begun
        position = self._positions[self.num_committed]
        assert position.kept <= local.keys(), "a step that retention keeps is lost"
        assert local.items() <= position.live.items(), "a step that counts no more is listed"
        assert set(local) <= set(seen["steps"]) <= position.live.keys()
        assert max(seen["steps"], default=None) == newest
        for _, save, digest in (*seen["local"], *seen["stored"]):
            assert digest == self._digest(save), f"save {save} was loaded with another content"
        stored = {save for _, save, _ in seen["stored"]}
        assert self._uploaded <= stored, "what was uploaded is not in the store"

    def _digest(self, save):
        return self._reference.saves[save][1]

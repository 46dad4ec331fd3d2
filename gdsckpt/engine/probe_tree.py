"""What the kernel shows of itself as files."""

from __future__ import annotations

import os
from pathlib import Path

_CONTAINER_MARKS = {"docker": ".dockerenv", "podman": "run/.containerenv"}
_CONTAINER_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc")


class HostTree:
    """Reads /proc, /sys, /run, /dev and /boot; what cannot be read is absent.

    Args:
        root: Where they begin; another one for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, relative: str) -> Path:
        """Give the path of ``"proc/modules"`` and the like."""
        return self._root / relative

    def text(self, relative: str) -> str | None:
        """Read a file, without white space at its ends; None if it cannot be read."""
        try:
            return self.path(relative).read_bytes().decode(errors="replace").strip()
        except OSError:
            return None

    def exists(self, relative: str) -> bool:
        """Tell whether there is such a file or directory."""
        return os.path.exists(self.path(relative))  # noqa: PTH110 - Path.exists raises for EACCES

    def names(self, relative: str) -> list[str]:
        """List a directory, sorted; nothing if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(relative)))  # noqa: PTH208 - only names are wanted
        except OSError:
            return []

    def has_module(self, name: str) -> bool:
        """Tell whether a kernel module is loaded."""
        modules = self.text("proc/modules") or ""
        is_listed = any(line.split(" ", 1)[0] == name for line in modules.splitlines())
        return is_listed or self.exists(f"sys/module/{name}")

    def container(self) -> str:
        """Say by what this seems to be a container; empty where nothing shows it."""
        for kind, mark in _CONTAINER_MARKS.items():
            if self.exists(mark):
                return f"{kind} (/{mark})"
        groups = self.text("proc/1/cgroup") or ""
        for word in _CONTAINER_WORDS:
            if word in groups:
                return f"{word} (/proc/1/cgroup)"
        return ""

"""The complete steps below an URL: the copies of a root in an object store."""

from __future__ import annotations

import contextlib
import functools

from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.errors import FormatError, ObjectNotFoundError
from gdsckpt.format import manifest as manifest_format
from gdsckpt.format.manifest import MANIFEST_NAME, Manifest
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.remote.opening import prefix_of, read_raw_manifest
from gdsckpt.staging import root
from gdsckpt.store import open_store
from gdsckpt.store.base import Store, list_all


class RemoteSteps:
    """The steps below one URL. For one thread at a time.

    A manifest is read once: what an attempt put there stays as it is, or is replaced as a whole.

    Args:
        url: Below it are the steps, each as a root names them.
        config: Settings.
    """

    def __init__(self, url: str, config: Config) -> None:
        self.url = url.rstrip("/")
        self._config = config
        self._known: dict[str, tuple[str, Manifest | None]] = {}

    def url_of(self, step: int) -> str:
        """Give the URL of a step, whether it is there or not."""
        return f"{self.url}/{root.step_directory(self.url, step).name}"

    def manifests(self) -> dict[int, Manifest]:
        """Give the manifests of the steps whose upload was completed, by step.

        A damaged manifest, or one that names another step, counts as none.

        Raises:
            StoreError: The store cannot be asked.
            ConfigError: It is no URL of a store.
        """
        store, key = open_store(self.url, self._config)
        with contextlib.closing(store), Crew(self._config.upload_concurrency) as crew:
            prefix = prefix_of(key)
            names = [
                each.removeprefix(prefix).rstrip("/")
                for each in list_all(store, prefix, delimiter="/")
                if isinstance(each, str)
            ]
            steps = {name: step for name in names if (step := root.step_of(name)) is not None}
            jobs = [functools.partial(self._look, store, prefix, name) for name in steps]
            base.wait(crew.start(jobs, Work(0, store.interrupt)))
        found = ((step, self._known.get(name, ("", None))[1]) for name, step in steps.items())
        return {
            step: manifest
            for step, manifest in sorted(found, key=lambda pair: pair[0])
            if manifest is not None and manifest.step == step
        }

    def _look(self, store: Store, prefix: str, name: str) -> None:
        """Learn the manifest of one step, unless it is the one that is known."""
        below = f"{prefix}{name}/"
        try:
            etag = store.head(below + MANIFEST_NAME).etag
            if etag and self._known.get(name, ("", None))[0] == etag:
                return
            raw = read_raw_manifest(store, below)
            manifest = manifest_format.decode(raw, f"{store.url}/{below}{MANIFEST_NAME}")
            self._known[name] = (etag, manifest)
        except (ObjectNotFoundError, FormatError):
            self._known[name] = ("", None)

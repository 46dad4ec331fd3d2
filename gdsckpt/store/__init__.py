"""Object stores: one interface, three kinds, composed in one place."""

from gdsckpt.store.base import Store
from gdsckpt.store.url import is_url, parse_url, redact

__all__ = ["Store", "is_url", "parse_url", "redact"]

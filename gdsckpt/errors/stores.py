"""Errors of object stores."""

import errno
import os
from typing import Any, ClassVar

from gdsckpt.errors.base import GdsckptError


class StoreError(GdsckptError):
    """An object store refused an operation, or could not be reached.

    Attributes:
        op: The operation, a method of ``gdsckpt.store.base.Store``, or None.
        key: Key of the object, or None.
        attempts: How often it was tried.
        status: HTTP status of the answer, or None where there was none.
        code: Error code of S3, such as ``SlowDown``, or None.
        retryable: Whether the same call may succeed later.
    """

    _os_errno: ClassVar[int | None] = None
    """For subclasses that are an ``OSError`` too: which one they stand for."""

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        key: str | None = None,
        attempts: int = 1,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.op = op
        self.key = key
        self.attempts = attempts
        self.status = status
        self.code = code
        self.retryable = retryable
        if self._os_errno is not None:
            as_os_error: Any = self
            as_os_error.errno = self._os_errno
            as_os_error.strerror = os.strerror(self._os_errno)
            as_os_error.filename = key


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is no such object, or no such bucket."""

    _os_errno = errno.ENOENT


class AccessDeniedError(StoreError, PermissionError):
    """The credentials for an object store are missing, wrong or expired, or allow too little."""

    _os_errno = errno.EACCES

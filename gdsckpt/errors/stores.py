"""Errors of object stores."""

import errno as _errno
import os

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


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is no such object, or no such bucket."""

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
        super().__init__(
            message,
            op=op,
            key=key,
            attempts=attempts,
            status=status,
            code=code,
            retryable=retryable,
        )
        self.errno = _errno.ENOENT
        self.strerror = os.strerror(_errno.ENOENT)
        self.filename = key


class AccessDeniedError(StoreError, PermissionError):
    """The credentials for an object store are missing, wrong or expired, or allow too little."""

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
        super().__init__(
            message,
            op=op,
            key=key,
            attempts=attempts,
            status=status,
            code=code,
            retryable=retryable,
        )
        self.errno = _errno.EACCES
        self.strerror = os.strerror(_errno.EACCES)
        self.filename = key

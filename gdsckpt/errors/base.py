"""What all errors of gdsckpt have in common: named fields that survive ``pickle`` and ``copy``."""

import inspect
import os
from typing import Any, ClassVar

StrPath = str | os.PathLike[str]


def path_text(path: StrPath | None) -> str | None:
    """Give a path as text; None for none."""
    return None if path is None else os.fspath(path)


def _rebuild(cls: "type[GdsckptError]", message: str, fields: dict[str, Any]) -> "GdsckptError":
    return cls(message, **fields)


class GdsckptError(Exception):
    """Base of all errors of gdsckpt.

    The keyword-only parameters of a class's constructor are its fields: each is an attribute of
    that name, and all are rebuilt by ``pickle`` and ``copy`` together with the notes added by
    ``add_note``.

    Attributes:
        retryable: True when the same call may succeed later without a change by the caller.
        field_names: Names of the fields of this class, in the order of its constructor.
    """

    retryable: bool = False
    field_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str) -> None:
        """Make the error; ``message`` says what failed, why, and what to do."""
        super().__init__(message)

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Read the field names off the constructor, so that they are declared once."""
        super().__init_subclass__(**kwargs)
        parameters = inspect.signature(cls.__init__).parameters.values()
        cls.field_names = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def __str__(self) -> str:
        """Give the message; ``OSError`` would print errno and file name in its place."""
        return str(self.args[0]) if self.args else ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of this error by name."""
        return {name: getattr(self, name) for name in self.field_names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from message and fields; ``Exception.__reduce__`` drops keyword arguments."""
        state = dict(self.__dict__)
        if "__notes__" in state:
            # A shared list would let a note on a copy appear on the original.
            state["__notes__"] = list(state["__notes__"])
        return _rebuild, (type(self), str(self), self.fields), state


class ConfigError(GdsckptError, ValueError):
    """A setting or an argument has a value that cannot be used.

    Attributes:
        field: Name of the setting or argument, or None.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field

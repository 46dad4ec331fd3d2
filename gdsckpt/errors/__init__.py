"""Every exception and warning that a public function of gdsckpt raises.

Each class keeps the builtin parent that a caller would expect (a missing checkpoint is a
``FileNotFoundError``, a full disk an ``OSError`` with its ``errno``), carries its facts as named
fields, and survives ``pickle`` and ``copy``: torch.distributed.checkpoint sends the exception of
each rank to the coordinator that way.
"""

from gdsckpt.errors.base import ConfigError, GdsckptError, StrPath
from gdsckpt.errors.checkpoints import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ChecksumError,
    FormatError,
    RootLockedError,
    SnapshotBusyError,
    StateMismatchError,
    TimeoutExpiredError,
    TornSnapshotError,
    UnpickleError,
    UnsafePickleError,
    UnsupportedVersionError,
)
from gdsckpt.errors.storage import (
    CudaError,
    CuFileError,
    EngineUnavailableError,
    ShortTransferError,
    StorageError,
    storage_error_from,
)
from gdsckpt.errors.stores import AccessDeniedError, ObjectNotFoundError, StoreError
from gdsckpt.errors.warnings import (
    DamagedCheckpointWarning,
    FallbackWarning,
    GdsckptWarning,
    StaleSaveWarning,
    UnverifiedWarning,
)

__all__ = [
    "ConfigError",
    "GdsckptError",
    "StrPath",
    "CheckpointExistsError",
    "CheckpointNotFoundError",
    "ChecksumError",
    "FormatError",
    "RootLockedError",
    "SnapshotBusyError",
    "StateMismatchError",
    "TimeoutExpiredError",
    "TornSnapshotError",
    "UnpickleError",
    "UnsafePickleError",
    "UnsupportedVersionError",
    "CudaError",
    "CuFileError",
    "EngineUnavailableError",
    "ShortTransferError",
    "StorageError",
    "storage_error_from",
    "AccessDeniedError",
    "ObjectNotFoundError",
    "StoreError",
    "DamagedCheckpointWarning",
    "FallbackWarning",
    "GdsckptWarning",
    "StaleSaveWarning",
    "UnverifiedWarning",
]

"""What the files of a root are, whatever their random names: the same in every run."""

import hashlib
import os
import re
from pathlib import Path


def tree(root):
    """List what is in a root, with what differs from run to run left out."""
    return sorted(role_of(path, root) for path in Path(root).rglob("*"))


_MANIFEST_STEM = hashlib.blake2b(b"manifest.json", digest_size=8).hexdigest()
_ROLES = (
    (rf"\.gdsckpt-tmp-{_MANIFEST_STEM}-[0-9a-f]{{16}}", "manifest.tmp"),
    (r"\.gdsckpt-tmp-[0-9a-f]{16}-[0-9a-f]{16}", "shard.tmp"),
    (r"\.gdsckpt-store-put-[0-9a-f]{16}-[0-9a-f]{16}", "put.tmp"),
    (r"rank-00000\.[0-9a-f]{16}\.pt", "shard"),
    # In which order a directory is deleted is up to the file system.
    (r"(?<=pruned/)step-\d{8}\.[0-9a-f]{8}/.+", "step/file"),
    (r"step-\d{8}(\.[0-9a-f]{8})?", "step"),
)


def role_of(path, base):
    """Name a file by what it is: the same name in every run and for every step."""
    role = os.path.relpath(path, base)
    for pattern, name in _ROLES:
        role = re.sub(pattern, name, role)
    return role

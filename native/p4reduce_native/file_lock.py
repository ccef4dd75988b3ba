# SPDX-License-Identifier: Apache-2.0
"""Locks of files, and what holds where a file system has none.

Some have no locks: Lustre as it is mounted by default, NFS without its lock daemon, and some that
run in user space. There `flock` fails with ENOSYS, ENOLCK or another error. Nobody can hold a lock
then, so the caller goes on without one. A warning says that nothing keeps a second process out.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

# NFS and SMB report the second where others report the first.
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


def lock_file(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Lock an open file; the lock ends with its descriptor.

    Args:
        descriptor: of the file.
        path: of it, for the warning.
        wait: until no other process holds it.

    Returns:
        Whether it is locked. False: there are no locks here.

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _HELD:
            raise BlockingIOError(
                errno.EWOULDBLOCK, "another process holds it", os.fspath(path)
            ) from None
        _warn(path.parent, error.strerror or str(error))
        return False
    return True


@functools.cache
def _warn(directory: Path, reason: str) -> None:
    """Say it once for each directory: a cache has many files."""
    log.warning(
        "files in %s cannot be locked (%s): nothing keeps a second process out of them",
        directory,
        reason,
    )

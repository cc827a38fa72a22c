# SPDX-License-Identifier: Apache-2.0
"""The secret that prefill and decode workers share, read from a file that others cannot read."""

from __future__ import annotations

import os
import stat

from rtp_llm.config.options import SettingsError

SHORTEST_BYTES = 16
LONGEST_BYTES = 4096
_OTHERS = stat.S_IROTH | stat.S_IWOTH


def read_worker_key(path: str) -> bytes:
    """Return the contents of the file without surrounding white space.

    Raises SettingsError if it cannot be read, is not a regular file, is readable or writable by
    others, or holds fewer than SHORTEST_BYTES or more than LONGEST_BYTES.
    """
    try:
        # Non-blocking, so that a pipe is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"worker_key_file: cannot read {path!r}: {reason}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SettingsError(f"worker_key_file: {path!r} is not a regular file")
        if mode & _OTHERS:
            raise SettingsError(
                f"worker_key_file: everybody can read or write {path!r} (mode "
                f"{stat.S_IMODE(mode):o}); chmod 600 it"
            )
        key = os.read(descriptor, LONGEST_BYTES + 3).strip()
    finally:
        os.close(descriptor)
    if not SHORTEST_BYTES <= len(key) <= LONGEST_BYTES:
        raise SettingsError(
            f"worker_key_file: the key in {path!r} has {len(key)} bytes, not {SHORTEST_BYTES} to "
            f"{LONGEST_BYTES}; make one with: openssl rand -hex 32"
        )
    return key

"""The exceptions: one class for each kind of error of the engine, by its name.

The extension looks a class up by the name of the kind. Some classes have a second base, so that code which does not
know Siltstone catches them as well.
"""

from __future__ import annotations

import builtins


class Error(Exception):
    """An error of the database. Its text names the file, the offset, the key or the limit."""

    #: The kind, which is the name of the class.
    kind: str = "Error"
    #: Whether the same call may succeed later without any other action.
    is_retryable: bool = False
    #: The file of the failed operation or of the damage.
    file: str | None = None
    #: The offset of the damage in the file.
    offset: int | None = None
    #: The partition of the damage.
    partition: str | None = None
    #: The level of the damaged table.
    level: int | None = None
    #: The damaged key, if it is known.
    key: bytes | None = None
    #: The first and the last key that may be damaged, if the key is not known.
    keys: tuple[bytes, bytes] | None = None


class Io(Error, OSError):
    """A file operation failed. ``errno`` is the number of the operating system."""


class NoSpace(Error, OSError):
    """The device is full. Reads continue; writes succeed again when there is space."""


class Corruption(Error):
    """Stored bytes differ from the written bytes."""


class Locked(Error):
    """Another process, or another handle, has the database open for writing."""


class LimitExceeded(Error, ValueError):
    """A key, value, batch or count exceeds a limit; nothing was written."""


class InvalidArgument(Error, ValueError):
    """An argument or a combination of options is invalid; nothing was done."""


class ReservedKey(Error, ValueError):
    """The key has an ending that the partition reserves; nothing was written."""


class WouldStall(Error):
    """The call would have to wait for compactions; nothing was written."""


class Conflict(Error):
    """Another writer changed what the batch or transaction depends on; nothing was written."""


class LockTimeout(Error, builtins.TimeoutError):
    """Another transaction has the lock of a key, and did not end within the time limit."""


class Deadlock(Error):
    """The transaction waits for a key whose owner waits for the transaction. Roll it back and repeat the work."""


class PartitionNotFound(Error, LookupError):
    """The partition does not exist, or was dropped."""


class ReadOnly(Error):
    """The store refuses writes: it was opened read-only, or a sync of its log failed."""


class Closed(Error):
    """The database, snapshot or stream is closed, or belongs to the parent of this process."""


class HookPanicked(Error):
    """A hook panicked, or a function of the application that is one raised an exception, which is the cause where the
    call itself has run it. The job or call failed as a whole."""


class Internal(Error):
    """Code of the engine panicked: a bug."""


class Unsupported(Error):
    """The files need a newer version, a feature that this one does not know, or a fork came before the open."""


class FileGone(Error):
    """The primary deleted a file that a secondary reads."""


class NeedsManifest(Error):
    """The manifest that a secondary reads is too old, or changed all the time while it was read."""


class SessionLost(Error):
    """The token names a commit that this database will never have."""


class LeaseLost(Error):
    """A secondary lost its lease, and with it files that it read."""


class TooOld(Error):
    """The log does not reach back to the position of a feed of changes."""


class NotLogged(Error):
    """The partition has no log: a secondary sees it only as of its last flush."""


class Behind(Error, builtins.TimeoutError):
    """A secondary could not catch up to the requested position within its time limit."""


class Fenced(Error):
    """Another process has taken the database over. No write of this handle will succeed again."""

"""Siltstone: an embeddable key-value store with partitions, transactions and snapshots.

    import siltstone

    with siltstone.open("data") as db:
        users = db.partition("users")
        users[b"alice"] = b"admin"
        for key, value in users.scan(prefix=b"a"):
            print(key, value)

Keys and values are bytes, and keys sort bytewise. Every object may be used by several threads; other threads run
while a call waits. docs/bindings.md has the guide.
"""

from ._errors import (
    Behind,
    Closed,
    Conflict,
    Corruption,
    Deadlock,
    Error,
    Fenced,
    FileGone,
    HookPanicked,
    Internal,
    InvalidArgument,
    Io,
    LeaseLost,
    LimitExceeded,
    Locked,
    LockTimeout,
    NeedsManifest,
    NoSpace,
    NotLogged,
    PartitionNotFound,
    ReadOnly,
    ReservedKey,
    SessionLost,
    TooOld,
    Unsupported,
    WouldStall,
)
from ._options import LargeValueOptions, OpenOptions, PartitionOptions, TtlRule
from ._siltstone import (
    Batch,
    Commit,
    Db,
    EntryIterator,
    Partition,
    Snapshot,
    Transaction,
    Updated,
    ValueWriter,
    open,
)
from ._streams import ValueReader

__all__ = [
    "Batch",
    "Behind",
    "Closed",
    "Commit",
    "Conflict",
    "Corruption",
    "Db",
    "Deadlock",
    "EntryIterator",
    "Error",
    "Fenced",
    "FileGone",
    "HookPanicked",
    "Internal",
    "InvalidArgument",
    "Io",
    "LargeValueOptions",
    "LeaseLost",
    "LimitExceeded",
    "LockTimeout",
    "Locked",
    "NeedsManifest",
    "NoSpace",
    "NotLogged",
    "OpenOptions",
    "Partition",
    "PartitionNotFound",
    "PartitionOptions",
    "ReadOnly",
    "ReservedKey",
    "SessionLost",
    "Snapshot",
    "TooOld",
    "Transaction",
    "TtlRule",
    "Unsupported",
    "Updated",
    "ValueReader",
    "ValueWriter",
    "WouldStall",
    "open",
]

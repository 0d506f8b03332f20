"""The classes of the extension. The package ``siltstone`` exports them.

``Buffer`` is any object with the buffer protocol. ``bytes`` are read without a copy, other buffers are copied. ``sync``
waits until the device has the write; without it a write survives a killed process at once, and a power cut after
``sync_interval_ms``.
"""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Generic, Literal, Protocol, TypeVar, final, overload

from typing_extensions import Buffer, Self, Unpack

from ._hooks import Decision
from ._options import (
    BackupInfo,
    Bounds,
    EngineOptions,
    Event,
    Lag,
    OpenOptions,
    PartitionOptions,
    RepairReport,
    ResourceOptions,
    ResourceUsage,
)
from ._streams import ValueReader

__all__ = [
    "BackupEngine",
    "Batch",
    "BlobSource",
    "Change",
    "Changes",
    "Commit",
    "CompactionFilter",
    "Cursor",
    "Db",
    "EntryIterator",
    "EventListener",
    "FeedItem",
    "MergeOperator",
    "Partition",
    "Reading",
    "Resources",
    "Secondary",
    "SecondaryPartition",
    "Snapshot",
    "Transaction",
    "Updated",
    "Value",
    "ValueWriter",
    "forget_hooks",
    "hook_threads",
    "hooks_under_way",
    "open",
    "open_secondary",
    "refuse_hooks",
    "repair",
]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

class _Reads(Protocol):
    def read(self, size: int, /) -> Buffer: ...

class _Writes(Protocol):
    def write(self, data: bytes, /) -> int | None: ...

def repair(
    path: str | PathLike[str], into: str | PathLike[str], **options: Unpack[OpenOptions]
) -> RepairReport:
    """Write everything that can be read of the database in the folder ``path``, which is not changed, to a new one in the
    folder ``into``, which must be empty. ``options`` supply the hooks that its partitions need."""

def open(path: str | PathLike[str], **options: Unpack[OpenOptions]) -> Db:
    """Open the database in the folder ``path``, and make it if it does not exist.

    Raises ``Locked`` if another process has it open, and ``Corruption`` if the manifest or the log is damaged.
    """

def refuse_hooks() -> None:
    """Refuse every later call of a hook."""

def hooks_under_way() -> int:
    """Return how many calls of hooks have Python, or wait for it."""

def hook_threads() -> list[int]:
    """Return the numbers of the threads that run a hook."""

def forget_hooks() -> None:
    """Forget the threads of the parent, in a child."""

def open_secondary(
    path: str | PathLike[str],
    *,
    lease: bool = True,
    tables_only: bool = False,
    memtable_bytes_max: int | None = None,
    **options: Unpack[EngineOptions],
) -> Secondary:
    """Open a read-only instance that follows the database in ``path``, which another process writes.

    ``lease`` keeps the writer from deleting the files that the secondary reads. ``tables_only`` follows no log: a
    partition is then as of its last flush. ``memtable_bytes_max`` bounds the memory for the part of the log.
    """

@final
class Db:
    """An open database. As a context manager it is closed at the end of the block."""

    @property
    def path(self) -> Any:
        """The folder."""

    def partition(
        self, name: str = "default", *, create: bool = True, **options: Unpack[PartitionOptions]
    ) -> Partition:
        """Open the partition ``name``, and make it if it does not exist and ``create`` is true.

        Options are stored with the partition. Those that the call does not name stay as they are.
        """

    def has_partition(self, name: str) -> bool:
        """Return whether there is a partition ``name``."""

    def partition_names(self) -> list[str]:
        """Return the names of all partitions, in order."""

    def drop_partition(self, name: str) -> None:
        """Drop the partition ``name`` with its data."""

    def batch(self, *, sync: bool = False) -> Batch:
        """Return an empty batch. ``sync`` is for its commit at the end of a ``with`` block."""

    def transaction(self, *, sync: bool = False) -> Transaction:
        """Begin a transaction. ``sync`` is for its commit at the end of a ``with`` block."""

    def transact(
        self,
        work: Callable[[Transaction], _T],
        *,
        sync: bool = False,
        attempts_max: int | None = None,
    ) -> _T:
        """Call ``work`` with a transaction, commit it, and return the result. Repeat all of it after a conflict or a
        deadlock. An exception of ``work`` rolls the transaction back and is raised."""

    def snapshot(self) -> Snapshot:
        """Take a snapshot of the whole database."""

    @property
    def visible_seq(self) -> int:
        """The sequence number of the newest operation that readers see."""

    @property
    def durable_seq(self) -> int:
        """The sequence number through which all commits are on the device, but for those to partitions without a log."""

    def wait_durable(self, seq: int) -> None:
        """Wait until the commit ``seq`` is on the device. One to a partition without a log is only after a ``flush``."""

    def changes(
        self, position: int | Commit | None = None, *, partition: str | None = None, prefix: Buffer | None = None
    ) -> Changes:
        """Return the commits after a position in their order, as far as they are durable: all, those of one partition,
        or those of keys with a prefix. Raises ``SessionLost`` for a ``Commit`` that is not in the history."""

    @property
    def is_fenced(self) -> bool:
        """Whether another process has taken the database over."""

    def set_background_bytes_per_second(self, bytes: int) -> None:
        """Change the bytes a second that flushes and compactions write, also of those that run now; 0 is no limit."""

    def flush(self) -> None:
        """Write the memtables of all partitions to tables."""

    def wait_idle(self) -> None:
        """Wait until no background work is left."""

    def checkpoint(self, dir: str | PathLike[str]) -> int:
        """Copy the database to the folder ``dir``, by hard links where it can. Return the sequence number of the last
        commit in the copy."""

    def export_stream(
        self,
        file: _Writes,
        *,
        partitions: Sequence[str] | None = None,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        format: Literal["checked", "berkeley_text"] = "checked",
    ) -> dict[str, int]:
        """Write the entries of ``partitions``, or of all, as they are now: a stream with checksums, or the text of Berkeley
        DB. Return the numbers of ``entries`` and ``bytes``. docs/portability.md describes both."""

    def import_stream(
        self,
        file: _Reads,
        *,
        partition: str | None = None,
        resume: bool = False,
        large_values: bool = False,
    ) -> dict[str, int]:
        """Put the entries of an exported stream or text, into ``partition`` or into those that it names. ``resume``
        writes only what differs from what is there. Return ``entries``, ``bytes`` and ``skipped``."""

    def stats(self) -> dict[str, Any]:
        """Return the statistics, as ``Stats`` of the Rust documentation names them."""

    def health(self) -> dict[str, Any]:
        """Return failures, stalls and the distance to limits, as ``Health`` of the Rust documentation names them."""

    def verify(self, *, bytes_per_second: int = 0) -> dict[str, Any]:
        """Read every file. Return ``is_sound``, the counts ``files``, ``bytes`` and ``entries``, a list ``damage``
        whose items have ``message``, ``file``, ``offset``, ``partition``, ``level``, ``key`` and ``keys``, and a list
        ``unsupported`` of messages about files that this build cannot read."""

    def close(self) -> None:
        """Close the database: end background work, and sync the log. Later calls on it, and on all that came of it,
        raise ``Closed``. A second call does nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class Partition:
    """A key space with its own tables and options. Like a dict, ``partition[key]`` reads, sets and deletes;
    ``del`` of a missing key is no error."""

    @property
    def name(self) -> str:
        """The name."""

    @overload
    def get(self, key: Buffer, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: Buffer, default: _T) -> bytes | _T:
        """Return the value of ``key``, or ``default``."""

    def get_ref(self, key: Buffer) -> memoryview | None:
        """Return the value of ``key`` as a memoryview that is read-only. Values in chunk files are mapped and not
        copied, where the platform can; no value is copied to an object of Python."""

    def multi_get(self, keys: Sequence[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order and of one moment."""

    def contains(self, key: Buffer) -> bool:
        """Return whether ``key`` exists."""

    def scan(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[tuple[bytes, bytes]]:
        """Walk over keys and values: those from ``start`` on and before ``stop``, or all that begin with
        ``prefix``. It shows the state of the call."""

    def keys(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over keys, as ``scan`` does. Reads no large value."""

    def values(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over values, as ``scan`` does."""

    def cursor(self, start: Buffer | None = None, stop: Buffer | None = None) -> Cursor:
        """Return a cursor over the keys from ``start`` on and before ``stop``. It shows the state of the call."""

    def first(self) -> tuple[bytes, bytes] | None:
        """Return the first entry."""

    def last(self) -> tuple[bytes, bytes] | None:
        """Return the last entry."""

    def len_approx(self) -> int:
        """Return about how many keys there are."""

    def size_approx(self, start: Buffer | None = None, stop: Buffer | None = None) -> int:
        """Return about how many bytes of tables hold the keys from ``start`` on and before ``stop``."""

    def remaining_time(self, key: Buffer) -> float | None:
        """Return the seconds until the entry of ``key`` expires: ``inf`` if it does not, None if there is none."""

    def options(self) -> PartitionOptions:
        """Return the stored options; hooks are not among them."""

    def stats(self) -> dict[str, Any]:
        """Return the statistics, as ``PartitionStats`` of the Rust documentation names them."""

    def put(self, key: Buffer, value: Buffer, *, sync: bool = False, waits: bool = True) -> Commit:
        """Set ``key`` to ``value``. With ``waits=False`` it raises ``WouldStall`` where it would wait for compactions."""

    def delete(self, key: Buffer, *, sync: bool = False, waits: bool = True) -> Commit:
        """Delete ``key``. A key that does not exist is no error. ``waits`` as in ``put``."""

    def delete_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, *, sync: bool = False
    ) -> Commit:
        """Delete the keys from ``start`` on and before ``stop``, in one operation."""

    def delete_prefix(self, prefix: Buffer, *, sync: bool = False) -> Commit:
        """Delete the keys that begin with ``prefix``, in one operation."""

    def clear(self, *, sync: bool = False) -> Commit:
        """Delete all keys, in one operation."""

    def merge(self, key: Buffer, operand: Buffer, *, sync: bool = False) -> Commit:
        """Merge ``operand`` into the value of ``key``. The partition needs a merge operator."""

    def update(
        self, key: Buffer, change: Callable[[bytes | None], Buffer | None], *, sync: bool = False
    ) -> Updated:
        """Set ``key`` to what ``change`` makes of its value, or delete it for None. No concurrent update is lost:
        ``change`` is called again if another writer was faster."""

    def compare_and_set(
        self, key: Buffer, expected: Buffer | None, new: Buffer | None, *, sync: bool = False
    ) -> Commit | None:
        """Replace the value of ``key`` by ``new`` if it is ``expected``; None is no value. Return None if it is
        another one."""

    def flush(self) -> None:
        """Write the memtables of the partition to tables."""

    def compact(self, start: Buffer | None = None, stop: Buffer | None = None) -> None:
        """Compact the keys from ``start`` on and before ``stop`` to the bottom level."""

    def gaps(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges in which damage has lost entries, as the intact keys before and after each."""

    def repair(self, start: Buffer | None = None, stop: Buffer | None = None) -> list[tuple[bytes, bytes]]:
        """Compact a range, try to repair its damage, and return the gaps that stay."""

    def accept_loss(self, start: Buffer | None = None, stop: Buffer | None = None) -> list[tuple[bytes, bytes]]:
        """Accept the loss of the entries in the gaps of a range, so that it can be read again, and return these gaps."""

    def open_blob(self, key: Buffer) -> BlobSource | None:
        """Open the value of ``key`` for reads by offset."""

    def open_value(self, key: Buffer) -> ValueReader | None:
        """Open the value of ``key`` as a file."""

    def open_writer(self, key: Buffer | None = None, length: int | None = None) -> ValueWriter:
        """Begin a value that is written in parts. The partition must keep large values. Without a ``key`` the end of the
        writer takes it. ``length``, if it is known, saves space in chunk files."""

    def put_stream(
        self, key: Buffer, source: _Reads, *, length: int | None = None, sync: bool = False
    ) -> Commit:
        """Set ``key`` to what the file ``source`` has left. It is read 1 MiB at a time. The partition must
        keep large values."""

    def stat_value(self, key: Buffer) -> dict[str, Any] | None:
        """Return ``len``, ``stored_len`` and the time ``stored`` of the value of ``key``."""

    def __contains__(self, key: Buffer, /) -> bool: ...
    def __getitem__(self, key: Buffer, /) -> bytes: ...
    def __setitem__(self, key: Buffer, value: Buffer, /) -> None: ...
    def __delitem__(self, key: Buffer, /) -> None: ...
    def __iter__(self) -> EntryIterator[bytes]: ...

@final
class Batch:
    """Operations that are committed together. As a context manager it is committed at the end of the block, and
    discarded after an exception."""

    def put(self, partition: Partition, key: Buffer, value: Buffer) -> None:
        """Set ``key`` to ``value``."""

    def delete(self, partition: Partition, key: Buffer) -> None:
        """Delete ``key``. A key that does not exist is no error."""

    def merge(self, partition: Partition, key: Buffer, operand: Buffer) -> None:
        """Merge ``operand`` into the value of ``key``."""

    def delete_range(
        self, partition: Partition, start: Buffer | None = None, stop: Buffer | None = None
    ) -> None:
        """Delete the keys from ``start`` on and before ``stop``."""

    def delete_prefix(self, partition: Partition, prefix: Buffer) -> None:
        """Delete the keys that begin with ``prefix``."""

    def clear(self, partition: Partition) -> None:
        """Delete all keys of ``partition``."""

    def require(self, partition: Partition, key: Buffer, at_most: int) -> None:
        """Refuse the commit with ``Conflict`` if ``key`` was written after the sequence number ``at_most``."""

    def put_value(self, writer: ValueWriter, key: Buffer | None = None) -> None:
        """Set the key of ``writer``, or ``key`` if it has none, to what was written. Ends the stream."""

    def commit(self, *, sync: bool | None = None) -> Commit:
        """Commit the operations."""

    def try_commit(self, *, sync: bool | None = None) -> Commit:
        """Commit the operations, or raise ``WouldStall`` where it would have to wait for compactions."""

    def discard(self) -> None:
        """Discard the operations."""

    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class Transaction:
    """Reads and writes that are committed together, or refused with ``Conflict`` if another writer has changed what
    was read. As a context manager it is committed at the end of the block, and rolled back after an exception."""

    def snapshot(self) -> Snapshot:
        """Return the snapshot that the transaction reads."""

    @overload
    def get(self, partition: Partition, key: Buffer, default: None = None) -> bytes | None: ...
    @overload
    def get(self, partition: Partition, key: Buffer, default: _T) -> bytes | _T:
        """Return the value of ``key``, or ``default``: the newest value if ``get_for_update`` has locked the key."""

    @overload
    def get_for_update(self, partition: Partition, key: Buffer, default: None = None) -> bytes | None: ...
    @overload
    def get_for_update(self, partition: Partition, key: Buffer, default: _T) -> bytes | _T:
        """Lock ``key`` until the transaction ends, and return its newest value. Raises ``LockTimeout`` or
        ``Deadlock``."""

    def set_lock_timeout(self, timeout: float) -> None:
        """Set how many seconds a lock of a key is waited for."""

    def multi_get(self, partition: Partition, keys: Sequence[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order and of one moment."""

    def contains(self, partition: Partition, key: Buffer) -> bool:
        """Return whether ``key`` exists."""

    def scan(
        self,
        partition: Partition,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[tuple[bytes, bytes]]:
        """Walk over keys and values of ``partition``: those from ``start`` on and before ``stop``, or all that begin with
        ``prefix``. It shows the state of the call, with the own writes."""

    def keys(
        self,
        partition: Partition,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over keys, as ``scan`` does. Reads no large value."""

    def values(
        self,
        partition: Partition,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over values, as ``scan`` does."""

    def put(self, partition: Partition, key: Buffer, value: Buffer) -> None:
        """Set ``key`` to ``value``."""

    def delete(self, partition: Partition, key: Buffer) -> None:
        """Delete ``key``. A key that does not exist is no error."""

    def merge(self, partition: Partition, key: Buffer, operand: Buffer) -> None:
        """Merge ``operand`` into the value of ``key``."""

    def delete_range(
        self, partition: Partition, start: Buffer | None = None, stop: Buffer | None = None
    ) -> None:
        """Delete the keys from ``start`` on and before ``stop``."""

    def delete_prefix(self, partition: Partition, prefix: Buffer) -> None:
        """Delete the keys that begin with ``prefix``."""

    def clear(self, partition: Partition) -> None:
        """Delete all keys of ``partition``."""

    def require(self, partition: Partition, key: Buffer, at_most: int) -> None:
        """Refuse the commit with ``Conflict`` if ``key`` was written after the sequence number ``at_most``."""

    def set_savepoint(self) -> None:
        """Note a place to which the writes can be rolled back."""

    def rollback_to_savepoint(self) -> None:
        """Undo the writes since the last savepoint, and remove it."""

    def pop_savepoint(self) -> None:
        """Remove the last savepoint."""

    def commit(self, *, sync: bool | None = None) -> Commit:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Discard the transaction."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class Snapshot:
    """The whole database at one moment. As a context manager it is closed at the end of the block."""

    @property
    def seq(self) -> int:
        """The sequence number of the last operation that it shows."""

    @overload
    def get(self, partition: Partition, key: Buffer, default: None = None) -> bytes | None: ...
    @overload
    def get(self, partition: Partition, key: Buffer, default: _T) -> bytes | _T:
        """Return the value of ``key``, or ``default``."""

    def get_ref(self, partition: Partition, key: Buffer) -> memoryview | None:
        """Return the value of ``key`` as a memoryview, as ``Partition.get_ref`` does."""

    def multi_get(self, partition: Partition, keys: Sequence[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order and of one moment."""

    def contains(self, partition: Partition, key: Buffer) -> bool:
        """Return whether ``key`` exists."""

    def cursor(self, partition: Partition, start: Buffer | None = None, stop: Buffer | None = None) -> Cursor:
        """Return a cursor over the keys from ``start`` on and before ``stop``. It shows the snapshot."""

    def scan(
        self,
        partition: Partition,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[tuple[bytes, bytes]]:
        """Walk over keys and values of ``partition``: those from ``start`` on and before ``stop``, or all that begin with
        ``prefix``. It shows the state of the snapshot."""

    def keys(
        self,
        partition: Partition,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over keys, as ``scan`` does. Reads no large value."""

    def values(
        self,
        partition: Partition,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over values, as ``scan`` does."""

    def open_value(self, partition: Partition, key: Buffer) -> ValueReader | None:
        """Open the value of ``key`` as a file."""

    def close(self) -> None:
        """End the snapshot: compactions may remove what only it shows. Iterators go on."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class Secondary:
    """A read-only instance of a database that another process writes. As a context manager it is closed at the end
    of the block."""

    def partition(self, name: str) -> SecondaryPartition:
        """Open the partition ``name``."""

    def partition_names(self) -> list[str]:
        """Return the names of all partitions, as far as the secondary knows them."""

    def sync(self, to: Literal["latest", "durable"] | Commit | None = None) -> Commit:
        """Catch up: with all that is committed, with what is durable, or to a token. Return what is visible now."""

    def wait_for(self, token: Commit, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until ``token`` is visible. Raises ``Behind``."""

    def has_live_primary(self) -> bool:
        """Return whether a process of this machine writes the database."""

    def memtable_bytes(self) -> int:
        """Return the memory that the part of the log takes."""

    def verify(self, *, bytes_per_second: int = 0) -> dict[str, Any]:
        """Read every file, as ``Db.verify`` does."""

    def changes(
        self, position: int | Commit | None = None, *, partition: str | None = None, prefix: Buffer | None = None
    ) -> Changes:
        """Return the commits after a position in their order, as far as they are durable: all, those of one partition,
        or those of keys with a prefix. Raises ``SessionLost`` for a ``Commit`` that is not in the history."""

    def promote(self, **options: Unpack[OpenOptions]) -> Db:
        """Take the database over from its writer, which is fenced, and open it for writing."""

    def close(self) -> None:
        """End the secondary. Its files are free when no partition and reading of it is referenced any more."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

_Level = Literal["strong", "prefix", "eventual"] | Commit | Bounds

@final
class SecondaryPartition:
    """A partition of a secondary.

    A read has a level: ``"eventual"`` (the default), ``"prefix"``, ``"strong"``, a token of a commit that it must show, or
    bounds such as ``{"operations": 100, "age": 0.5}``. It catches up for that, up to ``wait`` seconds, and raises
    ``Behind`` then; ``weaker`` returns what there is. docs/secondary.md describes the levels.
    """

    @property
    def name(self) -> str:
        """The name."""

    @overload
    def get(
        self,
        key: Buffer,
        default: None = None,
        *,
        level: _Level | None = None,
        wait: float = 1.0,
        weaker: bool = False,
    ) -> bytes | None: ...
    @overload
    def get(
        self,
        key: Buffer,
        default: _T,
        *,
        level: _Level | None = None,
        wait: float = 1.0,
        weaker: bool = False,
    ) -> bytes | _T:
        """Return the value of ``key``, or ``default``."""

    def read(
        self, level: _Level | None = None, *, wait: float = 1.0, weaker: bool = False
    ) -> Reading:
        """Return a state of the partition, for any number of reads."""

    def sync(self, to: Literal["latest", "durable"] | Commit | None = None) -> Commit:
        """Catch this partition up, as ``Secondary.sync`` does with all of them."""

    def follow(self, follow: Literal["on_demand", "eager"] | float) -> None:
        """Catch up in the background: not at all, as soon as there is news, or each so many seconds."""

    def wait_for_news(self, seen: Commit, timeout: float) -> Commit | None:
        """Wait up to ``timeout`` seconds for a state that is newer than ``seen``; return it, or None."""

    def lag(self) -> Lag:
        """Return how far the partition is from its primary, as far as that is known."""

@final
class Reading:
    """One state of a partition of a secondary."""

    @property
    def as_of(self) -> Commit:
        """The last commit that it shows."""

    @overload
    def get(self, key: Buffer, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: Buffer, default: _T) -> bytes | _T:
        """Return the value of ``key``, or ``default``."""

    def get_ref(self, key: Buffer) -> memoryview | None:
        """Return the value of ``key`` as a memoryview, as ``Partition.get_ref`` does."""

    def multi_get(self, keys: Sequence[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order and of one moment."""

    def contains(self, key: Buffer) -> bool:
        """Return whether ``key`` exists."""

    def scan(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[tuple[bytes, bytes]]:
        """Walk over keys and values: those from ``start`` on and before ``stop``, or all that begin with
        ``prefix``. It shows this state."""

    def keys(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over keys, as ``scan`` does. Reads no large value."""

    def values(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> EntryIterator[bytes]:
        """Walk over values, as ``scan`` does."""

    def cursor(self, start: Buffer | None = None, stop: Buffer | None = None) -> Cursor:
        """Return a cursor over the keys from ``start`` on and before ``stop``. It shows this state."""

    def open_value(self, key: Buffer) -> ValueReader | None:
        """Open the value of ``key`` as a file."""

@final
class Changes:
    """The commits of a database in their order. A loop over it ends where no more commits are durable; a later loop
    goes on from there."""

    @property
    def position(self) -> Commit:
        """The position from which another feed goes on. Can be pickled."""

    def try_next(self) -> FeedItem | None:
        """Return the next item, or None if no more is durable now. Raises ``TooOld`` if the log does not reach back."""

    def wait_next(self, timeout: float) -> FeedItem | None:
        """Return the next item; wait up to ``timeout`` seconds for it."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> FeedItem: ...

@final
class FeedItem:
    """A commit, numbers that the log lacks (ingested tables, partitions without a log), or a dropped partition."""

    @property
    def kind(self) -> str:
        """``commit``, ``unlogged`` or ``dropped``."""

    @property
    def first_seq(self) -> int | None:
        """The first sequence number."""

    @property
    def seq(self) -> int | None:
        """The last sequence number."""

    @property
    def changes(self) -> list[Change]:
        """The changes of a commit, in their order."""

    @property
    def partition(self) -> str | None:
        """The name of a dropped partition."""

@final
class Change:
    """One change of a commit."""

    @property
    def partition(self) -> str:
        """The name of the partition."""

    @property
    def kind(self) -> str:
        """``put``, ``merge``, ``delete``, ``delete_range``, ``clear`` or ``damaged``."""

    @property
    def key(self) -> bytes | None:
        """The key, or the first key of a range."""

    @property
    def stop(self) -> bytes | None:
        """The key before which a range ends; None if it has no end."""

    def value(self) -> bytes | None:
        """Return the value of a put, or the operand of a merge. A large value is read now; None if it is gone."""

@final
class BackupEngine:
    """A folder of backups that share what is the same; see docs/backup.md."""

    def __new__(cls, dir: str | PathLike[str], *, bytes_per_second: int = 0) -> Self: ...
    def create_backup(self, db: Db) -> BackupInfo:
        """Make a backup of an open database."""

    def create_backup_of(self, path: str | PathLike[str]) -> BackupInfo:
        """Make a backup of the database in ``path``, which another process may write."""

    def info(self) -> list[BackupInfo]:
        """Return the backups, oldest first."""

    def verify(self, backup_id: int | None = None) -> bool:
        """Return whether each file of the backup, or of all backups, has its checksums."""

    def restore(self, backup_id: int, into: str | PathLike[str]) -> BackupInfo:
        """Make a database of a backup in an empty folder."""

    def restore_latest(self, into: str | PathLike[str]) -> BackupInfo:
        """Make a database of the newest backup in an empty folder."""

    def purge_old(self, keep: int) -> list[int]:
        """Delete all backups but the newest ``keep``; return their numbers."""

    def delete(self, backup_id: int) -> list[int]:
        """Delete a backup; return its number."""

@final
class MergeOperator:
    """A merge operator: ``function(key, existing, operands)`` returns the result of ``existing`` and of all ``operands``,
    the oldest first. ``existing`` is the value, or an older operand: the function must be associative. A key without a
    value takes its first operand as its value. ``name`` and ``params`` are stored with partitions. docs/bindings.md
    describes hooks."""

    def __new__(
        cls,
        name: str,
        function: Callable[[bytes, bytes, list[bytes]], Buffer],
        *,
        params: Buffer | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The name."""

@final
class CompactionFilter:
    """A compaction filter: ``function(key, value)`` returns ``Decision.KEEP``, ``Decision.REMOVE``, or the new value as
    bytes. ``value`` is None for a large value, which is not read. ``name`` and ``params`` are stored with partitions.
    docs/bindings.md describes hooks."""

    def __new__(
        cls,
        name: str,
        function: Callable[[bytes, bytes | None], Decision | Buffer],
        *,
        params: Buffer | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The name."""

@final
class EventListener:
    """A listener: ``function(event)`` gets each event of background work as a dict, see ``Event``. A thread of the engine
    calls it, which waits meanwhile. An exception ends that call alone, and ``Db.health()`` reports it.
    docs/bindings.md describes hooks, whose rules hold for listeners too."""

    def __new__(cls, function: Callable[[Event], object]) -> Self: ...

@final
class Resources:
    """A block cache, memory for memtables, threads, a rate of background writes and open files, which many databases share:
    ``siltstone.open(path, resources=resources)``. Databases keep what they need of it."""

    def __new__(cls, **options: Unpack[ResourceOptions]) -> Self: ...
    def set_background_bytes_per_second(self, bytes: int) -> None:
        """Change the rate of flushes and compactions of all databases, also of those that run now; 0 is no limit."""

    def usage(self) -> ResourceUsage:
        """Return what all databases together use now."""

@final
class EntryIterator(Generic[_T_co]):
    """An iterator over a range. It shows the state of the moment at which it was made, and keeps what it needs of it
    until it ends or is closed."""

    def __class_getitem__(cls, key: Any) -> Any: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> _T_co: ...
    def close(self) -> None:
        """End the iterator, and free what it holds."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class Cursor:
    """A place among the entries of a range. It shows the state of the moment at which it was made, and keeps what it needs of
    it until it is closed. It is on no entry at first. A seek returns whether there is an entry to be on."""

    @property
    def valid(self) -> bool:
        """Whether the cursor is on an entry."""

    def seek_to_first(self) -> bool:
        """Move to the first entry."""

    def seek_to_last(self) -> bool:
        """Move to the last entry."""

    def seek(self, key: Buffer) -> bool:
        """Move to the first entry whose key is ``key`` or after it."""

    def seek_before(self, key: Buffer) -> bool:
        """Move to the last entry whose key is before ``key``."""

    def next(self) -> bool:
        """Move to the next entry. The cursor must be on one."""

    def prev(self) -> bool:
        """Move to the previous entry. The cursor must be on one."""

    @property
    def key(self) -> bytes:
        """The key of the entry."""

    @property
    def value(self) -> bytes:
        """The value of the entry. A large value is read now."""

    def item(self) -> tuple[bytes, bytes]:
        """Return the key and the value of the entry, at once."""

    def close(self) -> None:
        """Free what the cursor holds."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class Commit:
    """A commit: its place in the history of the database, and the token for reads of a secondary. Can be pickled."""

    def __new__(cls, seq: int, epoch: int) -> Self: ...
    @property
    def seq(self) -> int:
        """The sequence number of its last operation."""

    @property
    def epoch(self) -> int:
        """The epoch of its writer."""

    def __getnewargs__(self) -> tuple[int, int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Updated:
    """The outcome of an update of one key."""

    @property
    def commit(self) -> Commit:
        """The commit."""

    @property
    def old(self) -> bytes | None:
        """The value before."""

    @property
    def new(self) -> bytes | None:
        """The value since."""

@final
class ValueWriter:
    """A value that is written in parts. As a context manager it is committed at the end of the block, and discarded
    after an exception."""

    def write(self, data: Buffer) -> int:
        """Append ``data``; return its length."""

    @property
    def written(self) -> int:
        """The number of bytes that were written."""

    def commit(self, key: Buffer | None = None, *, sync: bool = False) -> Commit:
        """Commit the value, as that of ``key`` if the writer was opened without one."""

    def discard(self) -> None:
        """Discard the value."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, value: object, traceback: object, /) -> None: ...

@final
class BlobSource:
    """A value that is read by offset. ``ValueReader`` makes a file of it."""

    @property
    def size(self) -> int:
        """The length of the value in bytes."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` bytes from ``offset`` on."""

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on. They must exist."""

    def close(self) -> None:
        """Free what the value holds."""

@final
class Value:
    """The exporter of the memoryviews of ``get_ref``."""

    def __len__(self) -> int: ...

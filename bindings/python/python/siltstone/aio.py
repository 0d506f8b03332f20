"""Siltstone for asyncio: calls that are awaited, and never block the loop.

    import asyncio
    from siltstone import aio

    async def main():
        async with await aio.open("data") as db:
            users = await db.partition("users")
            await users.put(b"alice", b"admin")
            async for key, value in users.scan(prefix=b"a"):
                print(key, value)

    asyncio.run(main())

Each call runs in a thread of a pool and costs a change of threads there and back, some tens of microseconds: put many
operations into one call (``multi_get``, batches, ``call``). A task that is cancelled does not stop the call that it waits for:
a write may still happen. ``blocking`` is the object of the package ``siltstone`` below, for all that has no method here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from threading import Barrier
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, final, overload

from . import _siltstone
from ._errors import Closed

if TYPE_CHECKING:
    from typing_extensions import Buffer, ParamSpec, Self, Unpack

    from ._options import Bounds, EngineOptions, OpenOptions, PartitionOptions

    _Level = Literal["strong", "prefix", "eventual"] | _siltstone.Commit | Bounds
    _P = ParamSpec("_P")

__all__ = [
    "AsyncBatch",
    "AsyncChanges",
    "AsyncDb",
    "AsyncPartition",
    "AsyncReading",
    "AsyncScan",
    "AsyncSecondary",
    "AsyncSecondaryPartition",
    "AsyncValue",
    "open",
    "open_secondary",
]

_T = TypeVar("_T")
_R = TypeVar("_R")

#: The entries and bytes that a scan takes in one call.
_GROUP_ENTRIES = 256
_GROUP_BYTES = 256 << 10

#: The bytes of a piece of a value.
_PIECE_BYTES = 1 << 20

#: The seconds for which a feed waits in one call: a thread that waits delays the end of the process so long.
_WAIT_SECONDS = 0.5


async def open(path: str | PathLike[str], *, threads: int = 8, **options: Unpack[OpenOptions]) -> AsyncDb:
    """Open the database in the folder ``path``, with up to ``threads`` calls at once; others wait for one of them.
    All threads start here: if one cannot, this raises the ``RuntimeError`` of Python."""
    pool = _pool(threads, "siltstone-aio")
    opening = _submit(pool, lambda: _siltstone.open(path, **options))
    try:
        db = await asyncio.wrap_future(opening)
    except BaseException:
        # A cancel does not stop the open, and no one gets what it returns.
        _submit(pool, lambda: opening.result().close())
        pool.shutdown(wait=False)
        raise
    return AsyncDb(db, pool)


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads have all started. A later start could fail when its call is already in the queue."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    started = Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(started.wait)
    except BaseException:
        started.abort()
        pool.shutdown(wait=False)
        raise
    return pool


def _submit(pool: ThreadPoolExecutor, work: Callable[[], _T]) -> Future[_T]:
    try:
        return pool.submit(work)
    except RuntimeError:
        # A pool ends with its database or feed, and with the interpreter. It starts no thread any more.
        ended: Future[_T] = Future()
        ended.set_exception(Closed("the database or feed is closed"))
        return ended


async def _run(pool: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    return await asyncio.wrap_future(_submit(pool, work))


async def open_secondary(
    path: str | PathLike[str], *, threads: int = 4, lease: bool = True, **options: Unpack[EngineOptions]
) -> AsyncSecondary:
    """Open a read-only instance that follows the database in ``path``, as ``siltstone.open_secondary`` does, with up to
    ``threads`` calls at once."""
    pool = _pool(threads, "siltstone-aio")
    opening = _submit(pool, lambda: _siltstone.open_secondary(path, lease=lease, **options))
    try:
        secondary = await asyncio.wrap_future(opening)
    except BaseException:
        _submit(pool, lambda: opening.result().close())
        pool.shutdown(wait=False)
        raise
    return AsyncSecondary(secondary, pool)


class _Pooled:
    """What has a pool of threads, and ends it with its close."""

    def __init__(self, pool: ThreadPoolExecutor, close: Callable[[], None]) -> None:
        self._pool = pool
        self._close = close
        self._closing: Future[None] | None = None

    async def call(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run ``function`` in a thread of the pool, for a unit of work of many calls: ``await db.call(work, users.blocking)``."""
        return await _run(self._pool, lambda: function(*args, **kwargs))

    async def close(self) -> None:
        """Close it, and end the threads. Later calls raise ``Closed``. A close that is cancelled goes on, and another one
        waits for its end."""
        if self._closing is None:
            self._closing = _submit(self._pool, self._close)
            # Ends when that has run.
            self._pool.shutdown(wait=False)
        # A cancel would take the close out of the queue.
        await asyncio.shield(asyncio.wrap_future(self._closing))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object, /) -> None:
        await self.close()


@final
class AsyncDb(_Pooled):
    """An open database. ``async with`` closes it at the end of the block."""

    def __init__(self, db: _siltstone.Db, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool, db.close)
        self._db = db

    @property
    def blocking(self) -> _siltstone.Db:
        """The database, whose calls block."""
        return self._db

    async def partition(
        self, name: str = "default", *, create: bool = True, **options: Unpack[PartitionOptions]
    ) -> AsyncPartition:
        """Open the partition ``name``, as ``Db.partition`` does."""
        opened = await self.call(self._db.partition, name, create=create, **options)
        return AsyncPartition(self, opened)

    async def partition_names(self) -> list[str]:
        """Return the names of all partitions."""
        return await self.call(self._db.partition_names)

    async def drop_partition(self, name: str) -> None:
        """Drop a partition with its data."""
        await self.call(self._db.drop_partition, name)

    def batch(self, *, sync: bool = False) -> AsyncBatch:
        """Return an empty batch. ``async with`` commits it at the end of the block, and discards it after an exception."""
        return AsyncBatch(self, self._db.batch(sync=sync))

    async def transact(
        self,
        work: Callable[[_siltstone.Transaction], _T],
        *,
        sync: bool = False,
        attempts_max: int | None = None,
    ) -> _T:
        """Run ``work`` in a transaction, again after each conflict, as ``Db.transact`` does. It is a plain function, which
        runs in a thread of the pool and uses the ``blocking`` partitions."""
        return await self.call(self._db.transact, work, sync=sync, attempts_max=attempts_max)

    def changes(
        self, position: int | _siltstone.Commit = 0, *, partition: str | None = None, prefix: Buffer | None = None
    ) -> AsyncChanges:
        """Follow the commits after a position, as ``Db.changes`` does. The feed has a thread of its own."""
        return AsyncChanges(position, lambda: self._db.changes(position, partition=partition, prefix=prefix))

    async def wait_durable(self, seq: int) -> None:
        """Wait until the commit ``seq`` is on the device. One to a partition without a log is only after a ``flush``."""
        await self.call(self._db.wait_durable, seq)

    async def flush(self) -> None:
        """Write the memtables of all partitions to tables."""
        await self.call(self._db.flush)


@final
class AsyncPartition:
    """A partition of an ``AsyncDb``."""

    def __init__(self, db: AsyncDb, partition: _siltstone.Partition) -> None:
        self._db = db
        self._partition = partition

    @property
    def blocking(self) -> _siltstone.Partition:
        """The partition, whose calls block."""
        return self._partition

    @property
    def name(self) -> str:
        """The name."""
        return self._partition.name

    @overload
    async def get(self, key: Buffer, default: None = None) -> bytes | None: ...
    @overload
    async def get(self, key: Buffer, default: _T) -> bytes | _T: ...
    async def get(self, key: Buffer, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""
        return await self._db.call(self._partition.get, key, default)

    async def multi_get(self, keys: Sequence[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order and of one moment."""
        return await self._db.call(self._partition.multi_get, keys)

    async def contains(self, key: Buffer) -> bool:
        """Return whether ``key`` exists."""
        return await self._db.call(self._partition.contains, key)

    async def put(self, key: Buffer, value: Buffer, *, sync: bool = False) -> _siltstone.Commit:
        """Set ``key`` to ``value``."""
        return await self._db.call(self._partition.put, key, value, sync=sync)

    async def delete(self, key: Buffer, *, sync: bool = False) -> _siltstone.Commit:
        """Delete ``key``."""
        return await self._db.call(self._partition.delete, key, sync=sync)

    async def merge(self, key: Buffer, operand: Buffer, *, sync: bool = False) -> _siltstone.Commit:
        """Merge ``operand`` into the value of ``key``."""
        return await self._db.call(self._partition.merge, key, operand, sync=sync)

    async def update(
        self, key: Buffer, change: Callable[[bytes | None], Buffer | None], *, sync: bool = False
    ) -> _siltstone.Updated:
        """Set ``key`` to what ``change`` makes of its value, as ``Partition.update`` does. It runs in a thread."""
        return await self._db.call(self._partition.update, key, change, sync=sync)

    async def compare_and_set(
        self, key: Buffer, expected: Buffer | None, new: Buffer | None, *, sync: bool = False
    ) -> _siltstone.Commit | None:
        """Replace the value of ``key`` by ``new`` if it is ``expected``."""
        return await self._db.call(self._partition.compare_and_set, key, expected, new, sync=sync)

    async def delete_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, *, sync: bool = False
    ) -> _siltstone.Commit:
        """Delete the keys from ``start`` on and before ``stop``, in one operation."""
        return await self._db.call(self._partition.delete_range, start, stop, sync=sync)

    async def clear(self, *, sync: bool = False) -> _siltstone.Commit:
        """Delete all keys, in one operation."""
        return await self._db.call(self._partition.clear, sync=sync)

    def scan(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncScan[tuple[bytes, bytes]]:
        """Walk over keys and values, as ``Partition.scan`` does: ``async for key, value in users.scan()``. It shows the state
        at the first step."""
        return AsyncScan(
            self._db, lambda: self._partition.scan(start, stop, prefix=prefix, reverse=reverse), _entry_bytes
        )

    def keys(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncScan[bytes]:
        """Walk over keys, as ``scan`` does. Reads no large value."""
        return AsyncScan(self._db, lambda: self._partition.keys(start, stop, prefix=prefix, reverse=reverse), len)

    async def put_stream(
        self, key: Buffer, source: AsyncIterable[Buffer], *, length: int | None = None, sync: bool = False
    ) -> _siltstone.Commit:
        """Set ``key`` to the pieces that ``source`` yields, one after the other. The partition must keep large values.
        Nothing is set if ``source`` raises, or if the task is cancelled before the commit has begun."""
        writer = await self._db.call(self._partition.open_writer, key, length)
        try:
            async for piece in source:
                await self._db.call(writer.write, piece)
            return await self._db.call(writer.commit, sync=sync)
        except BaseException:
            # After a commit that has begun it does nothing.
            _submit(self._db._pool, writer.discard)
            raise

    async def open_value(self, key: Buffer) -> AsyncValue | None:
        """Open the value of ``key`` for reads in parts: ``async for piece in value``."""
        blob = await self._db.call(self._partition.open_blob, key)
        return None if blob is None else AsyncValue(self._db, blob)


@final
class AsyncValue:
    """A value that is read in parts. It shows the value of the moment at which it was opened. ``async with`` closes it at the
    end of the block."""

    def __init__(self, db: _Pooled, blob: _siltstone.BlobSource) -> None:
        self._db = db
        self._blob = blob

    @property
    def size(self) -> int:
        """The length of the value in bytes."""
        return self._blob.size

    async def read_at(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` bytes from ``offset`` on."""
        return await self._db.call(self._blob.read_at, offset, count)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Walk over the value in pieces of 1 MiB."""
        for offset in range(0, self.size, _PIECE_BYTES):
            yield await self.read_at(offset, _PIECE_BYTES)

    def close(self) -> None:
        """Free what the value holds. Does not wait."""
        _submit(self._db._pool, self._blob.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object, /) -> None:
        self.close()


@final
class AsyncSecondary(_Pooled):
    """A reader that follows the database of another process. ``async with`` closes it at the end of the block."""

    def __init__(self, secondary: _siltstone.Secondary, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool, secondary.close)
        self._secondary = secondary

    @property
    def blocking(self) -> _siltstone.Secondary:
        """The secondary, whose calls block."""
        return self._secondary

    async def partition(self, name: str) -> AsyncSecondaryPartition:
        """Open the partition ``name``."""
        return AsyncSecondaryPartition(self, await self.call(self._secondary.partition, name))

    async def partition_names(self) -> list[str]:
        """Return the names of all partitions, as far as the secondary knows them."""
        return await self.call(self._secondary.partition_names)

    async def sync(self, to: Literal["latest", "durable"] | _siltstone.Commit | None = None) -> _siltstone.Commit:
        """Catch up, as ``Secondary.sync`` does."""
        return await self.call(self._secondary.sync, to)

    async def wait_for(self, token: _siltstone.Commit, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until ``token`` is visible. Raises ``Behind``. It keeps a thread of the pool
        meanwhile, also after a cancel."""
        await self.call(self._secondary.wait_for, token, timeout)

    def changes(
        self, position: int | _siltstone.Commit = 0, *, partition: str | None = None, prefix: Buffer | None = None
    ) -> AsyncChanges:
        """Follow the commits after a position, as ``Secondary.changes`` does. The feed has a thread of its own."""
        return AsyncChanges(position, lambda: self._secondary.changes(position, partition=partition, prefix=prefix))


@final
class AsyncSecondaryPartition:
    """A partition of an ``AsyncSecondary``. The levels of its reads are those of ``SecondaryPartition``."""

    def __init__(self, secondary: AsyncSecondary, partition: _siltstone.SecondaryPartition) -> None:
        self._secondary = secondary
        self._partition = partition

    @property
    def blocking(self) -> _siltstone.SecondaryPartition:
        """The partition, whose calls block."""
        return self._partition

    @property
    def name(self) -> str:
        """The name."""
        return self._partition.name

    async def get(
        self, key: Buffer, *, level: _Level | None = None, wait: float = 1.0, weaker: bool = False
    ) -> bytes | None:
        """Return the value of ``key``, or None."""
        return await self._secondary.call(self._partition.get, key, level=level, wait=wait, weaker=weaker)

    async def read(self, level: _Level | None = None, *, wait: float = 1.0, weaker: bool = False) -> AsyncReading:
        """Return a state of the partition, for any number of reads."""
        reading = await self._secondary.call(self._partition.read, level, wait=wait, weaker=weaker)
        return AsyncReading(self._secondary, reading)

    async def sync(self, to: Literal["latest", "durable"] | _siltstone.Commit | None = None) -> _siltstone.Commit:
        """Catch this partition up, as ``Secondary.sync`` does with all of them."""
        return await self._secondary.call(self._partition.sync, to)


@final
class AsyncReading:
    """One state of a partition of a secondary."""

    def __init__(self, secondary: AsyncSecondary, reading: _siltstone.Reading) -> None:
        self._secondary = secondary
        self._reading = reading

    @property
    def as_of(self) -> _siltstone.Commit:
        """The last commit that it shows."""
        return self._reading.as_of

    async def get(self, key: Buffer) -> bytes | None:
        """Return the value of ``key``, or None."""
        return await self._secondary.call(self._reading.get, key)

    async def multi_get(self, keys: Sequence[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order."""
        return await self._secondary.call(self._reading.multi_get, keys)

    def scan(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncScan[tuple[bytes, bytes]]:
        """Walk over keys and values, as ``Reading.scan`` does."""
        return AsyncScan(
            self._secondary, lambda: self._reading.scan(start, stop, prefix=prefix, reverse=reverse), _entry_bytes
        )


def _entry_bytes(entry: tuple[bytes, bytes]) -> int:
    return len(entry[0]) + len(entry[1])


@final
class AsyncScan(Generic[_R]):
    """A walk over a range. It takes up to 256 entries or 256 KiB in one call."""

    def __init__(
        self, db: _Pooled, begin: Callable[[], _siltstone.EntryIterator[_R]], size: Callable[[_R], int]
    ) -> None:
        self._db = db
        self._begin = begin
        self._size = size
        self._iterator: _siltstone.EntryIterator[_R] | None = None

    def _take(self) -> list[_R]:
        if self._iterator is None:
            self._iterator = self._begin()
        group: list[_R] = []
        left = _GROUP_BYTES
        for entry in self._iterator:
            group.append(entry)
            left -= self._size(entry)
            if len(group) == _GROUP_ENTRIES or left <= 0:
                break
        return group

    async def __aiter__(self) -> AsyncIterator[_R]:
        """Walk, once."""
        try:
            while group := await self._db.call(self._take):
                for entry in group:
                    yield entry
        finally:
            # Of a loop that was left: nothing waits until what it holds is freed.
            if self._iterator is not None:
                _submit(self._db._pool, self._iterator.close)


@final
class AsyncBatch:
    """Operations that are committed together. They are collected in memory, without a wait."""

    def __init__(self, db: AsyncDb, batch: _siltstone.Batch) -> None:
        self._db = db
        self._batch = batch

    def put(self, partition: AsyncPartition, key: Buffer, value: Buffer) -> None:
        """Set ``key`` to ``value``."""
        self._batch.put(partition.blocking, key, value)

    def delete(self, partition: AsyncPartition, key: Buffer) -> None:
        """Delete ``key``."""
        self._batch.delete(partition.blocking, key)

    def merge(self, partition: AsyncPartition, key: Buffer, operand: Buffer) -> None:
        """Merge ``operand`` into the value of ``key``."""
        self._batch.merge(partition.blocking, key, operand)

    def delete_range(self, partition: AsyncPartition, start: Buffer | None = None, stop: Buffer | None = None) -> None:
        """Delete the keys from ``start`` on and before ``stop``."""
        self._batch.delete_range(partition.blocking, start, stop)

    async def commit(self, *, sync: bool | None = None) -> _siltstone.Commit:
        """Commit the operations. The batch has ended afterwards."""
        return await self._db.call(self._batch.commit, sync=sync)

    def discard(self) -> None:
        """Discard the operations."""
        self._batch.discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object, /) -> None:
        if kind is None:
            await self.commit()
        else:
            self.discard()


@final
class AsyncChanges:
    """A feed of changes, for one task at a time: ``async for item in changes`` never ends by itself. A cancelled wait loses
    no item."""

    def __init__(self, position: int | _siltstone.Commit, begin: Callable[[], _siltstone.Changes]) -> None:
        # A thread of its own: a feed that waits would keep one from the calls of the database.
        self._pool = _pool(1, "siltstone-aio-changes")
        self._begin = begin
        self._changes: _siltstone.Changes | None = None
        self._position = position
        self._pending: Future[tuple[_siltstone.FeedItem, _siltstone.Commit] | None] | None = None
        self._has_ended = False

    @property
    def position(self) -> int | _siltstone.Commit:
        """The position from which another feed goes on after the items that were returned."""
        return self._position

    def _next(self) -> tuple[_siltstone.FeedItem, _siltstone.Commit] | None:
        if self._changes is None:
            self._changes = self._begin()
        item = None if self._has_ended else self._changes.wait_next(_WAIT_SECONDS)
        return None if item is None else (item, self._changes.position)

    async def next(self, timeout: float | None = None) -> _siltstone.FeedItem | None:
        """Return the next item; wait up to ``timeout`` seconds for it, or for ever. Return None then."""
        loop = asyncio.get_running_loop()
        limit = None if timeout is None else loop.time() + timeout
        while True:
            if self._pending is None or self._pending.cancelled():
                self._pending = _submit(self._pool, self._next)
            left = None if limit is None else max(limit - loop.time(), 0)
            waiting = asyncio.wrap_future(self._pending)
            try:
                await asyncio.wait({waiting}, timeout=left)
            finally:
                # The call goes on without its waiter, and the next one has what it returns.
                if not waiting.cancel() and not waiting.cancelled():
                    waiting.exception()
            if not self._pending.done():
                return None
            pending = self._pending
            self._pending = None
            # By the end of an earlier wait, which reaches a call in the queue late.
            if pending.cancelled():
                continue
            if (found := pending.result()) is not None:
                item, self._position = found
                return item

    def close(self) -> None:
        """End the feed, and its thread after its last wait."""
        self._has_ended = True
        self._pool.shutdown(wait=False)

    async def __aiter__(self) -> AsyncIterator[_siltstone.FeedItem]:
        """Wait for each item, for ever."""
        while (item := await self.next()) is not None:
            yield item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object, /) -> None:
        self.close()

"""The package for asyncio: calls are awaited, and the loop runs meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone import aio


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, 60)

    # In the mode for tests, which reports a callback that takes longer than a tenth of a second.
    asyncio.run(limited(), debug=True)


def test_keys_batches_and_scans(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            users = await db.partition("users", merge_operator="append")
            assert users.name == "users" and await db.partition_names() == ["default", "users"]
            commit = await users.put(b"a", b"1", sync=True)
            await db.wait_durable(commit.seq)
            await users.merge(b"m", b"1")
            assert await users.get(b"a") == b"1" and await users.get(b"none") is None
            assert await users.get(b"none", 7) == 7 and await users.contains(b"m")
            assert await users.multi_get([b"a", b"none"]) == [b"1", None]
            await users.delete(b"m")
            assert (await users.update(b"n", lambda old: b"1")).new == b"1"
            assert await users.compare_and_set(b"n", b"1", b"2") and await users.compare_and_set(b"n", b"1", b"3") is None
            await users.delete_range(b"n", b"o")
            assert not await users.contains(b"n")
            async with db.batch() as batch:
                batch.put(users, b"b", b"2")
                batch.merge(users, b"c", b"3")
                batch.delete(users, b"a")
                batch.delete_range(users, b"x")
            assert [key async for key in users.keys()] == [b"b", b"c"]
            with pytest.raises(ValueError):
                async with db.batch(sync=True) as batch:
                    batch.put(users, b"never", b"")
                    raise ValueError
            assert [entry async for entry in users.scan(b"b", reverse=True)] == [(b"c", b"3"), (b"b", b"2")]
            await users.clear()
            assert [key async for key in users.keys()] == []
            await db.flush()
            await db.drop_partition("users")

    run(work())


def test_a_scan_takes_groups_and_can_be_left(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            users = await db.partition("users")
            async with db.batch() as batch:
                for number in range(1000):
                    batch.put(users, b"%04d" % number, bytes(1000))
            assert [key async for key in users.keys()] == [b"%04d" % number for number in range(1000)]
            assert len([entry async for entry in users.scan(prefix=b"01")]) == 100
            async for key, _ in users.scan():
                if key == b"0500":
                    break

    run(work())


def test_transactions_and_units_of_work(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path, threads=4) as db:
            users = await db.partition("users")
            p = users.blocking

            def add(t: siltstone.Transaction) -> int:
                number = int(t.get(p, b"n", b"0")) + 1
                t.put(p, b"n", b"%d" % number)
                return number

            numbers = await asyncio.gather(*(db.transact(add) for _ in range(20)))
            assert sorted(numbers) == list(range(1, 21)) and await users.get(b"n") == b"20"
            assert await db.call(lambda: list(p.scan())) == [(b"n", b"20")]
            assert db.blocking.has_partition("users")

    run(work())


def test_the_loop_runs_while_a_call_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            users = await db.partition("users")
            lock = db.blocking.transaction()
            lock.get_for_update(users.blocking, b"k")

            def wait(t: siltstone.Transaction) -> bytes | None:
                t.set_lock_timeout(30)
                return t.get_for_update(users.blocking, b"k")

            waiting = asyncio.create_task(db.transact(wait))
            # The waiter holds one thread of the pool, and no one waits for it.
            for number in range(50):
                await users.put(b"other", b"%d" % number)
            assert not waiting.done()
            lock.rollback()
            assert await waiting is None

    run(work())


def test_a_feed_waits_without_a_thread_of_the_pool(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path, threads=1) as db:
            users = await db.partition("users")
            first = await users.put(b"a", b"1", sync=True)
            async with db.changes(partition="users") as changes:
                item = await anext(aiter(changes))
                assert item.kind == "commit" and item.seq == first.seq and changes.position == first
                waiting = asyncio.create_task(changes.next())
                await asyncio.sleep(0.05)
                second = await users.put(b"b", b"2", sync=True)
                later = await waiting
                assert later is not None and later.seq == second.seq
                assert [change.key for change in later.changes] == [b"b"]
                assert await changes.next(0.01) is None
            with pytest.raises(siltstone.Closed):
                await changes.next()

    run(work())


def test_a_cancelled_wait_loses_no_item(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            users = await db.partition("users")
            start = await users.put(b"start", b"", sync=True)
            async with db.changes(start.seq) as changes:
                expected = []
                found = []
                for number in range(20):
                    waiting = asyncio.create_task(changes.next())
                    await asyncio.sleep(0.002 * (number % 3))
                    expected.append((await users.put(b"k", b"%d" % number, sync=True)).seq)
                    waiting.cancel()
                    try:
                        if (item := await waiting) is not None:
                            found.append(item.seq)
                    except asyncio.CancelledError:
                        pass
                while len(found) < 20 and (item := await changes.next(10)) is not None:
                    found.append(item.seq)
                assert found == expected

    run(work())


def test_errors_and_the_close(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(siltstone.Io):
            await aio.open(tmp_path / "none", create_if_missing=False)
        db = await aio.open(tmp_path)
        users = await db.partition("users")
        with pytest.raises(siltstone.LimitExceeded):
            await users.put(bytes(65_535), b"")
        with pytest.raises(TypeError):
            await users.get("text")  # type: ignore[call-overload]
        changes = db.changes()
        waiting = asyncio.create_task(changes.next())
        await asyncio.sleep(0.05)
        await db.close()
        with pytest.raises(siltstone.Closed):
            await waiting
        for call in (users.get(b"k"), db.flush()):
            with pytest.raises(siltstone.Closed):
                await call
        await db.close()
        changes.close()

    run(work())
    # No thread is left that would keep the process.
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("siltstone-aio") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hooks_of_python_run_under_a_loop(tmp_path: Path) -> None:
    async def work() -> None:
        operator = siltstone.MergeOperator("longest", lambda key, existing, operands: max([existing, *operands], key=len))
        async with await aio.open(tmp_path) as db:
            names = await db.partition("names", merge_operator=operator)
            await asyncio.gather(*(names.merge(b"k", b"x" * length) for length in range(50)))
            assert await names.get(b"k") == b"x" * 49

    run(work())


def test_a_cancelled_close_goes_on_and_each_close_waits_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        db = await aio.open(tmp_path, threads=1)
        go_on = threading.Event()
        busy = asyncio.create_task(db.call(go_on.wait, 30))
        await asyncio.sleep(0.05)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(db.close(), 0.05)
        closes = [asyncio.create_task(db.close()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(close.done() for close in closes)
        go_on.set()
        await asyncio.gather(busy, *closes)
        siltstone.open(tmp_path).close()

    run(work())


def test_a_wait_of_no_time_never_raises(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            commit = await (await db.partition("users")).put(b"k", b"v", sync=True)
            async with db.changes() as changes:
                # The thread of the feed is late: the calls are queued, and the end of a wait cancels one.
                go_on = threading.Event()
                changes._pool.submit(go_on.wait, 30)
                assert [await changes.next(0) for _ in range(5)] == [None] * 5
                go_on.set()
                item = await changes.next(30)
                assert item is not None and item.seq == commit.seq

    run(work())


def test_a_cancelled_open_leaves_no_open_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[siltstone.Db] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> siltstone.Db:
        begun.set()
        go_on.wait(30)
        while not opened:
            try:
                opened.append(siltstone.open(path))
            except siltstone.Locked:
                # By the loop below.
                time.sleep(0.001)
        return opened[0]

    async def work() -> None:
        opening = asyncio.ensure_future(aio.open(tmp_path))
        # An open that is cancelled before it has begun opens nothing.
        while not begun.is_set():
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    monkeypatch.setattr("siltstone.aio._siltstone.open", slow)
    run(work())
    go_on.set()
    deadline = time.monotonic() + 10
    while True:
        try:
            siltstone.open(tmp_path).close()
            if opened:
                return
        except siltstone.Locked:
            assert time.monotonic() < deadline
        time.sleep(0.01)


def test_calls_need_no_new_thread_after_the_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        async with await aio.open(tmp_path, threads=4) as db:
            users = await db.partition("users")
            changes = db.changes()
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                # A refused call would raise Closed, and write all the same.
                await asyncio.gather(*(users.put(b"%d" % number, b"") for number in range(20)))
                await changes.next(0)
                with pytest.raises(RuntimeError, match="new thread"):
                    db.changes()
                with pytest.raises(RuntimeError, match="new thread"):
                    await aio.open(tmp_path / "other")
            changes.close()

    run(work())


def test_large_values_stream_in_and_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            large = await db.partition("large", large_values=True)
            pieces = [bytes([number]) * 700_000 for number in range(4)]

            async def source(count: int) -> AsyncIterator[bytes]:
                for piece in pieces[:count]:
                    await asyncio.sleep(0)
                    yield piece
                if count < len(pieces):
                    raise ValueError("the source has failed")

            await large.put_stream(b"big", source(4), length=2_800_000, sync=True)
            async with await opened(large, b"big") as value:
                assert value.size == 2_800_000 and await value.read_at(699_999, 2) == b"\0\1"
                assert b"".join([piece async for piece in value]) == b"".join(pieces)
            with pytest.raises(ValueError, match="source has failed"):
                await large.put_stream(b"none", source(2))
            assert await large.get(b"none") is None and await large.open_value(b"none") is None
            with pytest.raises(siltstone.Closed):
                await value.read_at(0, 1)

    async def opened(large: aio.AsyncPartition, key: bytes) -> aio.AsyncValue:
        value = await large.open_value(key)
        assert value is not None
        return value

    run(work())


def test_a_cancelled_stream_sets_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            large = await db.partition("large", large_values=True)
            begun = asyncio.Event()

            async def endless() -> AsyncIterator[bytes]:
                while True:
                    yield bytes(100_000)
                    begun.set()
                    await asyncio.sleep(0.001)

            task = asyncio.ensure_future(large.put_stream(b"key", endless()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await large.get(b"key") is None

    run(work())


def test_a_secondary_follows_and_reads_by_levels(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path) as db:
            users = await db.partition("users")
            commit = await users.put(b"a", b"1", sync=True)
            async with await aio.open_secondary(tmp_path, threads=2) as secondary:
                assert secondary.blocking.has_live_primary()
                followed = await secondary.partition("users")
                assert followed.name == "users" and "users" in await secondary.partition_names()
                assert await followed.get(b"a", level=commit) == b"1" and await followed.get(b"b") is None
                await secondary.wait_for(commit, 5.0)
                later = await users.put(b"b", b"2", sync=True)
                assert (await secondary.sync()).seq >= later.seq
                assert (await followed.sync("latest")).seq >= later.seq
                reading = await followed.read("strong")
                assert reading.as_of.seq >= later.seq and await reading.get(b"b") == b"2"
                assert await reading.multi_get([b"a", b"none"]) == [b"1", None]
                assert [entry async for entry in reading.scan(reverse=True)] == [(b"b", b"2"), (b"a", b"1")]
                with pytest.raises(siltstone.Behind):
                    await secondary.wait_for(siltstone.Commit(later.seq + 9, later.epoch), 0.05)
                changes = secondary.changes(0)
                item = await changes.next(10)
                assert item is not None and item.kind == "commit"
                changes.close()
            with pytest.raises(siltstone.Closed):
                await secondary.sync()

    run(work())

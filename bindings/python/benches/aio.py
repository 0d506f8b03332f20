"""What a call of siltstone.aio costs beside the call that blocks: gets of one key, one after the other, and at once.

    python benches/aio.py [gets]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

import siltstone
from siltstone import aio

GETS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000


def report(what: str, seconds: float) -> None:
    print(f"{what:32} {seconds / GETS * 1e6:8.1f} us a get")


def blocking(users: siltstone.Partition) -> None:
    for _ in range(GETS):
        users.get(b"k")


async def run(folder: str) -> None:
    async with await aio.open(folder) as db:
        users = await db.partition("users")
        await users.put(b"k", b"v" * 100)
        begin = time.perf_counter()
        blocking(users.blocking)
        report("blocking", time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(GETS):
            await users.get(b"k")
        report("awaited, one after the other", time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(GETS // 100):
            await asyncio.gather(*(users.get(b"k") for _ in range(100)))
        report("awaited, 100 at once", time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(GETS // 100):
            await users.multi_get([b"k"] * 100)
        report("multi_get of 100 keys", time.perf_counter() - begin)
        begin = time.perf_counter()
        await db.call(blocking, users.blocking)
        report("all in one call", time.perf_counter() - begin)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(run(folder))

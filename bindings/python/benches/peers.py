"""Gets and puts a second of siltstone, plyvel (LevelDB) and rocksdict (RocksDB) from Python, in one thread.

    pip install plyvel rocksdict siltstone-*.whl && python benches/peers.py [RECORDS]

Keys have 16 bytes, values 100; they are random, and the same for all. Each store has 64 MiB of cache and of write buffer,
and no compression. The stores run in turns, three times; medians are printed, as thousands of operations a second.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

MIB = 1 << 20


class Store(NamedTuple):
    """The calls of a store."""

    put: Callable[[bytes, bytes], Any]
    get: Callable[[bytes], bytes | None]
    put_many: Callable[[list[tuple[bytes, bytes]]], Any]
    scan: Callable[[], Iterator[tuple[bytes, bytes]]]


@contextmanager
def siltstone(path: str) -> Iterator[Store]:
    """Siltstone."""
    import siltstone

    with siltstone.open(path, cache_bytes=64 * MIB, write_buffer_bytes=64 * MIB) as db:
        partition = db.partition("bench", compression="none")

        def put_many(entries: list[tuple[bytes, bytes]]) -> None:
            with db.batch() as batch:
                for key, value in entries:
                    batch.put(partition, key, value)

        yield Store(partition.put, partition.get, put_many, partition.scan)


@contextmanager
def plyvel(path: str) -> Iterator[Store]:
    """LevelDB."""
    import plyvel

    db = plyvel.DB(
        path,
        create_if_missing=True,
        lru_cache_size=64 * MIB,
        write_buffer_size=64 * MIB,
        compression=None,
        bloom_filter_bits=10,
    )

    def put_many(entries: list[tuple[bytes, bytes]]) -> None:
        with db.write_batch() as batch:
            for key, value in entries:
                batch.put(key, value)

    yield Store(db.put, db.get, put_many, lambda: iter(db.iterator()))
    db.close()


@contextmanager
def rocksdict(path: str) -> Iterator[Store]:
    """RocksDB, in the raw mode, which keeps bytes as they are."""
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(64 * MIB)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_cache(rocksdict.Cache(64 * MIB))
    tables.set_bloom_filter(10, False)
    options.set_block_based_table_factory(tables)
    db = rocksdict.Rdict(path, options)

    def put_many(entries: list[tuple[bytes, bytes]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        db.write(batch)

    yield Store(db.put, db.get, put_many, lambda: iter(db.items()))
    db.close()


def measure(store: Store, entries: list[tuple[bytes, bytes]]) -> dict[str, float]:
    """The operations a second of each kind of work."""
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], int]) -> None:
        start = time.perf_counter()
        count = work()
        found[name] = count / (time.perf_counter() - start) / 1000

    def puts() -> int:
        for key, value in entries:
            store.put(key, value)
        return len(entries)

    def batches() -> int:
        for start in range(0, len(entries), 100):
            store.put_many(entries[start : start + 100])
        return len(entries)

    def gets() -> int:
        for key, value in shuffled:
            assert store.get(key) == value
        return len(shuffled)

    def misses() -> int:
        for key, _ in shuffled:
            assert store.get(key[:-1]) is None
        return len(shuffled)

    shuffled = random.Random(1).sample(entries, len(entries))
    timed("put", puts)
    timed("put, batches of 100", batches)
    timed("get", gets)
    timed("get of a missing key", misses)
    timed("scan, an entry", lambda: sum(1 for _ in store.scan()))
    return found


def main() -> None:
    """Measures the stores that are installed."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    numbers = random.Random(7)
    entries = [(numbers.randbytes(16), numbers.randbytes(100)) for _ in range(records)]
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(3):
        for store in (siltstone, plyvel, rocksdict):
            with tempfile.TemporaryDirectory() as path, store(path + "/db") as opened:
                rounds.setdefault(store.__name__, []).append(measure(opened, entries))
    print("| work |", " | ".join(rounds), "|")
    print("| --- |", " | ".join("---:" for _ in rounds), "|")
    for work in rounds["siltstone"][0]:
        cells = [f"{statistics.median(it[work] for it in found):.0f}" for found in rounds.values()]
        print(f"| {work} |", " | ".join(cells), "|")
        print(work, {name: [round(it[work]) for it in found] for name, found in rounds.items()}, file=sys.stderr)


if __name__ == "__main__":
    main()

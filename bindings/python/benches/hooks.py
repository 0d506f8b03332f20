"""What hooks of Python cost: a compaction with a filter for each entry, and reads that fold operands.

    python benches/hooks.py [entries]

With a busy thread, each call of a hook waits up to ``sys.getswitchinterval()`` for Python, five milliseconds.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import siltstone

ENTRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000


def keep(key: bytes, value: bytes | None) -> siltstone.Decision:
    return siltstone.Decision.KEEP


def longest(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
    return max([existing, *operands], key=len)


def report(what: str, seconds: float, count: int) -> None:
    print(f"{what:44} {seconds / count * 1e6:9.2f} us")


def compact(folder: Path, filters: list[siltstone.CompactionFilter], entries: int) -> float:
    with siltstone.open(folder) as db:
        p = db.partition("p", compaction_filters=filters)
        for begin in range(0, entries, 1000):
            with db.batch() as batch:
                for number in range(begin, min(begin + 1000, entries)):
                    batch.put(p, b"%012d" % number, b"v" * 100)
        begin_time = time.perf_counter()
        p.compact()
        return time.perf_counter() - begin_time


def fold(folder: Path, operands: int) -> float:
    with siltstone.open(folder) as db:
        p = db.partition("p", merge_operator=siltstone.MergeOperator("longest", longest))
        for number in range(1000):
            p.put(b"%d" % number, b"v")
            for _ in range(operands):
                p.merge(b"%d" % number, b"operand")
        begin = time.perf_counter()
        for number in range(1000):
            p.get(b"%d" % number)
        return time.perf_counter() - begin


with tempfile.TemporaryDirectory() as scratch:
    sweeper = siltstone.CompactionFilter("keep", keep)
    report("a flush and compaction, for each entry", compact(Path(scratch, "0"), [], ENTRIES), ENTRIES)
    report("the same with a filter of Python", compact(Path(scratch, "1"), [sweeper], ENTRIES), ENTRIES)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    few = ENTRIES // 100
    report("the same with a busy thread of Python", compact(Path(scratch, "2"), [sweeper], few), few)
    is_over.set()
    thread.join()
    for operands in (1, 10, 50):
        report(f"a get that folds {operands} operands", fold(Path(scratch, f"fold {operands}"), operands), 1000)

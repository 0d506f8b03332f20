"""Memory: nothing grows with the number of calls, and what is closed is free."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import siltstone

#: What the allocators of both sides may keep, in bytes.
SLACK_BYTES = 16 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def calls(db: siltstone.Db, users: siltstone.Partition) -> dict[str, Callable[[], object]]:
    films = db.partition("films", large_values=True)

    def error() -> None:
        with pytest.raises(siltstone.LimitExceeded):
            users.put(bytes(65_535), b"")

    def stopped_scan() -> None:
        next(users.scan())

    return {
        "get": lambda: users.get(b"k"),
        "get_ref": lambda: users.get_ref(b"k"),
        "multi_get": lambda: users.multi_get([b"k"] * 10),
        "stopped_scan": stopped_scan,
        "discarded_batch": lambda: db.batch().put(users, b"k", bytes(10_000)),
        "dropped_transaction": lambda: db.transaction().put(users, b"k", bytes(10_000)),
        "dropped_snapshot": db.snapshot,
        "dropped_writer": lambda: films.open_writer(b"w").write(bytes(10_000)),
        "read_value": lambda: (users.open_value(b"k") or pytest.fail()).read(),
        "error": error,
    }


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say it in /proc")
@pytest.mark.parametrize(
    "name",
    [
        "get",
        "get_ref",
        "multi_get",
        "stopped_scan",
        "discarded_batch",
        "dropped_transaction",
        "dropped_snapshot",
        "dropped_writer",
        "read_value",
        "error",
    ],
)
def test_memory_does_not_grow_with_calls(db: siltstone.Db, users: siltstone.Partition, name: str) -> None:
    users.put(b"k", bytes(10_000))
    call = calls(db, users)[name]
    for _ in range(200):
        call()
    gc.collect()
    before = resident_bytes()
    tracemalloc.start()
    # A leak of one value a call would be 50 MB.
    for _ in range(5000):
        call()
    gc.collect()
    python_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert python_bytes < 1 << 20
    assert resident_bytes() - before < SLACK_BYTES


def test_a_view_keeps_its_value_and_nothing_else_does(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"k", bytes(1 << 20))
    view = users.get_ref(b"k")
    assert view is not None
    part = view[10:20]
    del view
    gc.collect()
    assert bytes(part) == bytes(10)
    part.release()


def test_no_handle_is_kept_alive_by_another(db: siltstone.Db, users: siltstone.Partition) -> None:
    film = users.open_value(b"none")
    assert film is None
    users.put(b"k", b"v")
    film = users.open_value(b"k")
    gone = weakref.ref(film) if film is not None else None
    assert gone is not None and gone() is film
    del film
    assert gone() is None, "without the garbage collector"

"""Listeners: functions of Python that get the events of background work."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import siltstone


def test_a_listener_gets_the_events_of_jobs(tmp_path: Path) -> None:
    events: list[siltstone.Event] = []
    listener = siltstone.EventListener(events.append)
    with siltstone.open(tmp_path, listeners=[listener]) as db:
        users = db.partition("users")
        large = db.partition("large", large_values={"threshold_bytes": 1000})
        for _ in range(2):
            users[b"a"] = b"1"
            large[b"big"] = bytes(5000)
            db.flush()
        users.compact()
        db.wait_idle()
    flushed = [event for event in events if event["kind"] == "flushed" and event["partition"] == "users"]
    assert len(flushed) == 2 and flushed[0]["bytes"] > 0 and flushed[0]["seconds"] >= 0
    compacted = [event for event in events if event["kind"] == "compacted"]
    assert compacted and compacted[0]["level_to"] >= compacted[0]["level_from"] and compacted[0]["read_bytes"] > 0
    made = [event for event in events if event["kind"] == "chunk_created"]
    assert made and made[0]["partition"] == "large" and made[0]["file"].endswith(".chunk")


def test_an_exception_ends_its_call_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    calls = 0

    def fail(event: siltstone.Event) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("not this event")

    with siltstone.open(tmp_path, listeners=[siltstone.EventListener(fail)]) as db:
        users = db.partition("users")
        users[b"a"] = b"1"
        db.flush()
        # The thread that delivers it notes the exception after the call.
        limit = time.monotonic() + 30
        while "not this event" not in str(db.health()):
            assert time.monotonic() < limit, db.health()
            time.sleep(0.01)
        assert calls > 0
        users[b"b"] = b"2"
        db.flush()
        assert users[b"a"] == b"1" and users[b"b"] == b"2"
    assert "panicked" not in capfd.readouterr().err


def test_a_listener_calls_nothing_of_its_database(tmp_path: Path) -> None:
    seen: list[Exception] = []
    opened: list[siltstone.Db] = []

    def meddle(event: siltstone.Event) -> None:
        try:
            opened[0].flush()
        except siltstone.InvalidArgument as refused:
            seen.append(refused)

    with siltstone.open(tmp_path, listeners=[siltstone.EventListener(meddle)]) as db:
        opened.append(db)
        db.partition("users")[b"a"] = b"1"
        db.flush()
        db.wait_idle()
    opened.clear()
    assert seen and "a hook may call nothing" in str(seen[0])


def test_a_listener_is_a_function(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not callable"):
        siltstone.EventListener(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        siltstone.open(tmp_path, listeners=[print])  # type: ignore[list-item]
    # Events of several threads at once.
    lock, kinds = threading.Lock(), set[str]()

    def note(event: siltstone.Event) -> None:
        with lock:
            kinds.add(event["kind"])

    listeners = [siltstone.EventListener(note), siltstone.EventListener(note)]
    with siltstone.open(tmp_path, listeners=listeners, write_buffer_bytes=1 << 20) as db:
        partitions = [db.partition(f"p{number}") for number in range(4)]
        for number in range(4000):
            partitions[number % 4][b"%05d" % number] = bytes(1000)
        db.flush()
    assert "flushed" in kinds

"""Maintenance of a whole database."""

from __future__ import annotations

from pathlib import Path

import siltstone


def test_what_is_closed_is_there_at_the_next_open(tmp_path: Path) -> None:
    with siltstone.open(str(tmp_path)) as db:
        db.partition().put(b"k", b"v")
        assert str(tmp_path) in repr(db)
    with siltstone.open(tmp_path) as db:
        assert db.partition().get(b"k") == b"v"


def test_a_database_that_is_dropped_is_closed(tmp_path: Path) -> None:
    for number in range(3):
        siltstone.open(tmp_path).partition().put(b"%d" % number, b"v")
    with siltstone.open(tmp_path) as db:
        assert list(db.partition().keys()) == [b"0", b"1", b"2"]


def test_a_checkpoint_is_a_database(db: siltstone.Db, users: siltstone.Partition, tmp_path: Path) -> None:
    users.put(b"k", b"v")
    assert db.checkpoint(tmp_path / "copy") == db.visible_seq
    users.delete(b"k")
    with siltstone.open(tmp_path / "copy") as copy:
        assert copy.partition("users").get(b"k") == b"v"


def test_durability_is_waited_for(db: siltstone.Db, users: siltstone.Partition) -> None:
    commit = users.put(b"k", b"v")
    db.wait_durable(commit.seq)
    assert db.durable_seq >= commit.seq == db.visible_seq


def test_statistics_and_health(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"k", b"v")
    db.flush()
    db.wait_idle()
    stats, health = db.stats(), db.health()
    assert stats["batch_count"] >= 1 and stats["flush_count"] >= 1
    assert [partition["name"] for partition in health["partitions"]] == ["default", "users"]
    assert health["read_only"] is None
    report = db.verify()
    assert report["is_sound"] and report["damage"] == [] and report["entries"] >= 1 and report["files"] >= 2

"""Batches."""

from __future__ import annotations

import pytest

import siltstone


def test_a_batch_is_committed_as_a_whole_at_the_end_of_its_block(db: siltstone.Db, users: siltstone.Partition) -> None:
    posts = db.partition("posts", merge_operator=("append", b","))
    users.put(b"old", b"1")
    users.put(b"p/1", b"1")
    posts.put(b"gone", b"1")
    with db.batch(sync=True) as batch:
        batch.put(users, b"alice", bytearray(b"admin"))
        batch.delete(users, b"old")
        batch.delete_range(users, b"p", b"q")
        batch.clear(posts)
        batch.merge(posts, b"tags", b"new")
        batch.put(users, b"q/1", b"1")
        batch.delete_prefix(users, b"q/")
        assert len(batch) == 7 and bool(batch)
        assert not users.contains(b"alice")
    assert list(users.scan()) == [(b"alice", b"admin")]
    assert list(posts.scan()) == [(b"tags", b"new")]


def test_an_exception_discards_a_batch(db: siltstone.Db, users: siltstone.Partition) -> None:
    with pytest.raises(ZeroDivisionError), db.batch() as batch:
        batch.put(users, b"k", b"v")
        1 // 0
    assert not users.contains(b"k")
    with pytest.raises(siltstone.InvalidArgument, match="committed or discarded"):
        batch.put(users, b"k", b"v")


def test_a_batch_that_ended_in_its_block_stays_ended(db: siltstone.Db, users: siltstone.Partition) -> None:
    with db.batch() as batch:
        batch.put(users, b"a", b"1")
        commit = batch.commit(sync=True)
        assert commit.seq <= db.durable_seq
    with db.batch() as discarded:
        discarded.put(users, b"b", b"2")
        discarded.discard()
    assert list(users.keys()) == [b"a"]
    with pytest.raises(siltstone.InvalidArgument):
        batch.commit()


def test_an_empty_batch_is_true_and_commits(db: siltstone.Db) -> None:
    batch = db.batch()
    assert bool(batch) and len(batch) == 0
    assert batch.try_commit().seq == db.visible_seq


def test_a_requirement_that_does_not_hold_is_a_conflict(db: siltstone.Db, users: siltstone.Partition) -> None:
    read_at = db.visible_seq
    users.put(b"k", b"first")
    batch = db.batch()
    batch.require(users, b"k", read_at)
    batch.put(users, b"k", b"second")
    with pytest.raises(siltstone.Conflict):
        batch.commit()
    assert users.get(b"k") == b"first"
    with pytest.raises(siltstone.InvalidArgument, match="no sequence number"):
        db.batch().require(users, b"k", 1 << 60)

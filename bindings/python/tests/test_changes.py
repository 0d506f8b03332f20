"""The feed of changes."""

from __future__ import annotations

import threading

import pytest

import siltstone


def test_each_commit_appears_once_and_in_order(db: siltstone.Db, users: siltstone.Partition) -> None:
    posts = db.partition("posts", merge_operator=("append", b","), large_values={"threshold_bytes": 1000})
    changes = db.changes()
    with db.batch() as batch:
        batch.put(users, b"alice", b"admin")
        batch.delete(users, b"bob")
        batch.merge(posts, b"tags", b"new")
        batch.put(posts, b"film", bytes(5000))
        batch.delete_range(users, b"c", b"d")
        batch.clear(users)
    users.put(b"last", b"v", sync=True)
    first, second = list(changes)
    assert first.kind == second.kind == "commit"
    assert (first.first_seq, first.seq, second.seq) == (1, 6, 7)
    described = [(it.partition, it.kind, it.key, it.stop, it.value()) for it in first.changes]
    assert sorted(described, key=repr) == sorted(
        [
            ("users", "put", b"alice", None, b"admin"),
            ("users", "delete", b"bob", None, None),
            ("posts", "merge", b"tags", None, b"new"),
            ("posts", "put", b"film", None, bytes(5000)),
            ("users", "delete_range", b"c", b"d", None),
            ("users", "clear", None, None, None),
        ],
        key=repr,
    )
    position = changes.position
    assert position.seq == 7 and changes.try_next() is None
    assert [item.seq for item in db.changes(6)] == [7]
    assert list(db.changes(position)) == []
    with pytest.raises(siltstone.SessionLost):
        db.changes(siltstone.Commit(1, position.epoch + 1))


def test_a_feed_may_be_of_one_partition_and_prefix(db: siltstone.Db, users: siltstone.Partition) -> None:
    other = db.partition("other")
    for partition in (users, other):
        for key in (b"a/1", b"b/1"):
            partition.put(key, b"v", sync=True)
    found = [it for item in db.changes(partition="users", prefix=b"a/") for it in item.changes]
    assert [(it.partition, it.key) for it in found] == [("users", b"a/1")]
    feed = db.changes(partition="users")
    list(feed)
    db.drop_partition("users")
    dropped = feed.try_next()
    assert dropped is not None and (dropped.kind, dropped.partition, dropped.seq) == ("dropped", "users", None)


def test_a_feed_waits_while_other_threads_run(db: siltstone.Db, users: siltstone.Partition) -> None:
    feed = db.changes()
    assert feed.wait_next(0.01) is None
    seen: list[siltstone.FeedItem | None] = []
    waiter = threading.Thread(target=lambda: seen.append(feed.wait_next(60)))
    waiter.start()
    users.put(b"k", b"v", sync=True)
    waiter.join(60)
    assert seen[0] is not None and seen[0].changes[0].key == b"k"


def test_a_secondary_has_the_same_feed(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"k", b"v", sync=True)
    with siltstone.open_secondary(db.path) as follower:
        item = follower.changes().wait_next(60)
        assert item is not None and item.changes[0].value() == b"v"

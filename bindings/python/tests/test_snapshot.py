"""Snapshots."""

from __future__ import annotations

import pytest

import siltstone


def test_a_snapshot_shows_its_moment(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"a", b"1")
    users.put(b"b", b"2")
    with db.snapshot() as before:
        users.put(b"a", b"changed")
        users.delete(b"b")
        users.put(b"c", b"3")
        assert before.seq == db.visible_seq - 3
        assert before.get(users, b"a") == b"1" and before.get(users, b"c", 7) == 7
        assert before.contains(users, b"b") and not before.contains(users, b"c")
        assert before.multi_get(users, [b"b", b"c"]) == [b"2", None]
        assert list(before.scan(users)) == [(b"a", b"1"), (b"b", b"2")]
        assert list(before.keys(users, reverse=True)) == [b"b", b"a"]
        assert list(before.values(users, prefix=b"b")) == [b"2"]
        assert bytes(before.get_ref(users, b"a") or b"") == b"1"
    assert list(users.keys()) == [b"a", b"c"]


def test_a_closed_snapshot_is_an_error_and_its_scans_go_on(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"a", b"1")
    snapshot = db.snapshot()
    scan = snapshot.scan(users)
    snapshot.close()
    users.clear()
    users.compact()
    with pytest.raises(siltstone.Closed, match="the snapshot is closed"):
        snapshot.get(users, b"a")
    assert list(scan) == [(b"a", b"1")]

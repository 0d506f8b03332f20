"""Cursors: moved by hand, in both directions, over ranges, snapshots and secondaries."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone


def fill(users: siltstone.Partition) -> None:
    for key in (b"a", b"c", b"e", b"g"):
        users[key] = key * 3


def test_a_cursor_moves_and_seeks(users: siltstone.Partition) -> None:
    fill(users)
    with users.cursor() as cursor:
        assert not cursor.valid
        with pytest.raises(siltstone.InvalidArgument, match="on no entry"):
            cursor.next()
        with pytest.raises(siltstone.InvalidArgument, match="on no entry"):
            cursor.key
        assert cursor.seek(b"b") and cursor.item() == (b"c", b"ccc")
        assert cursor.next() and (cursor.key, cursor.value) == (b"e", b"eee")
        assert cursor.prev() and cursor.prev() and cursor.key == b"a"
        assert not cursor.prev() and not cursor.valid
        assert cursor.seek_before(b"e") and cursor.key == b"c"
        assert cursor.seek_to_last() and cursor.key == b"g" and not cursor.next()
        assert cursor.seek_to_first() and cursor.key == b"a" and cursor.valid
        assert not cursor.seek(b"h") and not cursor.seek_before(b"a")
    with pytest.raises(siltstone.Closed, match="the cursor is closed"):
        cursor.seek_to_first()


def test_a_cursor_keeps_to_its_range_and_its_moment(db: siltstone.Db, users: siltstone.Partition) -> None:
    fill(users)
    snapshot = db.snapshot()
    cursor = users.cursor(b"b", b"f")
    users[b"d"] = b"new"
    del users[b"c"]
    assert cursor.seek_to_first() and cursor.key == b"c"
    assert cursor.seek_to_last() and cursor.key == b"e"
    assert cursor.seek(b"a") and cursor.key == b"c"
    of_snapshot = snapshot.cursor(users, None, b"d")
    assert of_snapshot.seek_to_last() and of_snapshot.key == b"c"
    now = users.cursor(b"b")
    assert now.seek_to_first() and now.item() == (b"d", b"new")


def test_a_cursor_of_a_secondary_and_of_a_closed_database(tmp_path: Path) -> None:
    with siltstone.open(tmp_path) as db:
        users = db.partition("users")
        fill(users)
        with siltstone.open_secondary(tmp_path) as secondary:
            cursor = secondary.partition("users").read("strong").cursor(b"c")
            assert cursor.seek_to_first() and cursor.item() == (b"c", b"ccc")
        cursor = users.cursor()
        assert cursor.seek_to_first()
    with pytest.raises(siltstone.Closed):
        cursor.next()

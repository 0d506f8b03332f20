"""Scans: their ranges, directions, moments and ends."""

from __future__ import annotations

import pytest

import siltstone

ROWS = [(b"k%04d" % number, b"v%d" % number) for number in range(1000)]


@pytest.fixture
def filled(users: siltstone.Partition) -> siltstone.Partition:
    for key, value in ROWS:
        users.put(key, value)
    return users


def test_a_scan_returns_each_entry_once_in_order(filled: siltstone.Partition) -> None:
    assert list(filled.scan()) == ROWS
    assert list(filled.scan(reverse=True)) == ROWS[::-1]
    assert list(filled.keys()) == [key for key, _ in ROWS]
    assert list(filled.values(reverse=True)) == [value for _, value in ROWS[::-1]]


@pytest.mark.parametrize("reverse", [False, True])
def test_start_is_in_the_range_and_stop_is_not(filled: siltstone.Partition, reverse: bool) -> None:
    step = -1 if reverse else 1
    assert list(filled.scan(b"k0100", b"k0200", reverse=reverse)) == ROWS[100:200][::step]
    assert list(filled.keys(b"k0990", reverse=reverse)) == [key for key, _ in ROWS[990:]][::step]
    assert list(filled.values(stop=b"k0003", reverse=reverse)) == [b"v0", b"v1", b"v2"][::step]
    assert list(filled.scan(b"k0200", b"k0100", reverse=reverse)) == []


@pytest.mark.parametrize("reverse", [False, True])
def test_a_prefix_is_a_range(filled: siltstone.Partition, reverse: bool) -> None:
    step = -1 if reverse else 1
    assert list(filled.scan(prefix=b"k07", reverse=reverse)) == ROWS[700:800][::step]
    assert list(filled.keys(prefix=b"no", reverse=reverse)) == []


def test_a_prefix_and_a_range_are_refused(filled: siltstone.Partition) -> None:
    with pytest.raises(siltstone.InvalidArgument, match="but not both") as raised:
        filled.scan(b"a", prefix=b"k")
    assert isinstance(raised.value, ValueError)


def test_a_scan_shows_the_moment_of_its_begin(filled: siltstone.Partition) -> None:
    scan = filled.scan()
    assert next(scan) == ROWS[0]
    filled.clear()
    filled.put(b"k0001", b"new")
    assert list(scan) == ROWS[1:]
    assert list(filled.scan()) == [(b"k0001", b"new")]


def test_an_ended_scan_stays_ended(users: siltstone.Partition) -> None:
    users.put(b"a", b"1")
    scan = users.scan()
    assert list(scan) == [(b"a", b"1")]
    users.put(b"b", b"2")
    assert list(scan) == [] and next(scan, None) is None


def test_a_closed_scan_has_no_more_entries(filled: siltstone.Partition) -> None:
    with filled.scan() as scan:
        assert next(scan) == ROWS[0]
    assert next(scan, None) is None
    scan.close()


def test_a_scan_survives_its_partition_and_database(db: siltstone.Db) -> None:
    db.partition("short").put(b"k", b"v")
    scan = db.partition("short").scan()
    db.drop_partition("short")
    assert list(scan) == [(b"k", b"v")]


def test_a_dropped_partition_is_an_error_of_its_scans(db: siltstone.Db) -> None:
    gone = db.partition("gone")
    db.drop_partition("gone")
    with pytest.raises(siltstone.PartitionNotFound):
        list(gone.scan())


def test_large_values_are_not_collected_ahead(users: siltstone.Partition) -> None:
    # More than a group may hold: each group is then one value, and the order stays.
    for number in range(8):
        users.put(b"%d" % number, bytes([number]) * 100_000)
    assert [value[0] for value in users.values()] == list(range(8))

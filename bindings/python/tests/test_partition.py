"""Reads and writes of a partition."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any

import pytest

import siltstone


def test_put_get_and_delete(users: siltstone.Partition) -> None:
    commit = users.put(b"alice", b"admin")
    assert commit.seq > 0 and commit.epoch > 0
    assert users.get(b"alice") == b"admin"
    assert users.contains(b"alice") and not users.contains(b"bob")
    assert users.get(b"bob") is None and users.get(b"bob", 7) == 7
    users.delete(b"alice", sync=True)
    users.delete(b"never there")
    assert users.get(b"alice", b"gone") == b"gone"


def test_a_partition_is_used_like_a_dict(users: siltstone.Partition) -> None:
    users[b"b"] = b"2"
    users[b"a"] = b"1"
    assert users[b"a"] == b"1" and b"a" in users and b"c" not in users
    assert list(users) == [b"a", b"b"]
    del users[b"a"]
    del users[b"a"]
    with pytest.raises(KeyError) as raised:
        users[b"a"]
    assert raised.value.args == (b"a",)


@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, memoryview, lambda data: array.array("B", data), lambda data: memoryview(data * 2)[: len(data)]],
)
def test_everything_with_a_buffer_is_bytes(users: siltstone.Partition, make: type[bytes]) -> None:
    users.put(make(b"key"), make(b"value"))
    assert users.get(make(b"key")) == b"value"
    assert users.multi_get([make(b"key"), b"none"]) == [b"value", None]
    assert list(users.scan(make(b"k"), make(b"l"))) == [(b"key", b"value")]


def test_elements_of_any_size_and_place_are_bytes(users: siltstone.Partition) -> None:
    numbers = array.array("I", [1, 2])
    users.put(b"numbers", numbers)
    assert users.get(b"numbers") == numbers.tobytes()
    users.put(b"every second", memoryview(b"a-b-c")[::2])
    assert users.get(b"every second") == b"abc"


@pytest.mark.parametrize("wrong", ["text", 7, None, [1, 2]])
def test_what_is_not_bytes_is_a_type_error(users: siltstone.Partition, wrong: Any) -> None:
    for call in (users.get, users.delete, users.contains, lambda it: users.put(b"k", it)):
        with pytest.raises(TypeError, match="bytes-like object is required"):
            call(wrong)


def test_an_empty_value_is_a_value(users: siltstone.Partition) -> None:
    users.put(b"k", b"")
    assert users.get(b"k") == b"" and users.contains(b"k")


def test_the_empty_key_is_a_key(users: siltstone.Partition) -> None:
    users[b""] = b"v"
    users[b"a"] = b"w"
    assert users[b""] == b"v" and b"" in users and users.multi_get([b"", b"b"]) == [b"v", None]
    assert list(users.scan(start=b"", stop=b"a")) == [(b"", b"v")]
    assert list(users.keys(prefix=b"")) == [b"", b"a"] and list(users.keys(reverse=True)) == [b"a", b""]
    users.delete_range(b"", b"\0")
    assert b"" not in users and b"a" in users


def test_ranges_and_prefixes_are_deleted(users: siltstone.Partition) -> None:
    for number in range(10):
        users.put(b"k%d" % number, b"v")
    users.delete_range(b"k2", b"k4")
    assert list(users.keys()) == [b"k%d" % number for number in (0, 1, 4, 5, 6, 7, 8, 9)]
    users.delete_range(stop=b"k1")
    users.delete_range(b"k8")
    assert list(users.keys()) == [b"k1", b"k4", b"k5", b"k6", b"k7"]
    users.put(b"x", b"v")
    users.delete_prefix(b"k")
    assert list(users.keys()) == [b"x"]
    users.clear()
    assert users.first() is None and users.last() is None


def test_first_last_and_length(users: siltstone.Partition) -> None:
    users.put(b"a", b"1")
    users.put(b"z", b"26")
    assert users.first() == (b"a", b"1") and users.last() == (b"z", b"26")
    assert users.len_approx() == 2 and users.size_approx() == 0
    users.flush()
    assert users.size_approx() >= users.size_approx(b"b") >= 0 == users.size_approx(b"zz")
    assert users.put(b"b", b"2", waits=False).seq < users.delete(b"b", waits=False).seq
    assert users.gaps() == users.repair(b"a") == users.accept_loss() == []
    assert users.name == "users" and "users" in repr(users)


def test_update_computes_from_the_old_value(users: siltstone.Partition) -> None:
    def longer(old: bytes | None) -> bytes:
        return (old or b"") + b"x"

    first = users.update(b"k", longer)
    second = users.update(b"k", longer, sync=True)
    assert (first.old, first.new) == (None, b"x") and (second.old, second.new) == (b"x", b"xx")
    assert second.commit.seq > first.commit.seq
    gone = users.update(b"k", lambda _: None)
    assert (gone.old, gone.new) == (b"xx", None) and not users.contains(b"k")


def test_an_exception_of_update_changes_nothing(users: siltstone.Partition) -> None:
    users.put(b"k", b"v")
    with pytest.raises(ZeroDivisionError):
        users.update(b"k", lambda _: bytes(1 // 0))
    with pytest.raises(TypeError):
        users.update(b"k", lambda _: "text")  # type: ignore[arg-type, return-value]
    assert users.get(b"k") == b"v"


def test_compare_and_set_writes_only_over_the_expected_value(users: siltstone.Partition) -> None:
    assert users.compare_and_set(b"k", None, b"1") is not None
    assert users.compare_and_set(b"k", None, b"2") is None
    assert users.compare_and_set(b"k", b"1", b"2", sync=True) is not None
    assert users.get(b"k") == b"2"
    assert users.compare_and_set(b"k", b"2", None) is not None
    assert not users.contains(b"k")


def test_merges_are_folded_by_the_operator(db: siltstone.Db) -> None:
    counters = db.partition("counters", merge_operator="add")
    for _ in range(3):
        counters.merge(b"visits", (2).to_bytes(8, "little"))
    assert counters.get(b"visits") == (6).to_bytes(8, "little")
    lists = db.partition("lists", merge_operator=("append", b","))
    lists.merge(b"k", b"a")
    lists.merge(b"k", b"b")
    assert lists.get(b"k") == b"a,b"


def test_flush_and_compact_keep_everything(users: siltstone.Partition) -> None:
    users.put(b"a", b"1")
    users.flush()
    users.put(b"b", b"2")
    users.compact()
    assert list(users.scan()) == [(b"a", b"1"), (b"b", b"2")]
    assert sum(level["table_count"] for level in users.stats()["levels"]) >= 1


def test_get_ref_lends_a_value(users: siltstone.Partition) -> None:
    users.put(b"k", b"value")
    view = users.get_ref(b"k")
    assert view is not None and view.readonly and view.format == "B"
    users.delete(b"k")
    assert users.get_ref(b"k") is None
    assert bytes(view) == b"value", "it keeps what it shows"
    with pytest.raises(TypeError):
        view[0] = 1


def test_partitions_are_made_listed_and_dropped(db: siltstone.Db) -> None:
    cache = db.partition("cache")
    cache.put(b"k", b"v")
    assert db.partition().name == "default"
    assert db.partition_names() == ["cache", "default"] and db.has_partition("cache")
    db.drop_partition("cache")
    for call in (lambda: cache.get(b"k"), lambda: db.partition("cache", create=False)):
        with pytest.raises(siltstone.PartitionNotFound) as raised:
            call()
        assert isinstance(raised.value, LookupError)
    assert not db.has_partition("cache")


def test_a_database_is_open_once(db: siltstone.Db, tmp_path: Path) -> None:
    assert db.path == tmp_path / "db"
    with pytest.raises(siltstone.Locked) as raised:
        siltstone.open(tmp_path / "db")
    assert raised.value.kind == "Locked" and raised.value.is_retryable

"""Options of opens and partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import siltstone


def test_options_of_a_partition_are_stored_and_changed_one_by_one(tmp_path: Path) -> None:
    named: siltstone.PartitionOptions = {
        "logged": False,
        "compression": "none",
        "block_bytes": 8192,
        "bloom_bits_per_key": 12,
        "table_bytes": 1 << 20,
        "level0_tables": 6,
        "level_base_bytes": 1 << 24,
        "level_multiplier": 8,
        "prefix_extractor": b"/",
        "fifo": {"bytes_max": 1 << 30, "seconds_max": 3600},
    }
    with siltstone.open(tmp_path) as db:
        assert db.partition("photos", **named).options() == named
    with siltstone.open(tmp_path) as db:
        assert db.partition("photos").options() == named
        changed = db.partition("photos", bloom_bits_per_key=0, prefix_extractor=4)
        assert changed.options() == {**named, "bloom_bits_per_key": 0, "prefix_extractor": 4}
        assert db.partition("photos", prefix_extractor=False).options()["prefix_extractor"] is False
        assert db.partition("photos", fifo={"bytes_max": 9}).options()["fifo"] == {"bytes_max": 9}
        assert db.partition("photos", fifo=False).options()["fifo"] is False
        assert db.partition("other").options()["compression"] == "lz4"


def test_every_option_of_an_open_is_taken(tmp_path: Path) -> None:
    options: siltstone.OpenOptions = {
        "create_if_missing": True,
        "error_if_exists": True,
        "read_only": False,
        "beside_writer": False,
        "take_over": False,
        "cache_bytes": 1 << 20,
        "write_buffer_bytes": 1 << 20,
        "wal_segment_bytes": 1 << 20,
        "wal_mapped": False,
        "tables_mapped": True,
        "wal_bytes_max": 1 << 22,
        "sync_interval_ms": 0,
        "value_bytes_max": 1000,
        "batch_bytes_max": 2000,
        "compaction_threads": 1,
        "background_bytes_per_second": 1 << 20,
        "manifest_bytes_max": 1 << 20,
        "open_files_max": 64,
        "leased_bytes_max": 0,
        "log_retained_bytes": 1 << 20,
        "log_retained_seconds": 60,
        "merge_operators": [],
        "compaction_filters": [],
        "listeners": [],
        "resources": siltstone.Resources(),
    }
    assert set(options) == set(siltstone.OpenOptions.__annotations__), "each of them"
    with siltstone.open(tmp_path / "db", **options) as db:
        with pytest.raises(siltstone.LimitExceeded, match="1001.*1000"):
            db.partition().put(b"k", bytes(1001))
        with pytest.raises(siltstone.LimitExceeded), db.batch() as batch:
            for number in range(3):
                batch.put(db.partition(), b"%d" % number, bytes(900))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cache_size": 1}, TypeError, 'a database has no option "cache_size"'),
        ({"cache_bytes": "1"}, TypeError, "str"),
        ({"cache_bytes": -1}, OverflowError, "negative"),
        ({"write_buffer_bytes": 1}, siltstone.InvalidArgument, "write_buffer_bytes is 1"),
        ({"create_if_missing": False}, FileNotFoundError, "cannot find a database"),
    ],
)
def test_wrong_options_of_an_open(tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(Exception, match=text) as raised:
        siltstone.open(tmp_path / "db", **options)
    if error is FileNotFoundError:
        assert isinstance(raised.value, siltstone.Io) and raised.value.errno == 2
    else:
        assert isinstance(raised.value, error)
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"compresion": "lz4"}, TypeError, 'a partition has no option "compresion"'),
        ({"compression": "zip"}, siltstone.InvalidArgument, '"zip", not "lz4", "zstd" or "none"'),
        ({"prefix_extractor": b"//"}, siltstone.InvalidArgument, "one byte"),
        ({"prefix_extractor": True}, siltstone.InvalidArgument, "one byte"),
        ({"fifo": True}, siltstone.InvalidArgument, "fifo"),
        ({"fifo": {"bytes": 9}}, TypeError, 'fifo has no option "bytes"'),
        ({"fifo": {"bytes_max": 0}}, siltstone.InvalidArgument, "bytes_max"),
        ({"prefix_extractor": 0}, siltstone.InvalidArgument, "prefix_extractor"),
        ({"merge_operator": "multiply"}, siltstone.InvalidArgument, "no merge operator multiply"),
        ({"large_values": {"threshold": 1}}, TypeError, 'large_values has no option "threshold"'),
        ({"large_values": {"threshold_bytes": 1}}, siltstone.LimitExceeded, "threshold_bytes is 1"),
        ({"large_values": 7}, TypeError, "int"),
        ({"ttl": {}}, siltstone.InvalidArgument, "ttl needs a place"),
        ({"ttl": {"place": "here"}}, siltstone.InvalidArgument, '"here"'),
        ({"ttl": {"place": "key", "width": 5}}, siltstone.InvalidArgument, "5, not 4 or 8"),
        ({"ttl": {"place": "key", "unit": "days"}}, siltstone.InvalidArgument, '"days"'),
        ({"ttl": {"place": "key", "time_to_live": -1.0}}, siltstone.InvalidArgument, "-1 seconds"),
        ({"ttl": {"place": "key", "place_": 1}}, TypeError, 'ttl has no option "place_"'),
        ({"block_bytes": 1}, siltstone.InvalidArgument, "block_bytes is 1"),
    ],
)
def test_wrong_options_make_no_partition(
    db: siltstone.Db, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        db.partition("new", **options)
    assert not db.has_partition("new")


def test_expired_entries_are_not_there(db: siltstone.Db) -> None:
    sessions = db.partition(
        "sessions", ttl={"place": "value", "width": 4, "little_endian": True, "unit": "seconds", "time_to_live": 60.0}
    )
    sessions.put(b"old", (1_000_000_000).to_bytes(4, "little"))
    sessions.put(b"for ever", (0).to_bytes(4, "little"))
    assert not sessions.contains(b"old") and list(sessions.keys()) == [b"for ever"]
    assert sessions.remaining_time(b"old") is None and sessions.remaining_time(b"for ever") == float("inf")
    seen = db.partition("seen", ttl={"place": "key_from_end", "offset": 1, "reads_see_expired": True, "stays_at_most": 9})
    seen.put(b"k" + (1).to_bytes(8, "big") + b"/", b"v")
    assert len(list(seen)) == 1


def test_a_rule_of_expiry_and_metahive_leave_each_other(db: siltstone.Db) -> None:
    rule: siltstone.TtlRule = {"place": "value"}
    ledger = db.partition("ledger")
    ledger.put(b"old", (1).to_bytes(8, "big"))
    db.partition("ledger", metahive=True)
    db.partition("ledger", ttl=rule)
    with pytest.raises(siltstone.ReservedKey):
        ledger.put(b"k\x01", bytes(8))
    db.partition("ledger", ttl=rule, metahive=False)
    ledger.put(b"k\x01", bytes(8))
    assert list(ledger.keys()) == [b"k\x01"]
    db.partition("ledger", ttl=False)
    assert ledger.contains(b"old")


def test_metahive_and_large_values_are_turned_on_and_off(db: siltstone.Db) -> None:
    ledger = db.partition("ledger", metahive=True)
    ledger.put(b"alice", b"12")
    ledger.flush()
    db.partition("ledger", metahive=False)
    ledger.compact()
    assert list(ledger.scan()) == [(b"alice", b"12")]
    films = db.partition("films", large_values=True)
    films.put(b"film", bytes(100_000))
    assert (films.stat_value(b"film") or {})["stored"] is not None
    db.partition("films", large_values=False)
    films.put(b"film", bytes(100_000))
    assert (films.stat_value(b"film") or {})["stored"] is None


def test_a_read_only_open_reads_and_refuses_writes(tmp_path: Path) -> None:
    with siltstone.open(tmp_path) as db:
        db.partition().put(b"k", b"v")
        with siltstone.open(tmp_path, beside_writer=True) as reader:
            assert reader.partition().get(b"k") == b"v"
    with siltstone.open(tmp_path, read_only=True) as db:
        assert db.partition(create=False).get(b"k") == b"v"
        with pytest.raises(siltstone.ReadOnly):
            db.partition().put(b"k", b"w")


def test_a_database_is_taken_over(tmp_path: Path) -> None:
    old = siltstone.open(tmp_path)
    with siltstone.open(tmp_path, take_over=True) as new:
        with pytest.raises(siltstone.Fenced):
            old.partition().put(b"k", b"v")
        assert old.is_fenced and not new.is_fenced
    with pytest.raises(siltstone.Fenced):
        old.close()

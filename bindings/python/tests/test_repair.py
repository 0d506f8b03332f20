"""A repair writes what can be read of a damaged database to a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone


def filled(path: Path) -> None:
    with siltstone.open(path) as db:
        users = db.partition("users", compression="none")
        for number in range(1000):
            users.put(b"%04d" % number, b"v" * 100)
        users.flush()


def test_a_sound_database_is_repaired_whole(tmp_path: Path) -> None:
    filled(tmp_path / "db")
    report = siltstone.repair(tmp_path / "db", tmp_path / "new")
    assert report["is_complete"] and report["partitions"]["users"] == 1000
    assert report["damage"] == report["doubtful"] == report["repaired"] == []
    with siltstone.open(tmp_path / "new") as db:
        assert len(list(db.partition("users").scan())) == 1000
    with pytest.raises(siltstone.InvalidArgument):
        siltstone.repair(tmp_path / "db", tmp_path / "new")


def test_a_repair_names_the_keys_that_damage_has_cost(tmp_path: Path) -> None:
    filled(tmp_path / "db")
    [table] = (tmp_path / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(40)
    table.write_bytes(data)
    report = siltstone.repair(tmp_path / "db", tmp_path / "new", write_buffer_bytes=1 << 20)
    assert not report["is_complete"] and report["damage"][0]["file"]
    ranges = [doubt["keys"] for doubt in report["doubtful"]]
    assert all(doubt["partition"] == "users" and doubt["why"] for doubt in report["doubtful"])
    with siltstone.open(tmp_path / "new") as db:
        found = [key for key, _ in db.partition("users").scan()]
    assert len(found) == report["partitions"]["users"] < 1000
    lost = {b"%04d" % number for number in range(1000)} - set(found)
    assert all(any(first <= key <= last for first, last in ranges) for key in lost)


def test_a_build_without_zstd_names_the_feature(db: siltstone.Db) -> None:
    try:
        users = db.partition("zstd", compression="zstd")
    except siltstone.Unsupported as error:
        assert "zstd" in str(error)
    else:
        assert users.options()["compression"] == "zstd"

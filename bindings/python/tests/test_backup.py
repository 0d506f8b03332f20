"""Backups in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone


def test_backups_are_made_listed_verified_restored_and_purged(
    db: siltstone.Db, users: siltstone.Partition, tmp_path: Path
) -> None:
    backups = siltstone.BackupEngine(tmp_path / "backups", bytes_per_second=1 << 30)
    users.put(b"k", b"1")
    first = backups.create_backup(db)
    assert first["seq"] == db.visible_seq and first["size"] > 0 and first["unlogged"] == []
    users.put(b"k", b"2")
    second = backups.create_backup_of(db.path)
    assert [it["backup_id"] for it in backups.info()] == [first["backup_id"], second["backup_id"]]
    assert backups.verify() and backups.verify(first["backup_id"])
    assert backups.restore(first["backup_id"], tmp_path / "first")["seq"] == first["seq"]
    assert backups.restore_latest(tmp_path / "second")["seq"] == second["seq"]
    for name, value in (("first", b"1"), ("second", b"2")):
        with siltstone.open(tmp_path / name) as restored:
            assert restored.partition("users").get(b"k") == value
    assert backups.purge_old(1) == [first["backup_id"]]
    assert backups.delete(second["backup_id"]) == [second["backup_id"]]
    assert backups.info() == []
    with pytest.raises(siltstone.InvalidArgument):
        backups.delete(7)
    with pytest.raises(TypeError):
        backups.create_backup("no database")  # type: ignore[arg-type]

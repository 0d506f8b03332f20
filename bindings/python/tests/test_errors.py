"""Exceptions, the close, and damage."""

from __future__ import annotations

import copy
import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import siltstone
from siltstone import _errors

ROOT = Path(__file__).parents[3]


def test_each_kind_of_error_has_a_class() -> None:
    source = (ROOT / "crates/storage/src/error.rs").read_text()
    body = source.split("pub enum ErrorKind {")[1].split("\n}\n")[0]
    kinds = {line.strip(" ,") for line in body.splitlines() if line.strip() and not line.strip().startswith("//")}
    classes = {name for name, it in vars(_errors).items() if isinstance(it, type) and issubclass(it, _errors.Error)}
    assert classes - {"Error"} == kinds
    assert classes <= set(siltstone.__all__)


def test_an_error_of_a_file_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError) as raised:
        siltstone.open(tmp_path / "file" / "db")
    assert isinstance(raised.value, siltstone.Io) and raised.value.kind == "Io"
    assert raised.value.errno == errno.EEXIST and str(tmp_path / "file") in str(raised.value)
    assert raised.value.file is not None
    with siltstone.open(tmp_path / "db"), pytest.raises(siltstone.Error):
        siltstone.open(tmp_path / "db", error_if_exists=True)


def test_an_error_can_be_pickled(users: siltstone.Partition) -> None:
    with pytest.raises(siltstone.LimitExceeded) as raised:
        users.put(bytes(65_535), b"v")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is siltstone.LimitExceeded and str(again) == str(raised.value)
    assert again.kind == "LimitExceeded"


def damaged(path: Path) -> Path:
    """Makes a database with a table, and flips a bit in the table; returns the file."""
    with siltstone.open(path) as db:
        users = db.partition("users")
        for number in range(100):
            users.put(b"%03d" % number, bytes(100))
        users.flush()
    table = next(path.glob("*.sst"))
    content = bytearray(table.read_bytes())
    content[2000] ^= 1
    table.write_bytes(content)
    return table


def test_damage_names_its_place(tmp_path: Path) -> None:
    table = damaged(tmp_path)
    with siltstone.open(tmp_path) as db:
        users = db.partition("users")
        with pytest.raises(siltstone.Corruption) as raised:
            users.get(b"000")
        error = raised.value
        assert error.kind == "Corruption" and error.partition == "users" and error.file == str(table)
        assert error.offset is not None and error.offset <= 2000 and error.key == b"000"
        assert error.level is None or error.level == 0
        assert table.name in str(error) and "users" in str(error)
        report = db.verify(bytes_per_second=1 << 30)
        assert not report["is_sound"] and report["damage"][0]["file"] == str(table)
        assert report["damage"][0]["partition"] == "users" and report["damage"][0]["message"]


def test_entries_before_the_damage_are_returned_first(tmp_path: Path) -> None:
    damaged(tmp_path)
    with siltstone.open(tmp_path) as db:
        scan = db.partition("users").scan(reverse=True)
        seen = []
        with pytest.raises(siltstone.Corruption):
            for key, _ in scan:
                seen.append(key)
        assert seen and seen == sorted(seen, reverse=True) and seen[0] == b"099"
        assert next(scan, None) is None, "it has ended"


def test_everything_of_a_closed_database_is_closed(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"k", bytes(100_000))
    for number in range(100):
        users.put(b"l%d" % number, b"v")
    scan = users.scan(b"l")
    for _ in range(5):
        next(scan)
    batch, transaction, snapshot = db.batch(), db.transaction(), db.snapshot()
    batch.put(users, b"k", b"w")
    film = users.open_value(b"k")
    writer = db.partition("films", large_values=True).open_writer(b"new")
    view = users.get_ref(b"k")
    old = transaction.keys(users)
    db.close()
    db.close()
    assert film is not None and view is not None
    calls: list[Callable[[], object]] = [
        lambda: next(scan),
        lambda: next(old),
        lambda: users.get(b"k"),
        lambda: users.get_ref(b"k"),
        lambda: users.multi_get([b"k"]),
        lambda: users.put(b"k", b"v"),
        lambda: users.update(b"k", lambda old: old),
        lambda: list(users.scan()),
        lambda: users.open_value(b"k"),
        lambda: batch.put(users, b"k", b"v"),
        batch.commit,
        lambda: transaction.get(users, b"k"),
        transaction.commit,
        lambda: snapshot.get(users, b"k"),
        lambda: list(snapshot.scan(users)),
        film.read,
        lambda: writer.write(b"x"),
        writer.commit,
        db.batch,
        db.snapshot,
        db.transaction,
        db.stats,
        db.health,
        db.flush,
        db.partition,
        db.partition_names,
        lambda: db.visible_seq,
        lambda: db.transact(lambda _: None),
    ]
    for call in calls:
        with pytest.raises(siltstone.Closed, match="the database is closed"):
            call()
    for close in (scan.close, snapshot.close, film.close, batch.discard, transaction.rollback, writer.discard):
        close()
    assert bytes(view) == bytes(100_000), "memory that Python holds stays"


def test_a_closed_database_can_be_opened_again_while_its_objects_live(tmp_path: Path) -> None:
    old = siltstone.open(tmp_path)
    users = old.partition("users")
    users.put(b"k", b"v")
    kept = [users.scan(), old.snapshot(), old.transaction(), old.batch()]
    old.close()
    with siltstone.open(tmp_path) as new:
        assert new.partition("users").get(b"k") == b"v"
        del kept
        new.partition("users").put(b"k", b"w")
    with siltstone.open(tmp_path) as new:
        assert new.partition("users").get(b"k") == b"w"


def test_handles_are_not_pickled_or_copied(db: siltstone.Db, users: siltstone.Partition) -> None:
    for handle in (db, users, users.scan(), db.batch(), db.snapshot(), db.transaction(), db.partition("films", large_values=True).open_writer(b"k")):
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot pickle"):
                make(handle)
    for name in ("Db", "Partition", "Batch", "Snapshot", "Transaction", "EntryIterator"):
        with pytest.raises(TypeError, match="No constructor defined|cannot create"):
            getattr(siltstone, name)()


def test_a_token_goes_to_other_processes(users: siltstone.Partition) -> None:
    commit = users.put(b"k", b"v")
    again = pickle.loads(pickle.dumps(commit))
    assert again == commit and hash(again) == hash(commit) and again is not commit
    assert repr(commit) == f"Commit(seq={commit.seq}, epoch={commit.epoch})"
    assert siltstone.Commit(1, 2) != siltstone.Commit(2, 2)

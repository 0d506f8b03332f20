"""Streams of entries, out and in."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import siltstone


@pytest.fixture
def filled(db: siltstone.Db, users: siltstone.Partition) -> siltstone.Db:
    for number in range(1000):
        users.put(b"%04d" % number, bytes(1000))
    db.partition("posts").put(b"k", b"v")
    return db


@pytest.mark.parametrize("format", ["checked", "berkeley_text"])
def test_a_stream_is_exported_and_imported(filled: siltstone.Db, tmp_path: Path, format: str) -> None:
    with open(tmp_path / "stream", "wb") as file:
        made = filled.export_stream(file, format=format)  # type: ignore[arg-type]
    assert made == {"entries": 1001, "bytes": 1000 * 1004 + 2, "skipped": 0}
    with siltstone.open(tmp_path / "copy") as copy:
        with open(tmp_path / "stream", "rb") as file:
            assert copy.import_stream(file)["entries"] == 1001
        assert list(copy.partition("users").scan()) == list(filled.partition("users").scan())
        assert copy.partition("posts").get(b"k") == b"v"
        with open(tmp_path / "stream", "rb") as file:
            assert copy.import_stream(file, resume=True)["skipped"] == 1001


def test_a_part_goes_to_another_partition(filled: siltstone.Db) -> None:
    file = io.BytesIO()
    made = filled.export_stream(file, partitions=["users"], start=b"0100", stop=b"0200")
    assert made["entries"] == 100
    file.seek(0)
    filled.import_stream(file, partition="part")
    assert list(filled.partition("part").keys()) == [b"%04d" % number for number in range(100, 200)]


def test_a_damaged_stream_is_corruption(filled: siltstone.Db) -> None:
    file = io.BytesIO()
    filled.export_stream(file, partitions=["users"])
    damaged = bytearray(file.getvalue())
    damaged[500_000] ^= 1
    with pytest.raises(siltstone.Corruption) as raised:
        filled.import_stream(io.BytesIO(damaged), partition="new")
    assert raised.value.offset is not None
    with pytest.raises(siltstone.InvalidArgument, match="no format"):
        filled.export_stream(file, format="csv")  # type: ignore[arg-type]


def test_an_exception_of_the_file_is_raised(filled: siltstone.Db) -> None:
    class Fails:
        writes = 0

        def read(self, size: int) -> bytes:
            raise ZeroDivisionError

        def write(self, data: bytes) -> int:
            self.writes += 1
            raise ZeroDivisionError

    class TooMuch:
        def read(self, size: int) -> bytes:
            return bytes(size + 1)

    fails = Fails()
    with pytest.raises(ZeroDivisionError):
        filled.export_stream(fails)
    assert fails.writes == 1
    with pytest.raises(ZeroDivisionError):
        filled.import_stream(Fails())
    with pytest.raises(siltstone.InvalidArgument, match="more bytes"):
        filled.import_stream(TooMuch())


def test_a_file_may_take_less_than_it_is_given(filled: siltstone.Db) -> None:
    class Slow:
        data = b""

        def write(self, data: bytes) -> int:
            self.data += data[:10]
            return min(len(data), 10)

    file = Slow()
    filled.export_stream(file, partitions=["posts"])
    whole = io.BytesIO()
    filled.export_stream(whole, partitions=["posts"])
    assert file.data == whole.getvalue()

"""Large values as streams, files and memoryviews."""

from __future__ import annotations

import io
import random

import pytest

import siltstone

DATA = random.Random(7).randbytes(3_000_000)


@pytest.fixture
def films(db: siltstone.Db) -> siltstone.Partition:
    return db.partition("films", large_values={"threshold_bytes": 4096})


def test_a_stream_goes_in_and_comes_out_as_a_file(films: siltstone.Partition) -> None:
    commit = films.put_stream(b"film", io.BytesIO(DATA), length=len(DATA), sync=True)
    assert commit.seq > 0
    film = films.open_value(b"film")
    assert film is not None and isinstance(film, io.RawIOBase)
    with film:
        assert film.size == len(DATA) and film.readable() and film.seekable() and not film.writable()
        assert film.read(10) == DATA[:10] and film.tell() == 10
        assert film.seek(-5, io.SEEK_END) == len(DATA) - 5 and film.read() == DATA[-5:]
        assert film.read(1) == b"" and film.seek(len(DATA) + 7) and film.read(1) == b""
        assert film.seek(1_000_000) == film.seek(0, io.SEEK_CUR) and film.readall() == DATA[1_000_000:]
        buffer = bytearray(2_500_000)
        film.seek(0)
        assert film.readinto(buffer) == len(buffer) and buffer == DATA[: len(buffer)]
        assert film.readinto(buffer) == 500_000 and buffer[:500_000] == DATA[2_500_000:]
        assert film.readinto(buffer) == 0
        with pytest.raises(ValueError):
            film.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        film.read(1)
    assert films.open_value(b"none") is None


def test_a_file_may_be_buffered(films: siltstone.Partition) -> None:
    films.put(b"lines", b"a line\n" * 10_000)
    film = films.open_value(b"lines")
    assert film is not None
    with io.TextIOWrapper(io.BufferedReader(film), "ascii") as text:
        assert sum(line == "a line\n" for line in text) == 10_000


def test_a_value_in_a_table_is_a_file_too(films: siltstone.Partition) -> None:
    films.put_stream(b"small", io.BytesIO(b"small"))
    film = films.open_value(b"small")
    assert film is not None and film.read() == b"small"


def test_a_partition_without_large_values_takes_no_stream(users: siltstone.Partition) -> None:
    for call in (lambda: users.open_writer(b"k"), lambda: users.put_stream(b"k", io.BytesIO(b"v"))):
        with pytest.raises(siltstone.InvalidArgument, match="has no large values"):
            call()


def test_a_file_shows_the_value_that_it_opened(db: siltstone.Db, films: siltstone.Partition) -> None:
    films.put(b"film", DATA)
    before = db.snapshot()
    film = films.open_value(b"film")
    films.put(b"film", DATA[::-1])
    old = before.open_value(films, b"film")
    assert film is not None and old is not None
    assert film.read() == old.read() == DATA and films.get(b"film") == DATA[::-1]


def test_get_ref_maps_a_value(films: siltstone.Partition) -> None:
    films.put(b"film", DATA)
    film = films.get_ref(b"film")
    assert film is not None and film == DATA
    films.delete(b"film")
    films.flush()
    assert film[:100] == DATA[:100], "the view keeps the file"


def test_a_writer_commits_at_the_end_of_its_block(films: siltstone.Partition) -> None:
    with films.open_writer(b"film") as writer:
        assert writer.write(DATA) == len(DATA)
        assert writer.write(bytearray(b"end")) == 3
        assert writer.written == len(DATA) + 3
        assert not films.contains(b"film")
    assert films.get(b"film") == DATA + b"end"
    stat = films.stat_value(b"film")
    assert stat is not None and stat["len"] == stat["stored_len"] == len(DATA) + 3 and stat["stored"] > 1e9
    assert films.stat_value(b"none") is None


def test_an_exception_discards_a_writer(films: siltstone.Partition) -> None:
    with pytest.raises(ZeroDivisionError), films.open_writer(b"film") as writer:
        writer.write(DATA)
        1 // 0
    assert not films.contains(b"film")
    for call in (writer.commit, lambda: writer.write(b""), lambda: writer.written):
        with pytest.raises(siltstone.Closed, match="the stream is closed"):
            call()
    writer.discard()


def test_a_stream_joins_a_batch(db: siltstone.Db, films: siltstone.Partition, users: siltstone.Partition) -> None:
    writer = films.open_writer(b"film", len(DATA))
    writer.write(DATA)
    with db.batch() as batch:
        batch.put_value(writer)
        batch.put(users, b"title", b"A film")
        assert not films.contains(b"film")
    assert films.get(b"film") == DATA and users.contains(b"title")


def test_a_source_that_fails_writes_nothing(films: siltstone.Partition) -> None:
    class Failing:
        count = 0

        def read(self, size: int) -> bytes:
            self.count += 1
            if self.count > 2:
                raise ZeroDivisionError
            return bytes(size)

    with pytest.raises(ZeroDivisionError):
        films.put_stream(b"film", Failing())
    with pytest.raises(siltstone.InvalidArgument):
        films.put_stream(b"film", io.BytesIO(b"four"), length=5)
    with pytest.raises(TypeError):
        films.put_stream(b"film", io.StringIO("text"))  # type: ignore[arg-type]
    assert not films.contains(b"film")


def test_large_values_are_compressed_on_request(db: siltstone.Db) -> None:
    films = db.partition("small films", large_values={"threshold_bytes": 4096, "compression": "lz4"})
    films.put(b"film", bytes(1_000_000))
    stat = films.stat_value(b"film")
    assert stat is not None and stat["stored_len"] < 100_000
    assert films.get(b"film") == bytes(1_000_000)


def test_a_stream_takes_its_key_at_its_end(db: siltstone.Db, films: siltstone.Partition) -> None:
    writer = films.open_writer()
    writer.write(DATA[:1_000_000])
    with pytest.raises(siltstone.InvalidArgument, match="has no key"):
        writer.commit()
    # The refused end has lost nothing.
    assert writer.written == 1_000_000
    writer.write(DATA[1_000_000:])
    assert writer.commit(b"late", sync=True).seq > 0
    assert films.get(b"late") == DATA
    names = db.partition("names")
    with db.batch() as batch:
        other = films.open_writer(length=3)
        other.write(b"new")
        batch.put_value(other, b"hash")
        batch.put(names, b"film", b"hash")
    assert films.get(b"hash") == b"new" and names.get(b"film") == b"hash"
    keyed = films.open_writer(b"early")
    with pytest.raises(siltstone.InvalidArgument, match="has a key already"):
        keyed.commit(b"late")
    keyed.commit()
    with pytest.raises(siltstone.InvalidArgument, match="has no key"), films.open_writer() as lost:
        lost.write(b"lost")
    with pytest.raises(siltstone.Closed):
        lost.commit(b"lost")
    assert films.get(b"early") == b"" and films.get(b"lost") is None

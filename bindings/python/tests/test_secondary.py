"""Secondaries: in this process, and next to a writer in another one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import siltstone


@pytest.fixture
def follower(db: siltstone.Db) -> siltstone.Secondary:
    return siltstone.open_secondary(db.path, cache_bytes=1 << 20, memtable_bytes_max=8 << 20)


def test_a_read_is_as_new_as_its_level_asks(
    db: siltstone.Db, users: siltstone.Partition, follower: siltstone.Secondary
) -> None:
    assert follower.partition_names() == db.partition_names() and follower.has_live_primary()
    followed = follower.partition("users")
    assert followed.name == "users"
    commit = users.put(b"k", b"1")
    assert followed.get(b"k", level=commit) == b"1", "it sees the commit of the token"
    users.put(b"k", b"2")
    assert followed.get(b"k") == b"1", "it did not catch up"
    assert followed.get(b"k", level="strong") == b"2"
    users.put(b"k", b"3")
    assert followed.get(b"k", level={"operations": 0}) == b"3"
    users.put(b"k", b"4")
    assert followed.get(b"k", level={"operations": 5, "age": 3600.0}) == b"3"
    newest = follower.sync()
    assert newest.seq == db.visible_seq
    assert followed.get(b"k", level="prefix") == b"4" and followed.get(b"none", 7) == 7
    assert followed.sync(commit).seq >= commit.seq and followed.sync("durable").seq > 0


def test_a_reading_is_one_state(users: siltstone.Partition, follower: siltstone.Secondary) -> None:
    for number in range(200):
        users.put(b"%03d" % number, b"v%d" % number)
    reading = follower.partition("users").read("strong")
    users.clear()
    follower.sync()
    assert reading.get(b"007") == b"v7" and reading.get(b"none", 7) == 7
    assert reading.multi_get([b"001", b"none"]) == [b"v1", None]
    assert reading.contains(b"199") and not reading.contains(b"200")
    assert len(list(reading.scan())) == 200 and list(reading.keys(prefix=b"00", reverse=True))[0] == b"009"
    assert list(reading.values(b"198")) == [b"v198", b"v199"]
    assert bytes(reading.get_ref(b"001") or b"") == b"v1"
    film = reading.open_value(b"001")
    assert film is not None and film.read() == b"v1"
    assert reading.as_of.seq > 0
    assert list(follower.partition("users").read().keys()) == []


def test_what_cannot_be_caught_up_with_is_an_error(
    db: siltstone.Db, users: siltstone.Partition, follower: siltstone.Secondary
) -> None:
    users.put(b"k", b"v")
    followed = follower.partition("users")
    future = siltstone.Commit(db.visible_seq + 1000, users.put(b"k", b"v").epoch)
    with pytest.raises(siltstone.Behind) as raised:
        followed.get(b"k", level=future, wait=0.01)
    assert isinstance(raised.value, TimeoutError)
    assert followed.get(b"k", level=future, wait=0.01, weaker=True) == b"v"
    with pytest.raises(siltstone.Behind):
        follower.wait_for(future, 0.01)
    unlogged = db.partition("unlogged", logged=False)
    unlogged.put(b"k", b"v")
    with pytest.raises(siltstone.NotLogged):
        follower.partition("unlogged").get(b"k", level="strong")


@pytest.mark.parametrize("level", ["newest", {"bytes": 1}])
def test_a_wrong_level_is_refused(follower: siltstone.Secondary, level: Any) -> None:
    with pytest.raises(siltstone.InvalidArgument):
        follower.partition("default").get(b"k", level=level)
    with pytest.raises(TypeError):
        follower.partition("default").get(b"k", level=7)  # type: ignore[call-overload]
    with pytest.raises(siltstone.InvalidArgument):
        follower.sync("newest")  # type: ignore[arg-type]
    with pytest.raises(siltstone.InvalidArgument):
        follower.partition("default").follow("always")  # type: ignore[arg-type]


def test_a_partition_follows_in_the_background(users: siltstone.Partition, follower: siltstone.Secondary) -> None:
    followed = follower.partition("users")
    seen = followed.sync()
    followed.follow("eager")
    commit = users.put(b"k", b"v", sync=True)
    news = followed.wait_for_news(seen, 60)
    assert news is not None and news.seq >= commit.seq and followed.get(b"k") == b"v"
    assert followed.wait_for_news(news, 0.01) is None
    lag = followed.lag()
    assert lag["operations"] == 0 and lag["age"] is not None
    followed.follow(0.5)
    followed.follow("on_demand")
    assert follower.memtable_bytes() > 0 and follower.verify()["is_sound"]


def test_a_closed_secondary_is_an_error_everywhere(users: siltstone.Partition, follower: siltstone.Secondary) -> None:
    users.put(b"k", b"v")
    followed = follower.partition("users")
    reading = followed.read("strong")
    scan = reading.scan()
    with follower:
        pass
    for call in (
        follower.sync,
        follower.partition_names,
        lambda: followed.get(b"k"),
        followed.read,
        followed.lag,
        lambda: reading.get(b"k"),
        lambda: next(scan),
        lambda: list(reading.scan()),
    ):
        with pytest.raises(siltstone.Closed):
            call()
    follower.close()


def test_a_secondary_takes_the_database_over(
    db: siltstone.Db, users: siltstone.Partition, follower: siltstone.Secondary
) -> None:
    users.put(b"k", b"v")
    with follower.promote(cache_bytes=1 << 20) as new:
        assert new.path == db.path
        new.partition("users").put(b"k", b"new")
        with pytest.raises(siltstone.Fenced):
            users.put(b"k", b"old")
        assert new.partition("users").get(b"k") == b"new"
    with pytest.raises(siltstone.Fenced):
        db.close()


WRITER = """
import pickle, sys, siltstone
db = siltstone.open(sys.argv[1])
users = db.partition("users")
for number in range(100):
    commit = users.put(b"k", b"%d" % number)
    sys.stdout.buffer.write(pickle.dumps(commit).hex().encode() + b"\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""


def test_a_token_of_another_process_is_read_by(tmp_path: Path) -> None:
    siltstone.open(tmp_path).close()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        for number in range(100):
            token: siltstone.Commit = pickle.loads(bytes.fromhex(writer.stdout.readline()))
            if number == 0:
                follower = siltstone.open_secondary(tmp_path)
            assert follower.partition("users").get(b"k", level=token, wait=60) == b"%d" % number
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert writer.wait(60) == 0

"""Processes: kills, forks and ends of the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import siltstone


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


WRITER = """
import sys, siltstone
db = siltstone.open(sys.argv[1])
users = db.partition("users")
for number in range(1_000_000):
    with db.batch() as batch:
        batch.put(users, b"%08d" % number, b"v")
        batch.put(users, b"last", b"%d" % number)
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_commit_that_returned(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 500:
                writer.send_signal(signal.SIGKILL)
                break
        acknowledged = [int(line) for line in writer.stdout if line.endswith("\n")]
        assert writer.wait(60) == -signal.SIGKILL
    last = max(acknowledged, default=500)
    with siltstone.open(tmp_path) as db:
        users = db.partition("users")
        found = int(users[b"last"])
        assert found >= last, "what was acknowledged is there"
        keys = list(users.keys(stop=b"last"))
        assert keys == [b"%08d" % number for number in range(found + 1)], "and it is a prefix, of whole batches"
        assert db.verify()["is_sound"]


def test_an_exit_without_a_close_loses_nothing(tmp_path: Path) -> None:
    program = """
import sys, siltstone
db = siltstone.open(sys.argv[1])
users = db.partition("users")
users.put(b"k", b"v")
scan = users.scan()
transaction = db.transaction()
cycle = [db, scan, transaction]
cycle.append(cycle)
"""
    done = run(program, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    with siltstone.open(tmp_path) as db:
        assert db.partition("users").get(b"k") == b"v"


def test_an_exit_while_threads_use_the_database_is_no_crash(tmp_path: Path) -> None:
    program = """
import sys, threading, siltstone
db = siltstone.open(sys.argv[1])
users = db.partition("users")
ran = threading.Barrier(4)
def work():
    ran.wait()
    while True:
        users.put(b"k", b"v")
        list(users.scan())
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
ran.wait()
"""
    done = run(program, str(tmp_path))
    assert done.returncode == 0, done.stderr
    with siltstone.open(tmp_path) as db:
        assert db.verify()["is_sound"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_each_call_of_a_forked_child_is_refused(tmp_path: Path) -> None:
    # In a program of its own: pytest has threads.
    program = """
import os, sys, siltstone
db = siltstone.open(sys.argv[1])
users = db.partition("users", large_values=True)
for number in range(100):
    users.put(b"%03d" % number, b"v")
scan, snapshot, batch = users.scan(), db.snapshot(), db.batch()
transaction, writer, film = db.transaction(), users.open_writer(b"w"), users.open_value(b"000")
next(scan)
child = os.fork()
if child == 0:
    calls = [
        lambda: users.get(b"000"), lambda: users.put(b"k", b"child"), lambda: list(scan), lambda: list(users.scan()),
        lambda: snapshot.get(users, b"000"), lambda: batch.put(users, b"k", b"v"), batch.commit,
        lambda: transaction.get(users, b"000"), transaction.commit, lambda: writer.write(b"x"), writer.commit,
        film.read, db.snapshot, db.batch, db.transaction, db.close, db.flush, db.stats, db.partition,
        lambda: db.transact(lambda it: None),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except siltstone.Closed as error:
            assert "forked" in str(error), (number, error)
        else:
            raise SystemExit(f"call {number} was not refused")
    try:
        siltstone.open(sys.argv[1] + "-other")
    except siltstone.Unsupported as error:
        assert "forked" in str(error)
    else:
        raise SystemExit("an open was not refused")
    for close in (scan.close, snapshot.close, batch.discard, transaction.rollback, writer.discard, film.close):
        close()
    del calls, call, scan, snapshot, batch, transaction, writer, film, users, db
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert sum(1 for _ in scan) == 99
users.put(b"k", b"parent")
batch.put(users, b"b", b"v")
batch.commit()
db.close()
"""
    done = run(program, str(tmp_path / "db"))
    assert done.returncode == 0, done.stdout + done.stderr
    with siltstone.open(tmp_path / "db") as db:
        users = db.partition("users")
        assert users.get(b"k") == b"parent" and len(list(users)) == 102
        assert db.verify()["is_sound"]


INTERRUPTED = """
import sys, siltstone
db = siltstone.open(sys.argv[1])
users = db.partition("users")
commit = users.put(b"k", b"v", sync=True)
secondary = siltstone.open_secondary(sys.argv[1])
later = siltstone.Commit(commit.seq + 100, commit.epoch)
changes = db.changes(commit.seq)
waits = {
    "changes": lambda: changes.wait_next(100.0),
    "token": lambda: secondary.wait_for(later, 100.0),
    "news": lambda: secondary.partition("users").wait_for_news(later, 100.0),
}
print("ready", flush=True)
try:
    waits[sys.argv[2]]()
except KeyboardInterrupt:
    # What was waited for may be waited for again.
    users.put(b"l", b"w", sync=True)
    db.wait_durable(db.visible_seq)
    item = changes.wait_next(10.0)
    print("interrupted", item.kind, flush=True)
secondary.close()
db.close()
"""


@pytest.mark.parametrize("wait", ["changes", "token", "news"])
def test_ctrl_c_ends_a_wait(tmp_path: Path, wait: str) -> None:
    program = [sys.executable, "-c", INTERRUPTED, str(tmp_path), wait]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "ready\n"
        time.sleep(0.3)
        begun = time.monotonic()
        waiting.send_signal(signal.SIGINT)
        assert waiting.stdout.readline() == "interrupted commit\n"
        assert waiting.wait(60) == 0 and time.monotonic() - begun < 30

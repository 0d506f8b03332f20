"""Hooks and processes: the interpreter ends while a job calls a hook, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone

START = """
import os, sys, threading, time, siltstone

def busy(key, value):
    started.set()
    {body}
    return siltstone.Decision.KEEP

def compact():
    try:
        p.compact()
    except siltstone.Error:
        pass  # Hooks are refused at the end.

started = threading.Event()
sweeper = siltstone.CompactionFilter("sweeper", busy)
db = siltstone.open(sys.argv[1], write_buffer_bytes=64 << 10)
p = db.partition("swept", compaction_filters=[sweeper])
for number in range(60):
    p[b"%d" % number] = bytes(2000)
assert started.wait(60)
"""


def run(program: str, path: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=timeout, check=False
    )


def check_database(path: Path) -> None:
    sweeper = siltstone.CompactionFilter("sweeper", lambda key, value: siltstone.Decision.KEEP)
    with siltstone.open(path, compaction_filters=[sweeper]) as db:
        assert len(list(db.partition("swept"))) == 60
        assert db.verify()["is_sound"]


RETURNS = ["pass", "time.sleep(0.05)", "sys.exit(3)"]
NEVER_RETURNS = [
    # An exception ends a loop of Python.
    "while True: pass",
    "while True: time.sleep(0.01)",
    # Catches even that.
    "while True:\n        try: pass\n        except BaseException: pass",
    # Waits outside of Python.
    "threading.Lock().acquire() and threading.Event().wait()",
    "time.sleep(10**6)",
]
READER = "threading.Thread(target=compact, daemon=True).start()"


@pytest.mark.parametrize(
    ("body", "end"),
    # The last object of a database closes it, which waits for the hook: so not of one that never returns.
    [(body, end) for body in RETURNS for end in ("", "sys.exit(0)", "del db, p", READER)]
    + [(body, end) for body in NEVER_RETURNS for end in ("", READER)],
)
def test_the_interpreter_ends_while_a_job_calls_a_hook(tmp_path: Path, body: str, end: str) -> None:
    done = run(START.format(body=body) + end, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    check_database(tmp_path)


def test_an_exception_ends_a_program_with_hooks_as_any(tmp_path: Path) -> None:
    done = run(START.format(body="time.sleep(0.01)") + "raise ValueError('over')", tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: over\n")
    check_database(tmp_path)


def test_a_child_of_a_fork_calls_no_hook_and_ends(tmp_path: Path) -> None:
    program = (
        START.format(body="time.sleep(0.02)")
        + """
child = os.fork()
if child == 0:
    try:
        p.get(b"1")
    except siltstone.Closed:
        # As a program ends, with all that runs at exit; not by os._exit.
        sys.exit(7)
    sys.exit(8)
begin = time.monotonic()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
# It waits for no thread of its parent.
assert time.monotonic() - begin < 4
db.close()
print("closed")
"""
    )
    done = run(program, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
    check_database(tmp_path)


def test_a_hook_may_fork(tmp_path: Path) -> None:
    body = """
    child = os.fork()
    if child == 0:
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5"""
    done = run(START.format(body=body.strip()) + "db.close()", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    check_database(tmp_path)


def test_hooks_are_refused_after_the_end_began(tmp_path: Path) -> None:
    program = """
import atexit, sys

def late():
    try:
        db.flush()
    except siltstone.HookPanicked as error:
        print(error)
    print(p.get(b"k"))

atexit.register(late)  # Before the package: so it runs after the end of hooks.
import siltstone
sweeper = siltstone.CompactionFilter("sweeper", lambda key, value: siltstone.Decision.REMOVE)
db = siltstone.open(sys.argv[1])
p = db.partition("swept", compaction_filters=[sweeper])
p[b"k"] = b"v"
"""
    done = run(program, tmp_path)
    assert done.stderr == "" and done.returncode == 0
    assert 'compaction filter "sweeper": the interpreter ends' in done.stdout
    assert done.stdout.endswith("b'v'\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_may_have_hooks_of_its_own(tmp_path: Path) -> None:
    program = """
import os, sys, siltstone

def use(path):
    operator = siltstone.MergeOperator("longest", lambda key, existing, operands: max([existing, *operands], key=len))
    with siltstone.open(path) as db:
        p = db.partition("names", merge_operator=operator)
        p.merge(b"k", b"bob")
        p.merge(b"k", b"robert")
        assert p[b"k"] == b"robert"

use(sys.argv[1] + "/parent")
child = os.fork()
if child == 0:
    use(sys.argv[1] + "/child")
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    done = run(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")

"""Threads: other threads run while a call waits, and objects are shared."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import siltstone


def test_a_call_that_waits_lets_other_threads_run(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"k", b"v")
    owner = db.transaction()
    owner.get_for_update(users, b"k")
    begins = threading.Event()
    outcome: list[object] = []

    def wait() -> None:
        waiter = db.transaction()
        waiter.set_lock_timeout(20)
        begins.set()
        try:
            outcome.append(waiter.get_for_update(users, b"k"))
        except siltstone.LockTimeout as error:
            outcome.append(error)

    # No thread is interrupted: this one goes on only when the other one gives Python up, in its wait for the key. A
    # call that keeps Python would keep this thread from ending the lock, and would time out.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=wait)
        thread.start()
        begins.wait()
        owner.rollback()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert outcome == [b"v"]


def test_threads_share_all_objects(db: siltstone.Db, users: siltstone.Partition) -> None:
    def work(number: int) -> None:
        for round in range(50):
            key = b"%d/%d" % (number, round)
            users.put(key, b"v")
            assert users.get(key) == b"v"
            assert len(list(users.keys(prefix=b"%d/" % number))) == round + 1
            users.update(b"count", lambda old: b"%d" % (int(old or b"0") + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert users.get(b"count") == b"400" and users.len_approx() >= 401


def test_one_iterator_and_one_batch_serve_several_threads(db: siltstone.Db, users: siltstone.Partition) -> None:
    batch = db.batch()

    def fill(number: int) -> None:
        for count in range(500):
            batch.put(users, b"%d/%03d" % (number, count), b"v")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))
    assert len(batch) == 2000
    batch.commit()
    scan = users.keys()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: list(scan), range(4)))
    assert sorted(key for part in parts for key in part) == list(users.keys())


def test_transactions_of_threads_are_serializable(db: siltstone.Db) -> None:
    accounts = db.partition("accounts")
    for number in range(4):
        accounts.put(b"%d" % number, b"100")

    def move(number: int) -> None:
        def work(transaction: siltstone.Transaction) -> None:
            sums = {key: int(value) for key, value in transaction.scan(accounts)}
            assert sum(sums.values()) == 400
            source, target = b"%d" % (number % 4), b"%d" % ((number + 1) % 4)
            transaction.put(accounts, source, b"%d" % (sums[source] - 1))
            transaction.put(accounts, target, b"%d" % (sums[target] + 1))

        db.transact(work)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, range(100)))
    assert sum(int(value) for value in accounts.values()) == 400


def busy(db: siltstone.Db, users: siltstone.Partition) -> dict[str, Callable[[], Any]]:
    """Work that goes on until the database is closed."""
    films = db.partition("films", large_values=True)

    def in_transaction() -> None:
        with db.transaction() as transaction:
            # A key that no other work writes: this is not about conflicts.
            transaction.get(users, b"transaction")
            transaction.put(users, b"transaction", b"v")

    def as_stream() -> None:
        with films.open_writer(b"stream") as writer:
            writer.write(bytes(10_000))

    def through_a_snapshot() -> None:
        with db.snapshot() as snapshot:
            list(snapshot.scan(users))

    return {
        "put": lambda: users.put(b"k", b"v"),
        "get": lambda: users.get(b"k"),
        "get_ref": lambda: users.get_ref(b"k"),
        "scan": lambda: list(users.scan()),
        "batch": lambda: db.batch().commit(),
        "flush": db.flush,
        "verify": db.verify,
        "transaction": in_transaction,
        "stream": as_stream,
        "snapshot": through_a_snapshot,
    }


def test_a_close_in_the_middle_of_everything_is_an_error_of_each_call(
    db: siltstone.Db, users: siltstone.Partition
) -> None:
    for number in range(1000):
        users.put(b"%04d" % number, bytes(100))
    work = busy(db, users)
    rounds = dict.fromkeys(work, 0)
    errors: dict[str, BaseException] = {}
    all_ran = threading.Barrier(len(work) + 1)

    def run(name: str) -> None:
        try:
            work[name]()
            all_ran.wait(60)
            while True:
                work[name]()
                rounds[name] += 1
        except BaseException as error:
            errors[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in work]
    for thread in threads:
        thread.start()
    all_ran.wait(60)
    db.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(work, siltstone.Closed), errors


def test_a_scan_whose_database_closes_ends_with_an_error(db: siltstone.Db, users: siltstone.Partition) -> None:
    for number in range(1000):
        users.put(b"%04d" % number, b"v")
    with pytest.raises(siltstone.Closed):
        for key in users.keys():
            if key == b"0500":
                closer = threading.Thread(target=db.close)
                closer.start()
                closer.join()

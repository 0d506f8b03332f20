"""Transactions."""

from __future__ import annotations

import threading

import pytest

import siltstone


def test_a_transaction_reads_its_own_writes_and_commits_at_the_end(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"a", b"1")
    with db.transaction(sync=True) as transaction:
        transaction.put(users, b"b", b"2")
        transaction.delete(users, b"a")
        assert transaction.get(users, b"b") == b"2" and transaction.get(users, b"a", 7) == 7
        assert transaction.contains(users, b"b") and not transaction.contains(users, b"a")
        assert transaction.multi_get(users, [b"a", b"b"]) == [None, b"2"]
        assert list(transaction.scan(users)) == [(b"b", b"2")]
        assert list(transaction.keys(users)) == [b"b"] and list(transaction.values(users, prefix=b"b")) == [b"2"]
        assert list(transaction.snapshot().keys(users)) == [b"a"]
        assert list(users.keys()) == [b"a"]
    assert list(users.scan()) == [(b"b", b"2")]
    assert db.durable_seq == db.visible_seq


def test_ranges_merges_and_clears(db: siltstone.Db) -> None:
    texts = db.partition("texts", merge_operator=("append", b","))
    for key in (b"a1", b"a2", b"b1", b"c1"):
        texts.put(key, b"v")
    with db.transaction() as transaction:
        transaction.delete_prefix(texts, b"a")
        transaction.delete_range(texts, b"b", b"c")
        transaction.merge(texts, b"c1", b"w")
        assert list(transaction.scan(texts)) == [(b"c1", b"v,w")]
    with db.transaction() as transaction:
        transaction.clear(texts)
        transaction.put(texts, b"new", b"v")
    assert list(texts.keys()) == [b"new"]


def test_an_exception_rolls_back(db: siltstone.Db, users: siltstone.Partition) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as transaction:
        transaction.put(users, b"k", b"v")
        1 // 0
    assert not users.contains(b"k")
    for call in (transaction.commit, lambda: transaction.get(users, b"k"), transaction.set_savepoint):
        with pytest.raises(siltstone.InvalidArgument, match="committed or rolled back"):
            call()
    transaction.rollback()


def test_a_conflict_is_refused(db: siltstone.Db, users: siltstone.Partition) -> None:
    transaction = db.transaction()
    assert transaction.get(users, b"k") is None
    users.put(b"k", b"other")
    transaction.put(users, b"k", b"own")
    with pytest.raises(siltstone.Conflict):
        transaction.commit()
    assert users.get(b"k") == b"other"


def test_only_the_part_that_was_walked_over_conflicts(db: siltstone.Db, users: siltstone.Partition) -> None:
    for number in range(100):
        users.put(b"%03d" % number, b"v")
    transaction = db.transaction()
    scan = transaction.scan(users)
    assert [next(scan)[0] for _ in range(10)] == [b"%03d" % number for number in range(10)]
    users.put(b"011", b"changed")
    transaction.put(users, b"mark", b"v")
    transaction.commit()


def test_savepoints(db: siltstone.Db, users: siltstone.Partition) -> None:
    with db.transaction() as transaction:
        transaction.put(users, b"a", b"1")
        transaction.set_savepoint()
        transaction.put(users, b"b", b"2")
        transaction.rollback_to_savepoint()
        transaction.set_savepoint()
        transaction.pop_savepoint()
        with pytest.raises(siltstone.InvalidArgument):
            transaction.pop_savepoint()
    assert list(users.keys()) == [b"a"]


def test_require_refuses_the_commit(db: siltstone.Db, users: siltstone.Partition) -> None:
    read_at = db.visible_seq
    users.put(b"k", b"other")
    transaction = db.transaction()
    transaction.require(users, b"k", read_at)
    transaction.put(users, b"x", b"v")
    with pytest.raises(siltstone.Conflict):
        transaction.commit()


def test_transact_repeats_after_conflicts(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"n", b"0")
    attempts: list[int] = []

    def increment(transaction: siltstone.Transaction) -> int:
        number = int(transaction.get(users, b"n") or b"0")
        if not attempts:
            users.put(b"n", b"10")
        attempts.append(number)
        transaction.put(users, b"n", b"%d" % (number + 1))
        return number + 1

    assert db.transact(increment, sync=True) == 11
    assert attempts == [0, 10] and users.get(b"n") == b"11"


def test_transact_gives_up_after_its_attempts(db: siltstone.Db, users: siltstone.Partition) -> None:
    attempts: list[bytes | None] = []

    def lose(transaction: siltstone.Transaction) -> None:
        attempts.append(transaction.get(users, b"n"))
        users.put(b"n", b"%d" % len(attempts))
        transaction.put(users, b"n", b"own")

    with pytest.raises(siltstone.Conflict):
        db.transact(lose, attempts_max=3)
    assert attempts == [None, b"1", b"2"]


def test_an_exception_of_transact_is_raised_and_changes_nothing(db: siltstone.Db, users: siltstone.Partition) -> None:
    kept: list[siltstone.Transaction] = []

    def fail(transaction: siltstone.Transaction) -> None:
        kept.append(transaction)
        transaction.put(users, b"k", b"v")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.transact(fail)
    assert not users.contains(b"k")
    with pytest.raises(siltstone.InvalidArgument, match="committed or rolled back"):
        kept[0].put(users, b"k", b"v")


def test_the_function_of_transact_cannot_end_its_transaction(db: siltstone.Db, users: siltstone.Partition) -> None:
    with pytest.raises(siltstone.InvalidArgument, match="must not end"):
        db.transact(lambda transaction: transaction.commit())
    with pytest.raises(siltstone.InvalidArgument, match="must not end"):
        db.transact(lambda transaction: transaction.rollback())


def test_a_lock_of_a_key_times_out(db: siltstone.Db, users: siltstone.Partition) -> None:
    users.put(b"k", b"v")
    first = db.transaction()
    assert first.get_for_update(users, b"k") == b"v"
    second = db.transaction()
    second.set_lock_timeout(0.01)
    with pytest.raises(siltstone.LockTimeout, match="k") as raised:
        second.get_for_update(users, b"k")
    assert isinstance(raised.value, TimeoutError)
    first.rollback()
    assert second.get_for_update(users, b"k") == b"v"


def test_transact_repeats_after_a_deadlock(db: siltstone.Db, users: siltstone.Partition) -> None:
    both = threading.Barrier(2)
    met: list[list[bytes]] = []

    def lock_both(order: list[bytes]) -> None:
        def work(transaction: siltstone.Transaction) -> None:
            transaction.get_for_update(users, order[0])
            # Both hold their first key once; one of the two is then refused and repeated alone.
            if len(met) < 2:
                met.append(order)
                both.wait(60)
            value = transaction.get_for_update(users, order[1], b"") or b""
            transaction.put(users, order[1], value + b"x")

        db.transact(work)

    threads = [threading.Thread(target=lock_both, args=(order,)) for order in ([b"a", b"b"], [b"b", b"a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert users.get(b"a") == b"x" and users.get(b"b") == b"x"

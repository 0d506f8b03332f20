"""Hooks of Python: merge operators and compaction filters, what they raise, and what they may not do."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import siltstone
from siltstone import CompactionFilter, Decision, MergeOperator


def longest(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
    return max([existing, *operands], key=len)


def no_operand(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
    raise ValueError(f"nothing merges into {existing!r}")


def filtered(db: siltstone.Db, function: Callable[[bytes, bytes | None], Decision | bytes]) -> siltstone.Partition:
    return db.partition("swept", compaction_filters=[CompactionFilter("sweeper", function)], large_values=True)


def quiet(call: Callable[[], None]) -> None:
    try:
        call()
    except siltstone.Error:
        pass


class TestMergeOperator:
    def test_operands_come_in_one_call_and_in_order(self, db: siltstone.Db) -> None:
        calls: list[tuple[bytes, bytes, list[bytes]]] = []

        def joined(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
            calls.append((key, existing, operands))
            return b"".join([existing, *operands])

        p = db.partition("joined", merge_operator=MergeOperator("joined", joined))
        p[b"k"] = b"0"
        for operand in (b"1", b"2", b"3"):
            p.merge(b"k", operand)
        assert p[b"k"] == b"0123"
        assert (b"k", b"0", [b"1", b"2", b"3"]) in calls

    def test_a_key_without_a_value_takes_the_first_operand(self, db: siltstone.Db) -> None:
        p = db.partition("names", merge_operator=MergeOperator("longest", no_operand))
        p.merge(b"k", b"bob")
        assert p[b"k"] == b"bob"

    def test_every_read_and_job_folds(self, db: siltstone.Db) -> None:
        p = db.partition("names", merge_operator=MergeOperator("longest", longest))
        for name in (b"bob", b"robert", b"rob"):
            p.merge(b"k", name)
            db.flush()
        p.merge(b"other", b"x")
        assert dict(p.scan()) == {b"k": b"robert", b"other": b"x"}
        p.compact()
        with db.snapshot() as snapshot, db.transaction() as t:
            assert snapshot.get(p, b"k") == t.get(p, b"k") == b"robert"
        assert p.multi_get([b"k"]) == [b"robert"] and bytes(p.get_ref(b"k") or b"") == b"robert"

    def test_later_opens_and_secondaries_need_the_code(self, tmp_path: Path) -> None:
        operator = MergeOperator("longest", longest, params=b"v1")
        with siltstone.open(tmp_path / "db") as db:
            p = db.partition("names", merge_operator=operator)
            p.merge(b"k", b"bob")
            p.merge(b"k", b"robert")
            with siltstone.open_secondary(tmp_path / "db", merge_operators=[operator]) as secondary:
                assert secondary.partition("names").get(b"k", level="strong") == b"robert"
        with siltstone.open(tmp_path / "db") as db:
            with pytest.raises(siltstone.Unsupported, match="longest"):
                db.partition("names").get(b"k")
        with siltstone.open(tmp_path / "db", merge_operators=[operator]) as db:
            assert db.partition("names")[b"k"] == b"robert"

    def test_an_exception_is_the_error_of_the_read_and_its_cause(self, db: siltstone.Db) -> None:
        p = db.partition("names", merge_operator=MergeOperator("picky", no_operand))
        p[b"k"] = b"v"
        p.merge(b"k", b"1")
        text = (
            r'partition "names", key "k", merge operator "picky": ValueError: nothing merges into b\'v\''
            r" \(.*test_hooks.py, line \d+\)"
        )
        with pytest.raises(siltstone.HookPanicked, match=text) as raised:
            p.get(b"k")
        cause = raised.value.__cause__
        assert isinstance(cause, ValueError) and cause.__traceback__ is not None
        # Jobs keep what they cannot fold, and other keys are not affected.
        p[b"other"] = b"1"
        db.flush()
        p.compact()
        assert p[b"other"] == b"1"
        with pytest.raises(siltstone.HookPanicked, match="picky"):
            p.get(b"k")
        p[b"k"] = b"again"
        assert p[b"k"] == b"again"

    @pytest.mark.parametrize("returned", [None, "text", 7])
    def test_another_type_than_bytes_is_refused(self, db: siltstone.Db, returned: object) -> None:
        def wrong(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
            return returned  # type: ignore[return-value]

        p = db.partition("names", merge_operator=MergeOperator("wrong", wrong))
        p[b"k"] = b"v"
        p.merge(b"k", b"1")
        with pytest.raises(siltstone.HookPanicked, match='merge operator "wrong": TypeError'):
            p.get(b"k")

    def test_a_buffer_is_bytes(self, db: siltstone.Db) -> None:
        operator = MergeOperator("buffer", lambda key, existing, operands: bytearray(b"made"))
        p = db.partition("names", merge_operator=operator)
        p.merge(b"k", b"1")
        p.merge(b"k", b"2")
        assert p[b"k"] == b"made"

    def test_many_threads_merge_and_read(self, db: siltstone.Db) -> None:
        p = db.partition("names", merge_operator=MergeOperator("longest", longest))

        def work() -> None:
            for count in range(200):
                p.merge(b"k", b"x" * (count % 50 + 1))
                p.get(b"k")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert p[b"k"] == b"x" * 50


class TestCompactionFilter:
    def test_entries_stay_go_or_change(self, db: siltstone.Db) -> None:
        seen: dict[bytes, bytes | None] = {}

        def sweep(key: bytes, value: bytes | None) -> Decision | bytes:
            seen[key] = value
            if key == b"replaced":
                return b"new"
            return Decision.REMOVE if key == b"removed" else Decision.KEEP

        p = filtered(db, sweep)
        for key in (b"kept", b"removed", b"replaced"):
            p[key] = b"old"
        large = bytes(100_000)
        p[b"large"] = large
        db.flush()
        p.compact()
        assert dict(p.scan()) == {b"kept": b"old", b"large": large, b"replaced": b"new"}
        # A large value is not read.
        assert seen[b"kept"] == b"old" and seen[b"large"] is None

    def test_what_a_snapshot_sees_stays(self, db: siltstone.Db) -> None:
        p = filtered(db, lambda key, value: Decision.REMOVE)
        p[b"k"] = b"v"
        with db.snapshot() as snapshot:
            p.compact()
            assert snapshot.get(p, b"k") == b"v"
        p[b"k"] = b"v"
        db.flush()
        p.compact()
        assert b"k" not in p

    def test_an_exception_fails_the_job_and_loses_nothing(self, db: siltstone.Db) -> None:
        fails = True

        def sweep(key: bytes, value: bytes | None) -> Decision:
            if fails:
                raise RuntimeError("not today")
            return Decision.KEEP

        p = filtered(db, sweep)
        p[b"k"] = b"v"
        text = 'partition "swept", key "k", compaction filter "sweeper": RuntimeError: not today'
        with pytest.raises(siltstone.HookPanicked, match=text):
            db.flush()
        assert p[b"k"] == b"v"
        fails = False
        db.flush()
        assert p[b"k"] == b"v"

    def test_the_health_has_the_exception_of_a_background_job(self, tmp_path: Path) -> None:
        def sweep(key: bytes, value: bytes | None) -> Decision:
            raise RuntimeError("not today")

        with siltstone.open(tmp_path, write_buffer_bytes=64 << 10) as db:
            p = filtered(db, sweep)
            for number in range(60):
                p[b"%d" % number] = bytes(2000)
            deadline = time.monotonic() + 60
            while not (errors := db.health()["background_errors"]):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert "sweeper" in str(errors) and "RuntimeError: not today" in str(errors)
            assert len(list(p)) == 60

    @pytest.mark.parametrize("returned", [None, True, "keep"])
    def test_another_answer_is_refused(self, db: siltstone.Db, returned: object) -> None:
        answers = [returned]
        p = filtered(db, lambda key, value: answers[0])  # type: ignore[arg-type, return-value]
        p[b"k"] = b"v"
        with pytest.raises(siltstone.HookPanicked, match=r"returns Decision.KEEP, Decision.REMOVE or bytes, not"):
            db.flush()
        answers[0] = Decision.KEEP
        assert p[b"k"] == b"v"

    def test_a_later_open_finds_the_filter_by_its_name(self, tmp_path: Path) -> None:
        sweeper = CompactionFilter("sweeper", lambda key, value: Decision.REMOVE)
        with siltstone.open(tmp_path / "db") as db:
            db.partition("swept", compaction_filters=[sweeper])
        with siltstone.open(tmp_path / "db") as db:
            # Without the code entries stay, and the health says so.
            p = db.partition("swept")
            p[b"k"] = b"v"
            db.flush()
            p.compact()
            assert b"k" in p and "sweeper" in str(db.health())
        with siltstone.open(tmp_path / "db", compaction_filters=[sweeper]) as db:
            p = db.partition("swept")
            p[b"other"] = b"v"
            db.flush()
            p.compact()
            assert list(p) == []

    def test_filters_decide_in_their_order(self, db: siltstone.Db) -> None:
        first = CompactionFilter("first", lambda key, value: b"1" + (value or b"") if value == b"" else Decision.KEEP)
        second = CompactionFilter("second", lambda key, value: (value or b"") + b"2" if value == b"1" else Decision.KEEP)
        p = db.partition("swept", compaction_filters=[first, second])
        p[b"k"] = b""
        db.flush()
        p.compact()
        assert p[b"k"] == b"12"


class TestRules:
    @pytest.mark.parametrize("hook", [MergeOperator, CompactionFilter])
    def test_arguments(self, hook: type[MergeOperator | CompactionFilter], db: siltstone.Db) -> None:
        with pytest.raises(TypeError, match="not callable"):
            hook("name", 7)  # type: ignore[arg-type]
        with pytest.raises(siltstone.InvalidArgument, match="is empty"):
            hook("", longest)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            hook(b"name", longest)  # type: ignore[arg-type]
        made = hook("name", longest)  # type: ignore[arg-type]
        assert made.name == "name" and "name" in repr(made)

    def test_wrong_options(self, db: siltstone.Db, tmp_path: Path) -> None:
        operator = MergeOperator("longest", longest)
        with pytest.raises(TypeError):
            db.partition("p", compaction_filters=[operator])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            db.partition("p", compaction_filters=operator)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            siltstone.open(tmp_path / "other", merge_operators=["add"])  # type: ignore[list-item]

    def test_a_hook_calls_nothing_of_the_package(self, db: siltstone.Db) -> None:
        refused: list[str] = []

        def sweep(key: bytes, value: bytes | None) -> Decision:
            calls: list[Callable[[], object]] = [
                db.close, db.flush, db.snapshot, db.transaction, lambda: p.get(b"k"), lambda: p.put(b"k", b"w"),
                lambda: list(p), p.compact,
            ]
            for call in calls:
                with pytest.raises(siltstone.InvalidArgument, match="a hook may call nothing"):
                    call()
                refused.append(key.decode())
            return Decision.KEEP

        p = filtered(db, sweep)
        p[b"k"] = b"v"
        db.flush()
        assert len(refused) >= 8 and p[b"k"] == b"v"
        # This thread has left the hook that it ran.
        assert list(p) == [b"k"]

    def test_a_hook_frees_the_last_objects_of_its_database(self, tmp_path: Path) -> None:
        held: dict[str, object] = {}
        freed = threading.Event()
        go_on = threading.Event()

        def sweep(key: bytes, value: bytes | None) -> Decision:
            go_on.wait(60)
            held.clear()
            gc.collect()
            freed.set()
            return Decision.KEEP

        db = siltstone.open(tmp_path / "db", write_buffer_bytes=64 << 10)
        p = filtered(db, sweep)
        held["db"] = db
        held["partition"] = p
        for number in range(60):
            p[b"%d" % number] = bytes(2000)
        del db, p
        go_on.set()
        assert freed.wait(60)
        # Another thread closes it, and then it opens again.
        sweeper = CompactionFilter("sweeper", lambda key, value: Decision.KEEP)
        deadline = time.monotonic() + 60
        while True:
            try:
                with siltstone.open(tmp_path / "db", compaction_filters=[sweeper]) as db:
                    assert len(list(db.partition("swept"))) == 60
                return
            except siltstone.Locked:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def test_an_exception_frees_the_last_objects_of_its_database(self, tmp_path: Path) -> None:
        held: list[object] = []
        go_on = threading.Event()

        def sweep(key: bytes, value: bytes | None) -> Decision:
            go_on.wait(60)
            if not held:
                return Decision.KEEP
            # The frame of the exception alone keeps them now.
            last = [held.pop(), held.pop()]
            raise ValueError(len(last))

        db = siltstone.open(tmp_path / "db", write_buffer_bytes=64 << 10)
        p = filtered(db, sweep)
        held += [db, p]
        for number in range(60):
            p[b"%d" % number] = bytes(2000)
        del db, p
        go_on.set()
        sweeper = CompactionFilter("sweeper", lambda key, value: Decision.KEEP)
        deadline = time.monotonic() + 15
        while True:
            try:
                with siltstone.open(tmp_path / "db", compaction_filters=[sweeper]) as db:
                    assert len(list(db.partition("swept"))) == 60
                return
            except siltstone.Locked:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def test_an_interrupt_in_a_hook_reaches_the_main_thread(self, db: siltstone.Db) -> None:
        def merge(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
            signal.raise_signal(signal.SIGINT)
            return existing

        p = db.partition("names", merge_operator=MergeOperator("interrupted", merge))
        p[b"k"] = b"v"
        p.merge(b"k", b"1")
        try:
            quiet(lambda: print(p.get(b"k")))
            time.sleep(1)
        except KeyboardInterrupt:
            return
        pytest.fail("no interrupt")

    def test_an_exception_that_the_engine_ignores_is_freed(self, db: siltstone.Db) -> None:
        class Local:
            pass

        locals_of_hooks: list[weakref.ref[Local]] = []

        def merge(key: bytes, existing: bytes, operands: list[bytes]) -> bytes:
            local = Local()
            locals_of_hooks.append(weakref.ref(local))
            raise ValueError

        p = db.partition("names", merge_operator=MergeOperator("failing", merge))
        for _ in range(3):
            p[b"k"] = b"v"
            p.merge(b"k", b"1")
            db.flush()
        p.compact()
        assert locals_of_hooks
        # The next call on this thread.
        db.partition_names()
        gc.collect()
        assert [local() for local in locals_of_hooks] == [None] * len(locals_of_hooks)

    def test_the_last_object_closes_a_database_whose_jobs_call_hooks(self, tmp_path: Path) -> None:
        sweeper = CompactionFilter("sweeper", lambda key, value: Decision.KEEP)
        for _ in range(5):
            db = siltstone.open(tmp_path / "db", write_buffer_bytes=64 << 10, compaction_filters=[sweeper])
            p = db.partition("swept", compaction_filters=[sweeper])
            for number in range(300):
                p[b"%d" % number] = bytes(1000)
            del db, p

    def test_a_close_waits_for_a_hook_that_runs(self, tmp_path: Path) -> None:
        started = threading.Event()
        go_on = threading.Event()

        def sweep(key: bytes, value: bytes | None) -> Decision:
            started.set()
            go_on.wait(60)
            return Decision.KEEP

        db = siltstone.open(tmp_path / "db")
        p = filtered(db, sweep)
        p[b"k"] = b"v"
        threading.Thread(target=quiet, args=(db.flush,)).start()
        assert started.wait(60)
        closing = threading.Thread(target=db.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        go_on.set()
        closing.join(60)
        assert not closing.is_alive()

"""Random work on a database and on a dict, which stay the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import siltstone

# Few keys, so that they meet each other; with the bytes at which comparisons and prefixes go wrong.
KEYS = st.binary(min_size=1, max_size=3).map(lambda key: bytes(b"\x00a\xff"[byte % 3] for byte in key))
VALUES = st.one_of(st.binary(max_size=40), st.integers(1000, 9000).map(bytes))


class DatabaseAndDict(RuleBasedStateMachine):
    """One partition and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model: dict[bytes, bytes] = {}
        self.snapshots: list[tuple[siltstone.Snapshot, dict[bytes, bytes]]] = []
        self.open()

    def open(self) -> None:
        self.db = siltstone.open(self.folder, write_buffer_bytes=16 << 10, cache_bytes=1 << 20)
        self.users = self.db.partition("users", large_values={"threshold_bytes": 2048})

    def teardown(self) -> None:
        self.db.close()
        shutil.rmtree(self.folder)

    def in_range(self, start: bytes | None, stop: bytes | None) -> list[bytes]:
        keys = sorted(self.model)
        return [key for key in keys if (start is None or start <= key) and (stop is None or key < stop)]

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.users.put(key, value)
        self.model[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.users.delete(key)
        self.model.pop(key, None)

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS)
    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        self.users.delete_range(start, stop)
        for key in self.in_range(start, stop):
            del self.model[key]

    @rule(prefix=KEYS)
    def delete_prefix(self, prefix: bytes) -> None:
        self.users.delete_prefix(prefix)
        self.model = {key: value for key, value in self.model.items() if not key.startswith(prefix)}

    @rule(changes=st.lists(st.tuples(KEYS, st.none() | VALUES)), way=st.sampled_from(["batch", "transaction", "fail"]))
    def change_several(self, changes: list[tuple[bytes, bytes | None]], way: str) -> None:
        model = dict(self.model)
        try:
            with self.db.batch() if way == "batch" else self.db.transaction() as several:
                for key, value in changes:
                    if value is None:
                        several.delete(self.users, key)
                        model.pop(key, None)
                    else:
                        several.put(self.users, key, value)
                        model[key] = value
                if way == "fail":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        self.model = model

    @rule(key=KEYS, value=VALUES, expected=st.none() | VALUES, right=st.booleans())
    def compare_and_set(self, key: bytes, value: bytes, expected: bytes | None, right: bool) -> None:
        if right:
            expected = self.model.get(key)
        done = self.users.compare_and_set(key, expected, value)
        assert (done is not None) == (self.model.get(key) == expected)
        if done is not None:
            self.model[key] = value

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.db.snapshot(), dict(self.model)))

    @rule()
    def read_snapshots(self) -> None:
        for snapshot, model in self.snapshots:
            assert list(snapshot.scan(self.users)) == sorted(model.items())

    @rule(work=st.sampled_from(["flush", "compact", "reopen"]))
    def rearrange(self, work: str) -> None:
        if work == "flush":
            self.users.flush()
        elif work == "compact":
            self.users.compact()
        else:
            self.snapshots.clear()
            self.db.close()
            self.open()

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans())
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> None:
        keys = self.in_range(start, stop)[:: -1 if reverse else 1]
        assert list(self.users.keys(start, stop, reverse=reverse)) == keys
        assert list(self.users.scan(start, stop, reverse=reverse)) == [(key, self.model[key]) for key in keys]

    @rule(prefix=KEYS, reverse=st.booleans())
    def scan_prefix(self, prefix: bytes, reverse: bool) -> None:
        keys = [key for key in sorted(self.model, reverse=reverse) if key.startswith(prefix)]
        assert list(self.users.values(prefix=prefix, reverse=reverse)) == [self.model[key] for key in keys]

    @rule(keys=st.lists(KEYS))
    def get(self, keys: list[bytes]) -> None:
        expected = [self.model.get(key) for key in keys]
        assert self.users.multi_get(keys) == expected
        assert [self.users.get(key) for key in keys] == expected
        assert [None if view is None else bytes(view) for view in map(self.users.get_ref, keys)] == expected

    @invariant()
    def ends_agree(self) -> None:
        items = sorted(self.model.items())
        assert self.users.first() == (items[0] if items else None)
        assert self.users.last() == (items[-1] if items else None)


TestDatabaseAndDict = DatabaseAndDict.TestCase
TestDatabaseAndDict.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

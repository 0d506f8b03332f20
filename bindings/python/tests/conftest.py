"""Fixtures: a database in a folder of the test, and its default partition."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone

# A call that never returns names its place, and ends the run.
faulthandler.dump_traceback_later(900, exit=True)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[siltstone.Db]:
    """A database that is closed after the test."""
    with siltstone.open(tmp_path / "db", cache_bytes=8 << 20, write_buffer_bytes=1 << 20) as db:
        yield db


@pytest.fixture
def users(db: siltstone.Db) -> siltstone.Partition:
    """A partition of it."""
    return db.partition("users")

"""Resources that databases share, and the rate of background writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone


def test_databases_share_resources(tmp_path: Path) -> None:
    resources = siltstone.Resources(
        cache_bytes=1 << 20,
        write_buffer_bytes=1 << 20,
        flush_threads=1,
        compaction_threads=1,
        background_bytes_per_second=1 << 20,
        open_files_max=100,
    )
    databases = [siltstone.open(tmp_path / str(number), resources=resources) for number in range(3)]
    for db in databases:
        db.partition("users")[b"k"] = b"v"
    usage = resources.usage()
    assert usage["databases"] == 3 and usage["threads"] >= 1
    assert usage["open_files_max"] == 100 and usage["write_buffer_bytes"] == 1 << 20
    assert usage["background_bytes_per_second"] == 1 << 20 and usage["active_memtable_bytes"] > 0
    with siltstone.open_secondary(tmp_path / "0", resources=resources) as secondary:
        assert secondary.partition("users").get(b"k", level="strong") == b"v"
        assert resources.usage()["followed_memtable_bytes"] > 0
    databases[0].close()
    assert resources.usage()["databases"] == 2
    # In any order: the open databases keep what they need.
    del resources
    databases[1].flush()
    databases[2].close()
    databases[1].close()


def test_the_rate_of_background_writes_changes(tmp_path: Path) -> None:
    resources = siltstone.Resources()
    assert resources.usage()["background_bytes_per_second"] == 0
    resources.set_background_bytes_per_second(1 << 20)
    assert resources.usage()["background_bytes_per_second"] == 1 << 20
    with pytest.raises(siltstone.InvalidArgument):
        resources.set_background_bytes_per_second(1)
    with siltstone.open(tmp_path, background_bytes_per_second=1 << 20) as db:
        db.set_background_bytes_per_second(0)
        db.set_background_bytes_per_second(1 << 21)
        with pytest.raises(siltstone.InvalidArgument):
            db.set_background_bytes_per_second(1)
    with pytest.raises(siltstone.Closed):
        db.set_background_bytes_per_second(0)


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match='Resources has no option "cache"'):
        siltstone.Resources(cache=1)  # type: ignore[call-arg]
    with pytest.raises(siltstone.InvalidArgument, match="open_files_max is 0"):
        siltstone.Resources(open_files_max=0)
    with pytest.raises(TypeError):
        siltstone.open(tmp_path, resources=7)  # type: ignore[arg-type]

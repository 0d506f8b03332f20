"""The types: the stubs agree with the classes, and a program is checked by them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
HERE = Path(__file__).parent


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=600, check=False, cwd=HERE.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stubs_agree_with_the_classes() -> None:
    run("mypy.stubtest", "siltstone")


def test_the_tests_are_well_typed() -> None:
    # And wrong programs are refused: the tests say with comments where they are wrong on purpose.
    run("mypy", "--strict", "tests", "python/siltstone")

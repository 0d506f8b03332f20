"""The programs of the pages run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import siltstone
import siltstone.aio

PACKAGE = Path(__file__).parents[1]
PAGES = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs/bindings.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_first_program_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], str(page), "exec"), {})
    assert capsys.readouterr().out == "b'alice' b'admin'\n"


@pytest.mark.parametrize("package", [siltstone, siltstone.aio], ids=lambda package: package.__name__)
def test_every_class_and_method_is_documented(package: ModuleType) -> None:
    for name in package.__all__:
        exported = getattr(package, name)
        assert exported.__doc__, name
        for method, it in vars(exported).items() if isinstance(exported, type) else ():
            if not method.startswith("_") and callable(it):
                assert it.__doc__, f"{name}.{method}"

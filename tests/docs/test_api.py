"""The page about the Python API says what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "api.md"


@pytest.mark.native
@pytest.mark.usefixtures("smollm2")
def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PAGE.parent.parent))
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "exact: same recipe, certificate re-checked" in printed
    assert "Petrel" in printed


def test_names_of_the_package_exist() -> None:
    import taliesin

    assert all(getattr(taliesin, name) is not None for name in taliesin.__all__)

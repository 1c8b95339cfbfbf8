"""`galahad prereg`: what the commands print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from galahad import cli
from galahad.evidence import prereg
from galahad.evidence.prereg import inputs
from taliesin.host import console
from tests.galahad.evidence.prereg.plans import still, write_plan


def test_commands_print_hash_and_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_quiet", False)
    monkeypatch.setattr(inputs, "package_sha256", still)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["galahad", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, capsys.readouterr().out

    plan = write_plan(tmp_path, right=2)
    code, out = call("prereg", "lock", str(plan))
    digest, path = out.split()
    assert (code, digest) == (0, prereg.check(Path(path)).lock_sha256)
    code, out = call("prereg", "check", path, "--sha256", digest)
    assert code == 0
    code, out = call("prereg", "run", path)
    assert code == 3
    assert "FAILED       most are right (right / n > 0.5, measured 0.2)" in out
    code, out = call("prereg", "check", path, "--json")
    assert (code, json.loads(out)["intact"]) == (3, True)
    (plan.parent / "out.json").unlink()
    code, out = call("prereg", "check", path)
    assert code == 44

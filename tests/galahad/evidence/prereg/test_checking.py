"""What a check finds after a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from galahad.errors import PreregError
from galahad.evidence import prereg
from galahad.evidence.prereg import files
from taliesin.errors import ModelError
from tests.galahad.evidence.prereg.plans import plan_fields


def test_chain_holds_from_the_lock_to_the_verdicts(make: Callable[..., Path]) -> None:
    path, digest = prereg.lock(make())
    assert prereg.check(path, digest).verdicts == []
    found = prereg.run(path)
    assert found.intact
    assert [(v.value, v.held) for v in found.verdicts] == [(0.8, True), (0.5, True)]
    again = prereg.check(path, digest)
    assert again == prereg.check(path, digest)
    assert {item.state for item in again.items} == {"same"}
    assert {"plan", "prompts", "file data", "package galahad", "output out.json"} <= {
        i.what for i in again.items
    }


def test_check_finds_what_was_changed_afterwards(make: Callable[..., Path], tmp_path: Path) -> None:
    path, digest = prereg.lock(make())
    prereg.run(path)
    (tmp_path / "out.json").write_text('{"n": 10, "right": 10, "arms": [{"p": 0.9}]}')
    found = prereg.check(path, digest)
    assert [i.what for i in found.items if i.state == "differs"] == [
        "output out.json",
        "predictions",
    ]
    assert (
        next(i.what for i in prereg.check(path, "0" * 64).items if i.state == "differs") == "lock"
    )
    record = prereg.record_path(path)
    fields = json.loads(record.read_bytes())
    files.write(record, {**fields, "lock_sha256": "0" * 64})
    assert "record's lock" in [i.what for i in prereg.check(path).items if i.state == "differs"]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b'"seed":[0,1]', b'"seed":[0, 1]'))
    with pytest.raises(PreregError, match="edited"):
        prereg.check(path)


def test_model_is_needed_to_lock_and_not_to_check(
    make: Callable[..., Path], tmp_path: Path, tiny_gguf: Path
) -> None:
    path, digest = prereg.lock(make(models=[tiny_gguf.name]))
    prereg.run(path)
    tiny_gguf.unlink()
    found = prereg.check(path, digest)
    assert found.intact
    assert [i.state for i in found.items if i.what.startswith("model")] == ["not checked"]
    (tmp_path / "second.yaml").write_text(
        yaml.safe_dump(
            plan_fields(models=[tiny_gguf.name], outputs=["b.json"])
            | {
                "predictions": [
                    {"statement": "s", "from": "b.json", "field": "n", "operator": ">", "value": 0}
                ]
            }
        )
    )
    with pytest.raises(ModelError):
        prereg.lock(tmp_path / "second.yaml")


def test_published_hash_of_the_record_shows_a_careful_edit(make: Callable[..., Path]) -> None:
    path, digest = prereg.lock(make())
    published = prereg.run(path).record_sha256
    assert prereg.check(path, digest, published_record=published).intact
    record = prereg.record_path(path)
    fields = json.loads(record.read_bytes())
    files.write(record, {**fields, "exit_codes": [3]})  # sealed anew
    assert prereg.check(path, digest).intact
    found = prereg.check(path, digest, published_record=published)
    assert [i.what for i in found.items if i.state == "differs"] == ["record"]
    record.unlink()
    found = prereg.check(path, digest, published_record=published)
    assert [i.what for i in found.items if i.state == "missing"] == ["record"]


def test_lock_whose_plan_was_edited_is_refused_in_run_and_check(make: Callable[..., Path]) -> None:
    path, _ = prereg.lock(make())
    fields = json.loads(path.read_bytes())
    fields["plan"]["predictions"][0]["value"] = 0.1
    digest = files.write(path, fields)  # sealed and published anew
    with pytest.raises(PreregError, match="plan in the lock: not as registered"):
        prereg.run(path)
    found = prereg.check(path, digest)
    assert [i.what for i in found.items if i.state == "differs"] == ["plan in the lock"]

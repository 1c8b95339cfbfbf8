"""Locks and records that another hand wrote are refused; old versions stay readable."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from galahad.errors import PreregError
from galahad.evidence import prereg
from galahad.evidence.prereg import files, inputs
from galahad.measure.canonical import canonical
from galahad.solve import prompts
from taliesin.host import records
from tests.galahad.evidence.prereg.plans import still, write_plan

GOLDEN = Path(__file__).parents[3] / "golden" / "prereg"


@pytest.mark.parametrize(
    "change",
    [
        {"plan": None},
        {"plan": {"title": "x"}},
        {"inputs": ["a"]},
        {"inputs": {"file a": 1}},
        {"inputs": {"prompts": None}},
        {"plan_sha256": 5},
        {"versions": None},
    ],
)
def test_lock_that_another_hand_wrote_is_one_error(
    make: Callable[..., Path], change: dict[str, Any]
) -> None:
    path, _ = prereg.lock(make())
    fields = {**json.loads(path.read_bytes()), **change}
    files.write(path, fields)
    for step in (prereg.run, prereg.check):
        with pytest.raises(PreregError):
            step(path)


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": None},
        {"outputs": {"out.json": 3}},
        {"outputs": {}},
        {"lock_sha256": None},
        {"predictions": {}},
        {"predictions": [1]},
    ],
)
def test_record_that_another_hand_wrote_is_one_error(
    make: Callable[..., Path], change: dict[str, Any]
) -> None:
    path, _ = prereg.lock(make())
    prereg.run(path)
    record = prereg.record_path(path)
    files.write(record, {**json.loads(record.read_bytes()), **change})
    with pytest.raises(PreregError):
        prereg.check(path)


@pytest.mark.parametrize("label", ["package antigravity", "file ../outside", "model x"])
def test_lock_may_name_no_input_that_its_plan_does_not(
    make: Callable[..., Path], label: str
) -> None:
    path, _ = prereg.lock(make())
    fields = json.loads(path.read_bytes())
    files.write(path, {**fields, "inputs": {**fields["inputs"], label: "0" * 64}})
    with pytest.raises(PreregError, match="not those of its plan"):
        prereg.check(path)
    files.write(
        path, {**fields, "inputs": {k: v for k, v in fields["inputs"].items() if k != "file data"}}
    )
    with pytest.raises(PreregError, match="not those of its plan"):
        prereg.check(path)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("codes", [[], None, [0, 0], ["0"], [True], [1, 0]])
def test_exit_codes_that_no_run_of_the_plan_has_are_refused(
    make: Callable[..., Path], codes: Any
) -> None:
    path, _ = prereg.lock(make())
    prereg.run(path)
    record = prereg.record_path(path)
    fields = json.loads(record.read_bytes())
    files.write(record, {**fields, "exit_codes": codes})
    with pytest.raises(PreregError, match=r"exit.codes"):
        prereg.check(path)
    del fields["exit_codes"]
    files.write(record, fields)
    with pytest.raises(PreregError, match="has no field exit_codes"):
        prereg.check(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "package_sha256", still)
        plan = write_plan(folder)
        path, _ = prereg.lock(plan)
        prereg.run(path)
    return path


def _leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*place, i))
    else:
        yield place


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_edit_of_a_field_of_lock_or_record_is_caught(finished: Path, data: Any) -> None:
    file = data.draw(st.sampled_from([finished, prereg.record_path(finished)]))
    original = file.read_bytes()
    fields = json.loads(original)
    place = data.draw(st.sampled_from(sorted(_leaves(fields), key=str)))
    *way, last = place
    inner = fields
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        del inner[last]
    else:
        other = data.draw(
            st.one_of(st.none(), st.integers(-5, 5), st.floats(0, 1), st.text(max_size=5))
        )
        assume(json.dumps(other) != json.dumps(inner[last]))
        inner[last] = other
    file.chmod(0o600)
    try:
        file.write_bytes(canonical(fields) + b"\n")
        try:
            caught = not prereg.check(finished).intact
        except PreregError:
            caught = True
    finally:
        file.write_bytes(original)
    assert caught
    assert prereg.check(finished).intact  # the control: untouched, it holds


def test_lock_and_record_of_version_1_stay_readable(make: Callable[..., Path]) -> None:
    path, _ = prereg.lock(make())
    prereg.run(path)
    record = prereg.record_path(path)

    def as_version_1(file: Path, left_out: set[str]) -> bytes:
        fields = json.loads(file.read_bytes())
        kept = {key: value for key, value in fields.items() if key not in left_out}
        return canonical({**kept, "schema": fields["schema"][:-1] + "1"}) + b"\n"

    lock = as_version_1(path, {"seal"})
    path.chmod(0o600)
    path.write_bytes(lock)
    fields = json.loads(as_version_1(record, {"seal", "code"}))
    fields["lock_sha256"] = hashlib.sha256(lock).hexdigest()
    record.chmod(0o600)
    record.write_bytes(canonical(fields) + b"\n")
    found = prereg.check(path)
    assert found.intact
    assert [v.held for v in found.verdicts] == [True, True]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_files_of_before_the_typed_records_are_read_and_hang_together(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = GOLDEN / version / "plan.lock.json"
    found, _ = files.read_lock(path)
    monkeypatch.setattr(inputs, "versions", lambda: found.versions)
    monkeypatch.setattr(prompts, "prompts_sha256", lambda: found.inputs["prompts"])
    checked = prereg.check(path)
    assert [item for item in checked.items if item.state != "same"] == []
    assert [(v.value, v.held) for v in checked.verdicts] == [(0.8, True), (10.0, True)]
    for kind in ("lock", "record"):
        file = GOLDEN / version / f"plan.{kind}.json"
        record = found if kind == "lock" else files.read_record(file, found.plan)[0]
        assert canonical(records.plain(record)) + b"\n" == file.read_bytes()

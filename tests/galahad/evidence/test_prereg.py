"""Preregistration: what is refused before a run, and what a check finds after it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from galahad import cli
from galahad.errors import PreregError
from galahad.evidence import locked_package, prereg
from galahad.solve.log import canonical
from taliesin.errors import ModelError, StoreFull, UsageError
from taliesin.host import console, durable, filehash

SCRIPT = (
    "import json, sys\njson.dump({'n': 10, 'right': int(sys.argv[1]), 'arms': [{'p': 0.5}]}, "
    "open('out.json', 'w'))\n"
)


def plan_fields(right: int = 8, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "title": "A test",
        "files": ["measure.py", "data"],
        "matrix": {"seed": [0, 1]},
        "commands": [[sys.executable, "measure.py", right]],
        "outputs": ["out.json"],
        "predictions": [
            {
                "statement": "most are right",
                "from": "out.json",
                "field": "right / n",
                "operator": ">",
                "value": 0.5,
            },
            {
                "statement": "no effect",
                "from": "out.json",
                "field": "arms.0.p",
                "operator": ">=",
                "value": 0.05,
            },
        ],
    }
    return fields | changes


@pytest.fixture(autouse=True)
def still_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of the packages does not change during a test, whoever is editing it."""
    monkeypatch.setattr(
        prereg, "_package_sha256", lambda name: hashlib.sha256(name.encode()).hexdigest()
    )


def test_hash_of_a_package_is_that_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    before = prereg._package_sha256("some_package")
    (package / "notes.txt").write_text("no source")
    assert prereg._package_sha256("some_package") == before
    (package / "__init__.py").write_text("x = 1")
    assert prereg._package_sha256("some_package") != before


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def made(right: int = 8, **changes: Any) -> Path:
        (tmp_path / "measure.py").write_text(SCRIPT)
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "a.txt").write_text("a")
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump(plan_fields(right, **changes)))
        return path

    return made


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


def test_failed_prediction_is_recorded_as_such(make: Callable[..., Path]) -> None:
    path, _ = prereg.lock(make(right=2))
    found = prereg.run(path)
    assert found.intact
    assert [v.held for v in found.verdicts] == [False, True]
    record = json.loads(prereg.record_path(path).read_bytes())
    assert [p["held"] for p in record["predictions"]] == [False, True]


def test_command_that_fails_leaves_a_record_without_a_measurement(
    make: Callable[..., Path],
) -> None:
    path, _ = prereg.lock(
        make(commands=[[sys.executable, "-c", "raise SystemExit(9)"], ["never", "run"]])
    )
    found = prereg.run(path)
    assert [v.held for v in found.verdicts] == [None, None]
    assert [i.what for i in found.items if i.state == "missing"] == ["output out.json"]
    assert json.loads(prereg.record_path(path).read_bytes())["exit_codes"] == [9]


@pytest.mark.parametrize("written", ["NaN", "Infinity", "1e999", "1" + "0" * 400, "[1]", "null"])
def test_what_is_no_finite_number_is_not_measured_and_loses_no_record(
    make: Callable[..., Path], written: str
) -> None:
    script = f"open('out.json', 'w').write('{{\"n\": 1, \"right\": {written}}}')"
    path, _ = prereg.lock(make(commands=[[sys.executable, "-c", script]]))
    found = prereg.run(path)
    assert found.intact
    assert [v.value for v in found.verdicts] == [None, None]
    assert prereg.check(path) == found


def test_output_that_is_no_run_or_a_link_leaves_a_record(make: Callable[..., Path]) -> None:
    script = "import os; os.mkdir('out.json'); os.mkdir('out'); os.symlink('/', 'out/link')"
    path, _ = prereg.lock(
        make(commands=[[sys.executable, "-c", script]], outputs=["out.json", "out"])
    )
    notes: list[str] = []
    found = prereg.run(path, notes.append)
    assert [v.value for v in found.verdicts] == [None, None]
    assert notes[-1] == "output out: a symbolic link is not hashed"
    assert [(i.what, i.state) for i in found.items if i.state == "missing"] == [
        ("output out", "missing")
    ]


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
    prereg._write(path, fields)
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
    prereg._write(record, {**json.loads(record.read_bytes()), **change})
    with pytest.raises(PreregError):
        prereg.check(path)


@pytest.mark.parametrize("name", ["measure.py", "data/a.txt", "data/new.txt"])
def test_run_does_not_start_where_a_file_differs(
    make: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    path, _ = prereg.lock(make())
    (tmp_path / name).write_text("other")
    with pytest.raises(PreregError, match="not as registered") as caught:
        prereg.run(path)
    assert f"file {name.split('/', maxsplit=1)[0]}" in caught.value.message
    assert not (tmp_path / "out.json").exists()


def test_run_does_not_start_under_other_prompts_code_or_versions(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = prereg.lock(make())
    for target in ("galahad.solve.prompts.prompts_sha256", "galahad.evidence.prereg._versions"):
        with monkeypatch.context() as patch:
            patch.setattr(
                target, (lambda: {"python": "2.7"}) if "versions" in target else (lambda: "0" * 64)
            )
            with pytest.raises(PreregError, match="not as registered"):
                prereg.run(path)
    with monkeypatch.context() as patch:
        patch.setattr(prereg, "_package_sha256", lambda _name: "0" * 64)
        with pytest.raises(PreregError, match="package galahad, package taliesin"):
            prereg.run(path)


def test_input_that_changes_during_the_run_is_found(make: Callable[..., Path]) -> None:
    touch = [sys.executable, "-c", "open('data/a.txt', 'w').write('b')"]
    path, _ = prereg.lock(make(commands=[touch]))
    with pytest.raises(PreregError, match="file data: not as registered"):
        prereg.run(path)
    assert not prereg.record_path(path).exists()


def test_outputs_before_the_run_and_second_runs_are_refused(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    plan = make()
    (tmp_path / "out.json").write_text("{}")
    with pytest.raises(PreregError, match="before the run"):
        prereg.lock(plan)
    (tmp_path / "out.json").unlink()
    path, _ = prereg.lock(plan)
    with pytest.raises(UsageError, match="locked already"):
        prereg.lock(plan)
    prereg.run(path)
    with pytest.raises(PreregError, match="run already"):
        prereg.run(path)


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
    prereg._write(record, {**fields, "lock_sha256": "0" * 64})
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


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(64))
    return path


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"files": ["../x"]}, "leaves the plan's folder"),
        ({"outputs": ["/tmp/x"]}, "leaves the plan's folder"),
        ({"outputs": []}, "no output"),
        ({"predictions": []}, "no prediction"),
        ({"predictions": [{"statement": "x"}]}, "exactly the fields"),
        ({"commands": []}, "lists of words"),
        ({"commands": "rm -rf"}, "lists of words"),
        ({"commands": [[{"a": 1}]]}, "not a text or a number"),
        ({"surprise": 1}, "surprise"),
        ({"title": ""}, "title"),
        ({"matrix": []}, "matrix"),
        ({"models": "x"}, "models"),
        ({"commands": [["echo", True]]}, "quote yes, no"),
        ({"commands": [[""]]}, "an empty word"),
        ({"commands": [["a\0b"]]}, "control character"),
        ({"title": "\x1b[31mred"}, "control character"),
        ({"files": ["."]}, "would change the input"),
        ({"files": ["out.json"]}, "would change the input"),
        ({"files": ["two\nlines"]}, "line break"),
        (
            {
                "predictions": [
                    {"statement": "s", "from": "out.json", "field": "n", "operator": [], "value": 1}
                ]
            },
            "operator",
        ),
        (
            {
                "predictions": [
                    {
                        "statement": "s",
                        "from": "out.json",
                        "field": "a / b / c",
                        "operator": ">",
                        "value": 1,
                    }
                ]
            },
            "share",
        ),
    ],
)
def test_malformed_plan_is_named(
    make: Callable[..., Path], changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        prereg.lock(make(**changes))


def test_plan_that_is_not_yaml_or_not_there_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: [")
    with pytest.raises(UsageError, match="not valid YAML"):
        prereg.lock(tmp_path / "p.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        prereg.lock(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("title: again", "'title' is given twice"),
        ("matrix: {a: 1, a: 2}", "'a' is given twice"),
        ("matrix: {seeds: &seeds [1], again: *seeds}", "an alias"),
        ("matrix: {seed: 010}", "would be read as 8"),
        ("matrix: {time: 1:30:00}", "would be read as 5400"),
        ("matrix: {day: 2024-13-41}", "month"),
        ("matrix: {n: !!int x}", "invalid literal"),
        ("matrix: {n: !!bool x}", "x"),
        (f"matrix: {{n: {'1' * 5000}}}", "digits"),
        (f"matrix: {'[' * 2000}{']' * 2000}", "nested too deeply"),
    ],
)
def test_plan_that_reads_otherwise_than_it_is_written_is_refused(
    make: Callable[..., Path], line: str, what: str
) -> None:
    plan = make()
    fields = yaml.safe_load(plan.read_text())
    del fields["matrix"]
    plan.write_text(yaml.safe_dump(fields) + line + "\n")
    with pytest.raises(UsageError) as caught:
        prereg.lock(plan)
    assert what in str(caught.value)
    assert not prereg.lock_path(plan).exists()


def test_plan_of_another_ending_is_refused_because_its_lock_would_not_find_it(
    make: Callable[..., Path],
) -> None:
    plan = make()
    with pytest.raises(UsageError, match=r"ends in \.yaml"):
        prereg.lock(plan.rename(plan.with_suffix(".yml")))


def test_name_that_is_too_long_is_one_error(make: Callable[..., Path]) -> None:
    with pytest.raises(PreregError, match="not there"):
        prereg.lock(make(files=["x" * 5000]))
    with pytest.raises(ModelError):
        prereg.lock(make(models=["x" * 5000]))


def test_names_that_would_be_two_lines_of_a_folders_hash_are_refused(tmp_path: Path) -> None:
    (tmp_path / f"a\n{'0' * 64}  b").write_text("")
    with pytest.raises(PreregError, match="line break"):
        prereg.hash_path(tmp_path)


def test_command_that_cannot_be_started_leaves_a_record(make: Callable[..., Path]) -> None:
    path, _ = prereg.lock(make(commands=[[sys.executable, "measure.py", 8], ["no-such-program"]]))
    assert [v.held for v in prereg.run(path).verdicts] == [None, None]
    assert json.loads(prereg.record_path(path).read_bytes())["exit_codes"] == [0, 127]


def test_one_process_at_a_time_locks_and_runs_a_plan(make: Callable[..., Path]) -> None:
    plan = make()
    with prereg._alone(plan, "being locked"), pytest.raises(PreregError, match="being locked"):
        prereg.lock(plan)
    path, _ = prereg.lock(plan)
    with prereg._alone(path, "being run"), pytest.raises(PreregError, match="being run"):
        prereg.run(path)
    assert prereg.run(path).intact


def test_record_that_cannot_be_written_is_found_before_the_run(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = prereg.lock(make())

    def full(_path: Path) -> None:
        raise StoreFull("no space")

    monkeypatch.setattr(durable, "require_output", full)
    with pytest.raises(StoreFull):
        prereg.run(path)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("label", ["package antigravity", "file ../outside", "model x"])
def test_lock_may_name_no_input_that_its_plan_does_not(
    make: Callable[..., Path], label: str
) -> None:
    path, _ = prereg.lock(make())
    fields = json.loads(path.read_bytes())
    prereg._write(path, {**fields, "inputs": {**fields["inputs"], label: "0" * 64}})
    with pytest.raises(PreregError, match="not those of its plan"):
        prereg.check(path)
    prereg._write(
        path, {**fields, "inputs": {k: v for k, v in fields["inputs"].items() if k != "file data"}}
    )
    with pytest.raises(PreregError, match="not those of its plan"):
        prereg.check(path)
    assert "antigravity" not in sys.modules


def test_place_in_a_list_is_a_plain_number(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [5]}')
    assert prereg.measured(tmp_path / "x.json", "a.0") == 5
    for place in ("\u00b2", "\u0660", "1" * 5000, "-1"):
        assert prereg.measured(tmp_path / "x.json", f"a.{place}") is None


def test_symbolic_links_are_not_hashed(make: Callable[..., Path], tmp_path: Path) -> None:
    plan = make()
    (tmp_path / "data" / "link").symlink_to("/etc/hostname")
    with pytest.raises(PreregError, match="symbolic link"):
        prereg.lock(plan)


def test_hash_of_a_run_leaves_its_cache_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "prefixes").mkdir(parents=True)
    (run / "run.jsonl").write_text("x")
    before = prereg.hash_path(run)
    (run / "prefixes" / "index.sqlite3").write_text("y")
    assert prereg.hash_path(run) == before
    (run / "run.jsonl").write_text("z")
    assert prereg.hash_path(run) != before


def test_commands_print_hash_and_verdicts(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["galahad", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, capsys.readouterr().out

    plan = make(right=2)
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


def test_lock_can_be_committed_and_tagged(make: Callable[..., Path], tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "--quiet"], cwd=tmp_path, check=True)
    for key, value in (("user.name", "t"), ("user.email", "t@example.org")):
        subprocess.run(["git", "config", key, value], cwd=tmp_path, check=True)
    path, digest = prereg.lock(make())
    prereg.commit(path, "prereg-1")
    log = subprocess.run(
        ["git", "log", "-1", "--format=%s", "prereg-1"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert log.stdout.strip() == f"Preregister plan.yaml: lock {digest}"
    with pytest.raises(PreregError, match="git refused"):
        prereg.commit(path, "prereg-1")


def test_git_that_refuses_is_one_error_and_the_lock_stays(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("*.lock.json\n")
    path, digest = prereg.lock(make())
    with pytest.raises(PreregError) as caught:
        prereg.commit(path, None)
    assert "plan.lock.json" in str(caught.value.got)
    assert prereg.check(path, f" {digest.upper()}\n").intact


# -- lock, plan, the code that ran, exit codes and record hang together ---

FORGER = (
    "import json; json.dump({'n': 10, 'right': 10, 'arms': [{'p': 0.5}]}, open('out.json', 'w'))"
)


@pytest.mark.parametrize("command", [["galahad"], [sys.executable, "-m", "galahad"]])
def test_folder_beside_the_plan_never_runs_in_place_of_the_locked_package(
    make: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for shadow in (tmp_path / "galahad", elsewhere / "galahad", tmp_path / "taliesin"):
        shadow.mkdir(parents=True)
        (shadow / "__init__.py").write_text(FORGER)
        (shadow / "__main__.py").write_text(FORGER)
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    path, _ = prereg.lock(make(commands=[[*command, "--version"]]))
    found = prereg.run(path)
    assert not (tmp_path / "out.json").exists()
    assert prereg.failed(found.verdicts)
    record = json.loads(prereg.record_path(path).read_bytes())
    assert record["exit_codes"] == [0]
    assert "galahad/__main__.py" in record["code"][0]
    assert "code of command 1" in [i.what for i in found.items if i.state == "same"]


def test_byte_code_in_a_cache_never_runs_in_place_of_the_locked_source(tmp_path: Path) -> None:
    package = tmp_path / "some"
    package.mkdir()
    source = package / "__init__.py"
    source.write_text("word = 'ok'\n")
    (package / "__main__.py").write_text("import some; print(some.word)\n")
    cached = importlib.util.cache_from_source(str(source))
    code = compile("word = 'no'\n", str(source), "exec")
    status = source.stat()
    Path(cached).parent.mkdir()
    Path(cached).write_bytes(
        importlib._bootstrap_external._code_to_timestamp_pyc(  # type: ignore[attr-defined]
            code, int(status.st_mtime), status.st_size
        )
    )
    folders, report = json.dumps({"some": str(package)}), tmp_path / "report"
    plain = subprocess.run(
        [sys.executable, "-m", "some"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    safe = subprocess.run(
        [sys.executable, "-P", "-E", locked_package.__file__, folders, str(report), "some"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (plain.stdout, safe.stdout) == ("no\n", "ok\n")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert f"{digest}  some/__init__.py" in report.read_text().splitlines()


def test_nothing_is_held_where_a_command_failed(make: Callable[..., Path]) -> None:
    write = [sys.executable, "-c", FORGER + "; raise SystemExit(1)"]
    refute = [sys.executable, "measure.py", 0]
    path, _ = prereg.lock(make(commands=[write, refute]))
    for found in (prereg.run(path), prereg.check(path)):
        assert [v.held for v in found.verdicts] == [None, None]
        assert [(i.what.split(":")[0], i.state) for i in found.items if "command" in i.what] == [
            ("command 1", "failed"),
            ("command 2", "not run"),
        ]
        assert found.items[-2].got == "exit code 1"


@pytest.mark.parametrize("codes", [[], None, [0, 0], ["0"], [True], [1, 0]])
def test_exit_codes_that_no_run_of_the_plan_has_are_refused(
    make: Callable[..., Path], codes: Any
) -> None:
    path, _ = prereg.lock(make())
    prereg.run(path)
    record = prereg.record_path(path)
    fields = json.loads(record.read_bytes())
    prereg._write(record, {**fields, "exit_codes": codes})
    with pytest.raises(PreregError, match="exit codes"):
        prereg.check(path)
    del fields["exit_codes"]
    prereg._write(record, fields)
    with pytest.raises(PreregError, match="not a record's"):
        prereg.check(path)


def test_published_hash_of_the_record_shows_a_careful_edit(make: Callable[..., Path]) -> None:
    path, digest = prereg.lock(make())
    published = prereg.run(path).record_sha256
    assert prereg.check(path, digest, published_record=published).intact
    record = prereg.record_path(path)
    fields = json.loads(record.read_bytes())
    prereg._write(record, {**fields, "exit_codes": [3]})  # sealed anew
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
    digest = prereg._write(path, fields)  # sealed and published anew
    with pytest.raises(PreregError, match="plan in the lock: not as registered"):
        prereg.run(path)
    found = prereg.check(path, digest)
    assert [i.what for i in found.items if i.state == "differs"] == ["plan in the lock"]


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_plan_that_changed_after_the_lock_is_refused_before_the_first_command(
    make: Callable[..., Path], tmp_path: Path, change: str
) -> None:
    plan = make()
    path, _ = prereg.lock(plan)
    if change == "edited":
        plan.write_text(plan.read_text() + "\n# a word\n")
    else:
        plan.unlink()
    with pytest.raises(PreregError, match="plan: not as registered"):
        prereg.run(path)
    assert not (tmp_path / "out.json").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "measure.py").write_text(SCRIPT)
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("a")
    plan = folder / "plan.yaml"
    plan.write_text(yaml.safe_dump(plan_fields()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            prereg, "_package_sha256", lambda name: hashlib.sha256(name.encode()).hexdigest()
        )
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


def test_poisoned_memory_of_hashes_passes_no_changed_model(
    make: Callable[..., Path], tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = prereg.lock(make(models=[tiny_gguf.name]))
    digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    monkeypatch.setattr(filehash, "remembered_sha256", lambda _path: digest)
    tiny_gguf.write_bytes(tiny_gguf.read_bytes() + b"changed")
    with pytest.raises(PreregError, match="not as registered"):
        prereg.run(path)

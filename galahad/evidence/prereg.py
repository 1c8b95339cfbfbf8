"""A plan whose inputs are hashed before a run and whose outputs are hashed after it, so that
neither can be chosen to fit.

Three files, each of which names the one before it by hash:

    PLAN.yaml          what a person writes: inputs, commands, outputs, and predictions that can
                       fail
    PLAN.lock.json     `lock`: the plan and the SHA-256 of everything that it names. Its own
                       SHA-256 is what to publish
    PLAN.record.json   `run`: the lock's SHA-256, exit codes, the SHA-256 of every source file of
                       ours that each command imported and of every output, the measured values
                       and verdicts

A command that is `galahad` or `taliesin` runs from the locked source alone (`locked_package`),
whatever lies in the working folder or on PYTHONPATH. Where a command failed, nothing is held.

A prediction that fails is recorded as such, and is no error. Lock and record are sealed: each
holds the SHA-256 of its other fields, which shows a careless edit; a careful one is shown by the
published hash of the file. `check` goes over the whole chain on
any machine that has the files; a model file that is not there is said to be not checked.

Deliberately does not know: what the commands do, and when the lock was really made. Publish its
hash, or commit and tag it. Nor whether a record whose
hash was never published is the one that `run` wrote.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import platform
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, NoReturn

from galahad.errors import PreregError
from galahad.evidence import locked_package
from galahad.measure.canonical import canonical, sha256_of
from galahad.solve import log as runlog
from galahad.solve import prompts
from taliesin.errors import ModelError, StoreFull, ToolkitError, UsageError
from taliesin.host import clock, durable, filehash, locks, strict_yaml
from taliesin.models import resolve as models

LOCK_SCHEMA = "galahad.prereg.lock/2"
RECORD_SCHEMA = "galahad.prereg.record/2"
# Version 1 has no seal, and its record no list of the source that ran. Such files stay readable.
_LOCK_SCHEMAS = (LOCK_SCHEMA, "galahad.prereg.lock/1")
_RECORD_SCHEMAS = (RECORD_SCHEMA, "galahad.prereg.record/1")
_LOCK_FIELDS = {"created", "inputs", "plan", "plan_sha256", "schema", "versions"}
_RECORD_FIELDS = {
    "exit_codes",
    "finished",
    "lock_sha256",
    "outputs",
    "predictions",
    "schema",
    "started",
    "versions",
}
_DONE = (0, 3, 4)  # exit codes of a command: done, a verdict of no, done in part
PACKAGES = ("galahad", "taliesin")

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}
_KEYS = {"title", "files", "models", "matrix", "commands", "outputs", "predictions"}
_OPTIONAL = {"files", "models", "matrix"}
_PREDICTION_KEYS = {"statement", "from", "field", "operator", "value"}

State = Literal["same", "differs", "missing", "not checked", "failed", "not run"]


class Item(NamedTuple):
    """One link of the chain: `what` it is, and whether it is what was registered."""

    what: str
    state: State
    expected: str
    got: str


class Verdict(NamedTuple):
    """A prediction and what was measured; `held` is None where there is nothing to measure."""

    statement: str
    expected: str
    value: float | None
    held: bool | None


class Checked(NamedTuple):
    """`items` in the order of the chain; `verdicts` is empty where the run was not made yet, and
    `record_sha256` is None.
    """

    lock_sha256: str
    items: list[Item]
    verdicts: list[Verdict]
    record_sha256: str | None = None

    @property
    def intact(self) -> bool:
        return not any(item.state in ("differs", "missing") for item in self.items)


# -- the plan --------------------------------------------------------------------------------------


def read_plan(path: Path) -> dict[str, Any]:
    """The plan in a YAML file, every field checked.

    Raises:
        UsageError: not readable, not YAML, or not a plan; the field is named.
    """
    try:
        plan = strict_yaml.read(path, what="the plan", error=UsageError)
    except OSError as error:
        raise UsageError("the plan cannot be read", got=error.strerror, where=path) from error
    try:
        return _checked(plan)
    except RecursionError as error:
        raise UsageError("the plan is nested too deeply", where=path) from error
    except _Malformed as error:
        raise UsageError(
            f"the plan is malformed: {error}", where=path, hint="docs/prereg.md has an example"
        ) from error


class _Malformed(Exception):
    """What is wrong with a plan."""


def _checked(plan: Any) -> dict[str, Any]:
    """The plan with every field there. Raises _Malformed."""
    if not isinstance(plan, dict):
        raise _Malformed(f"it is not a mapping but {type(plan).__name__}")
    if unknown := sorted(map(str, set(plan) - _KEYS)):
        raise _Malformed(f"no plan has the field {', '.join(unknown)}")
    if missing := sorted(_KEYS - _OPTIONAL - set(plan)):
        raise _Malformed(f"the field {', '.join(missing)} is missing")
    plan = {"files": [], "models": [], "matrix": {}, **plan}
    if not isinstance(plan["title"], str) or not plan["title"].strip():
        raise _Malformed("title is not a text")
    for name in ("files", "models", "outputs"):
        if not isinstance(plan[name], list) or not all(
            isinstance(v, str) and v for v in plan[name]
        ):
            raise _Malformed(f"{name} is not a list of texts")
    if not isinstance(plan["matrix"], dict):
        raise _Malformed("matrix is not a mapping")
    _check_places(plan["files"], plan["outputs"])
    _check_commands(plan["commands"])
    if not isinstance(plan["predictions"], list) or not plan["predictions"]:
        raise _Malformed("there is no prediction that could fail")
    for one in plan["predictions"]:
        _check_prediction(one, plan["outputs"])
    _check_texts(plan)
    checked: dict[str, Any] = plan | {
        "commands": [[str(word) for word in command] for command in plan["commands"]]
    }
    try:
        canonical(checked)
    except (TypeError, ValueError) as error:
        raise _Malformed(f"a value that JSON does not have (quote dates): {error}") from error
    return checked


def _check_places(files: Sequence[str], outputs: Sequence[str]) -> None:
    for place in (*files, *outputs):
        _require_inside(place)
    if not outputs:
        raise _Malformed("no output is named")
    for place in outputs:
        if inside := [
            name for name in files if PurePosixPath(place).is_relative_to(PurePosixPath(name))
        ]:
            raise _Malformed(f"the output {place} would change the input {inside[0]}")


def _check_commands(commands: Any) -> None:
    if (
        not isinstance(commands, list)
        or not all(isinstance(c, list) and c for c in commands)
        or not commands
    ):
        raise _Malformed("commands is not a list of lists of words")
    words = [word for command in commands for word in command]
    if not all(
        isinstance(word, (str, int, float)) and not isinstance(word, bool) for word in words
    ):
        raise _Malformed(
            "a word of a command is not a text or a number (quote yes, no, true and false)"
        )
    if not all(command[0] for command in commands):
        raise _Malformed("a command begins with an empty word")


def _check_texts(value: Any) -> None:
    """No character that no program can be given, or that a terminal obeys. Tabs and line breaks are
    for scripts in a command.
    """
    if isinstance(value, str):
        if odd := [
            c for c in value if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n\r"
        ]:
            raise _Malformed(f"a text has a control character: {odd[0]!a}")
    elif isinstance(value, dict):
        for item in value.items():
            _check_texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_texts(item)


def _check_prediction(one: Any, outputs: Sequence[str]) -> None:
    if not isinstance(one, dict) or set(one) != _PREDICTION_KEYS:
        raise _Malformed(
            f"a prediction has not exactly the fields {', '.join(sorted(_PREDICTION_KEYS))}"
        )
    if not isinstance(one["operator"], str) or one["operator"] not in _OPERATORS:
        raise _Malformed(f"unknown operator {one['operator']!r}")
    if isinstance(one["value"], bool) or not isinstance(one["value"], (int, float)):
        raise _Malformed(f"a prediction's value is not a number: {one['value']!r}")
    if not all(isinstance(one[key], str) and one[key] for key in ("statement", "from", "field")):
        raise _Malformed("statement, from and field of a prediction are texts")
    if one["field"].count(" / ") > 1:
        raise _Malformed(f"a field is a number or a share of two, not {one['field']}")
    _require_inside(one["from"])
    if not any(
        PurePosixPath(one["from"]).is_relative_to(PurePosixPath(output)) for output in outputs
    ):
        raise _Malformed(f"a prediction is measured in something that is no output: {one['from']}")


def _require_inside(place: str) -> None:
    pure = PurePosixPath(place)
    if pure.is_absolute() or ".." in pure.parts:
        raise _Malformed(f"a path leaves the plan's folder: {place}")
    if "\n" in place or "\r" in place:
        raise _Malformed(f"a path has a line break: {place!r}")


# -- hashes ----------------------------------------------------------------------------------------


def hash_path(path: Path) -> str:
    """SHA-256 of a file, or of a folder: of the sorted lines
    `<sha256>  <relative path>` of its files.

    Left out are hidden files, `__pycache__`, and the prefix blocks in a run's folder, which are a
    cache.

    Raises:
        PreregError: it is not there, cannot be read, or holds a symbolic link or a name with a line
            break, of which a list of lines could say two things.
    """
    if os.path.islink(path):
        raise PreregError("a symbolic link is not hashed", where=path)
    if os.path.isfile(path):  # os.path, because pathlib raises for a name that is too long
        return _hash_file(path)
    if not os.path.isdir(path):
        raise PreregError("it is not there", where=path)
    lines = [f"{_hash_file(file)}  {file.relative_to(path).as_posix()}\n" for file in _files(path)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(_walk(folder)):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") or part == "__pycache__" for part in parts):
            continue
        if any(
            a.name == runlog.PREFIXES and (a.parent / runlog.LOG).exists()
            for a in (path, *path.parents)
        ):
            continue
        if path.is_symlink():
            raise PreregError("a symbolic link is not hashed", where=path)
        if path.is_file():
            if "\n" in str(path.relative_to(folder)):
                raise PreregError("a name with a line break is not hashed", where=ascii(str(path)))
            yield path


def _walk(folder: Path) -> Iterator[Path]:
    """All that is below. Unlike `rglob`, says so where it may not look."""

    def refuse(error: OSError) -> NoReturn:
        raise PreregError("it cannot be read", got=error.strerror, where=error.filename) from error

    for here, folders, files in os.walk(folder, onerror=refuse):
        yield from (Path(here, name) for name in (*folders, *files))


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PreregError("it cannot be read", got=error.strerror, where=path) from error


def _package_sha256(name: str) -> str:
    """Of the package's source as it is installed, wherever that is."""
    root = _package_folder(name)
    lines = [
        f"{_hash_file(f)}  {f.relative_to(root).as_posix()}\n"
        for f in _files(root)
        if f.suffix == ".py"
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _package_folder(name: str) -> Path:
    module = sys.modules.get(name) or __import__(name)
    return Path(str(module.__file__)).absolute().parent


def _inputs(plan: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Every input's label -> SHA-256. Raises PreregError, ModelError where one is not there."""
    found = {f"package {name}": _package_sha256(name) for name in PACKAGES}
    found["prompts"] = prompts.prompts_sha256()
    found |= {f"file {place}": hash_path(root / place) for place in plan["files"]}
    found |= {
        f"model {name}": filehash.model_sha256(models.resolve(_model(name, root)), remembered=False)
        for name in plan["models"]
    }
    return found


def _labels(plan: Mapping[str, Any]) -> list[str]:
    """What `_inputs` hashes."""
    labels = [f"package {name}" for name in PACKAGES] + ["prompts"]
    return (
        labels
        + [f"file {place}" for place in plan["files"]]
        + [f"model {name}" for name in plan["models"]]
    )


def _model(name: str, root: Path) -> str:
    """A catalogue name, or a path relative to the plan."""
    return name if models.find(name) else str(root / name)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("llama-cpp-python", "numpy", "scipy", "sympy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


# -- lock ------------------------------------------------------------------------------------------


def lock_path(plan: Path) -> Path:
    return plan.with_suffix(".lock.json")


def record_path(lock: Path) -> Path:
    return lock.with_name(lock.name.removesuffix(".lock.json") + ".record.json")


def lock(plan_path: Path) -> tuple[Path, str]:
    """Write the lock of a plan; where it is, and its SHA-256.

    Raises:
        UsageError: not a plan, or it is locked already. PreregError, ModelError: an input is not
        there, or an output already is.
    """
    if plan_path.suffix != ".yaml":
        raise UsageError("a plan's name ends in .yaml", got=plan_path.name, where=plan_path.parent)
    plan = read_plan(plan_path)
    with _alone(plan_path, "being locked"):
        return _lock(plan_path, plan)


def _lock(plan_path: Path, plan: Mapping[str, Any]) -> tuple[Path, str]:
    root = plan_path.absolute().parent
    path = lock_path(plan_path)
    if path.exists():
        raise UsageError(
            "the plan is locked already", where=path, hint="a changed plan gets another file name"
        )
    if there := [place for place in plan["outputs"] if (root / place).exists()]:
        raise PreregError("an output is there before the run", got=", ".join(there), where=root)
    fields = {
        "schema": LOCK_SCHEMA,
        "created": clock.now(),
        "plan": plan,
        "plan_sha256": _hash_file(plan_path),
        "inputs": _inputs(plan, root),
        "versions": _versions(),
    }
    return path, _write(path, fields)


def commit(path: Path, tag: str | None) -> None:
    """Commit the lock and its plan to the git repository around them, and with `tag` tag the
    commit.

    Raises:
        PreregError: git refused; the lock stays.
    """
    plan = _plan_path(path)
    files = [f.name for f in (plan, path) if f.exists()]
    message = f"Preregister {plan.name}: lock {_hash_file(path)}"
    steps = [["add", "--", *files], ["commit", "--quiet", "-m", message, "--", *files]]
    for step in steps + ([["tag", "-a", "-m", message, "--", tag]] if tag else []):
        try:
            subprocess.run(
                ["git", "--literal-pathspecs", *step],
                cwd=path.absolute().parent,
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
            )
        except FileNotFoundError as error:
            raise PreregError(
                "git is not here", hint="publish the lock's hash another way"
            ) from error
        except subprocess.CalledProcessError as error:
            said = [
                line
                for line in (error.stderr or error.stdout).splitlines()
                if line and not line.startswith("hint:")
            ]
            clearest = [line for line in said if line.startswith(("fatal:", "error:"))] or said[-2:]
            raise PreregError(
                "git refused; the lock stands", got=" ".join(clearest), where=f"git {step[0]}"
            ) from error


# -- run -------------------------------------------------------------------------------------------


def run(path: Path, note: Callable[[str], None] = lambda _line: None) -> Checked:
    """Run the plan's commands if everything is as it was locked; then hash the outputs and measure
    the predictions.

    Raises:
        PreregError: an input or a version differs, an output is there already, an input changed
            while it ran, or another process runs the plan. StoreFull: the record could not be
            written; found out before the run where possible.
    """
    locked, digest = _read_lock(path)
    with _alone(path, "being run"):
        _run(path, locked, digest, note)
    return check(path)


def _run(path: Path, locked: Mapping[str, Any], digest: str, note: Callable[[str], None]) -> None:
    root = path.absolute().parent
    record, plan = record_path(path), locked["plan"]
    if record.exists():
        raise PreregError("this plan was run already", where=record, hint="galahad prereg check")
    _require_plan(path, locked)
    _require_inputs(locked, root)
    if there := [place for place in plan["outputs"] if (root / place).exists()]:
        raise PreregError("an output is there before the run", got=", ".join(there), where=root)
    durable.require_output(record)
    started = clock.now()
    codes: list[int] = []
    code: list[dict[str, str] | None] = []
    for words in plan["commands"]:
        note(" ".join(words))
        exit_code, imported = _call(words, root, note)
        codes.append(exit_code)
        code.append(imported)
        if exit_code not in _DONE:
            note(f"exit code {exit_code}: what follows is not run")
            break
    _require_plan(path, locked)
    _require_inputs(locked, root)
    outputs = {place: _hash_output(place, root, note) for place in plan["outputs"]}
    fields = {
        "schema": RECORD_SCHEMA,
        "lock_sha256": digest,
        "started": started,
        "finished": clock.now(),
        "exit_codes": codes,
        "code": code,
        "outputs": outputs,
        "predictions": [v._asdict() for v in _verdicts(plan, root, codes)],
        "versions": _versions(),
    }
    _write(record, fields)


def _require_plan(path: Path, locked: Mapping[str, Any]) -> None:
    """The YAML that the lock names is there, unchanged, and says what the lock says."""
    for item in _check_plan(path, locked):
        if item.state != "same":
            raise PreregError(
                f"{item.what}: not as registered",
                expected=item.expected[:16],
                got=item.got[:16] or None,
                where=_plan_path(path),
                hint="put it back, or register a new plan",
            )


def _check_plan(path: Path, locked: Mapping[str, Any]) -> list[Item]:
    """The YAML's bytes are those that were locked, and the lock's plan is what they say."""
    plan_path = _plan_path(path)
    if not plan_path.is_file():
        return [_item("plan", locked["plan_sha256"], None)]
    items = [_item("plan", locked["plan_sha256"], _hash_file(plan_path))]
    if items[0].state == "same":
        try:
            written = sha256_of(read_plan(plan_path))
        except UsageError as error:
            written = f"no plan: {error.message}"
        items.append(_item("plan in the lock", sha256_of(locked["plan"]), written))
    return items


def _plan_path(lock: Path) -> Path:
    return lock.with_name(lock.name.removesuffix(".lock.json") + ".yaml")


def _alone(path: Path, doing: str) -> AbstractContextManager[None]:
    """No other process that asks does the same with this file until the end; a killed one asks no
    more.

    Raises:
        PreregError: another does. StoreFull: the file cannot be locked.
    """
    return locks.held(path, busy=f"it is {doing} by another process", error=PreregError)


def _hash_output(place: str, root: Path, note: Callable[[str], None]) -> str | None:
    """None where there is nothing, or nothing that can be hashed: the record of a run that was made
    is written all the same.
    """
    try:
        return hash_path(root / place)
    except PreregError as error:
        note(f"output {place}: {error.message}")
        return None


def _require_inputs(locked: Mapping[str, Any], root: Path) -> None:
    now = {**_inputs(locked["plan"], root), **{f"version {k}": v for k, v in _versions().items()}}
    then = {**locked["inputs"], **{f"version {k}": v for k, v in locked["versions"].items()}}
    differing = [k for k in sorted(set(now) | set(then)) if now.get(k) != then.get(k)]
    if differing:
        first = differing[0]
        raise PreregError(
            f"{', '.join(differing)}: not as registered",
            expected=str(then.get(first))[:16],
            got=str(now.get(first))[:16],
            where=root,
            hint="put it back, or register a new plan",
        )


def _call(
    words: Sequence[str], root: Path, note: Callable[[str], None]
) -> tuple[int, dict[str, str] | None]:
    """The exit code, and the SHA-256 of every source file of ours that was imported; None for a
    program that is not ours. A shell's 127 where there is no such program: what was run before it
    has its record.
    """
    ours = _our_command(words)
    if ours is None:
        return _start(words, root, note), None
    folders = {name: str(_package_folder(name)) for name in PACKAGES}
    with tempfile.TemporaryDirectory(prefix="galahad-prereg-") as scratch:
        report = Path(scratch) / "imported"
        runner = [sys.executable, "-P", "-E", locked_package.__file__, json.dumps(folders)]
        # For what the command starts itself, such as a worker with `python -m taliesin...`.
        parents = dict.fromkeys(str(Path(folder).parent) for folder in folders.values())
        safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(parents)}
        exit_code = _start([*runner, str(report), *ours], root, note, safe)
        lines = report.read_text("utf-8", "surrogateescape") if report.exists() else ""
    return exit_code, {line[66:]: line[:64] for line in lines.splitlines()}


def _our_command(words: Sequence[str]) -> Sequence[str] | None:
    """The words from the package's name on, where a command is ours: `galahad ...`, or the same
    as `python -m galahad ...`.
    """
    if words[0] in PACKAGES:
        return words
    if (
        len(words) > 2
        and Path(words[0]).name.startswith("python")
        and words[1] == "-m"
        and words[2] in PACKAGES
    ):
        return words[2:]
    return None


def _start(
    words: Sequence[str],
    root: Path,
    note: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> int:
    env = {**os.environ, **(variables or {})}
    try:
        return subprocess.run(words, cwd=root, check=False, stdout=2, env=env).returncode
    except OSError as error:
        note(f"{words[0]} cannot be started: {error.strerror}")
        return 127


def _verdicts(plan: Mapping[str, Any], root: Path, codes: Sequence[int]) -> list[Verdict]:
    """Where a command failed or was not run, nothing is measured: an output may be half of what the
    plan says.
    """
    found = _measure(plan, root)
    if len(codes) == len(plan["commands"]) and all(code in _DONE for code in codes):
        return found
    return [verdict._replace(value=None, held=None) for verdict in found]


def _measure(plan: Mapping[str, Any], root: Path) -> list[Verdict]:
    verdicts = []
    for one in plan["predictions"]:
        value = measured(root / one["from"], one["field"])
        held = None if value is None else _OPERATORS[one["operator"]](value, one["value"])
        expected = f"{one['field']} {one['operator']} {one['value']}"
        verdicts.append(Verdict(one["statement"], expected, value, held))
    return verdicts


def measured(source: Path, field: str) -> float | None:
    """The number at the dotted path `field` in a JSON file, or in the report of a run's folder;
    None where there is none.

    A share of two numbers is `field / field`, for example `accuracy.k / accuracy.n`. NaN and
    infinity are no numbers.
    """
    try:
        if source.is_dir():
            from galahad.solve import summary as report

            document: Any = report.summarise(runlog.read(source)).as_dict()
        else:
            document = json.loads(source.read_bytes())
    except (OSError, ValueError, RecursionError, ToolkitError):
        return None
    values = [_at(document, part.strip()) for part in field.split(" / ")]
    if any(value is None for value in values) or len(values) > 2:
        return None
    first, *rest = (float(value) for value in values if value is not None)
    share = first if not rest else first / rest[0] if rest[0] else math.nan
    return share if math.isfinite(share) else None


def _at(document: Any, dotted: str) -> float | None:
    for key in dotted.split("."):
        if isinstance(document, list) and key in map(str, range(len(document))):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return None
    try:
        number = float(document) if isinstance(document, (int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# -- check -----------------------------------------------------------------------------------------


def check(
    path: Path, published: str | None = None, *, published_record: str | None = None
) -> Checked:
    """Go over the chain from the lock to the verdicts. Needs no model and runs nothing.

    Args:
        published: the lock's SHA-256 as it was printed or published.
        published_record: the record's.

    Raises:
        PreregError: the lock or the record is not a file of its kind, or was changed by hand.
    """
    locked, digest = _read_lock(path)
    root, plan = path.absolute().parent, locked["plan"]
    items = []
    if published is not None:
        items.append(_item("lock", published.strip().lower(), digest))
    items += _check_plan(path, locked)
    for label, expected in locked["inputs"].items():
        items.append(_check_input(label, expected, root))
    record_file = record_path(path)
    if not record_file.exists():
        if published_record is not None:
            items.append(_item("record", published_record.strip().lower(), None))
        return Checked(digest, items, [])
    record, record_digest = _read_record(record_file, plan)
    if published_record is not None:
        items.append(_item("record", published_record.strip().lower(), record_digest))
    items.append(_item("record's lock", record["lock_sha256"], digest))
    items.append(_item("versions", str(locked["versions"]), str(record["versions"])))
    for place, expected in record["outputs"].items():
        if expected is None:
            items.append(Item(f"output {place}", "missing", "an output", "the run made none"))
            continue
        items.append(
            _item(
                f"output {place}",
                expected,
                hash_path(root / place) if (root / place).exists() else None,
            )
        )
    codes = record["exit_codes"]
    items += _check_commands_ran(plan["commands"], codes)
    if record["schema"] == RECORD_SCHEMA:
        items += _check_code(plan["commands"], record["code"])
        verdicts = then = _verdicts(plan, root, codes)
    else:  # version 1 counted what a failed command left
        verdicts, then = _verdicts(plan, root, codes), _measure(plan, root)
    if [verdict._asdict() for verdict in then] != record["predictions"]:
        values = str([one.get("value") for one in record["predictions"]])
        items.append(
            Item("predictions", "differs", values, str([verdict.value for verdict in then]))
        )
    return Checked(digest, items, verdicts, record_digest)


def _check_commands_ran(commands: Sequence[Sequence[str]], codes: Sequence[int]) -> list[Item]:
    """An item for each command that failed or was not run."""
    items = []
    for number, words in enumerate(commands, start=1):
        what = f"command {number}: {' '.join(words)}"
        if number > len(codes):
            items.append(Item(what, "not run", "exit code 0, 3 or 4", ""))
        elif codes[number - 1] not in _DONE:
            items.append(
                Item(what, "failed", "exit code 0, 3 or 4", f"exit code {codes[number - 1]}")
            )
    return items


def _check_code(
    commands: Sequence[Sequence[str]], code: Sequence[Mapping[str, str] | None]
) -> list[Item]:
    """For each command of ours: the source that it imported is that of the packages here, which
    are themselves an input of the lock.
    """
    items = []
    for number, (words, imported) in enumerate(zip(commands, code, strict=False), start=1):
        what = f"code of command {number}"
        if _our_command(words) is None:
            if imported is not None:
                items.append(Item(what, "differs", "not our program", "source of ours"))
            continue
        if not imported:
            items.append(Item(what, "missing", "the source that ran", ""))
            continue
        here = {name: _source_sha256(name) for name in imported}
        odd = [name for name, digest in imported.items() if digest != here[name]]
        items.append(
            Item(what, "differs", imported[odd[0]], here[odd[0]] or odd[0])
            if odd
            else _item(what, sha256_of(imported), sha256_of(here))
        )
    return items


def _source_sha256(name: str) -> str | None:
    """Of a file such as `galahad/cli/__init__.py` of a package here; None where there is none."""
    package, _, inside = name.partition("/")
    if package not in PACKAGES or ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        return None
    path = _package_folder(package) / inside
    return _hash_file(path) if path.suffix == ".py" and path.is_file() else None


def _check_input(label: str, expected: str, root: Path) -> Item:
    kind, _, name = label.partition(" ")
    try:
        if kind == "model":
            got = filehash.model_sha256(models.resolve(_model(name, root)), remembered=False)
        elif kind == "file":
            got = hash_path(root / name)
        elif kind == "package":
            got = _package_sha256(name)
        else:
            got = prompts.prompts_sha256()
    except ModelError:
        return Item(label, "not checked", expected, "the model is not here")
    except PreregError:
        return Item(label, "missing", expected, "")
    return _item(label, expected, got)


def _item(what: str, expected: str, got: str | None) -> Item:
    state: State = "missing" if got is None else "same" if got == expected else "differs"
    return Item(what, state, expected, got or "")


# -- files -----------------------------------------------------------------------------------------


def _read(path: Path, schemas: Sequence[str], names: set[str]) -> tuple[dict[str, Any], str]:
    """The object in a lock or record, and the SHA-256 of its bytes."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PreregError("it cannot be read", got=error.strerror, where=path) from error
    try:
        fields = json.loads(data)
        is_canonical = canonical(fields) + b"\n" == data
    except (ValueError, RecursionError) as error:
        raise PreregError("not a lock or record", got=str(error), where=path) from error
    if not isinstance(fields, dict) or fields.get("schema") not in schemas:
        raise PreregError(
            "not a file of that kind",
            expected=schemas[0],
            got=fields.get("schema") if isinstance(fields, dict) else None,
            where=path,
        )
    if not is_canonical:
        raise PreregError("the file was edited: it is not as it was written", where=path)
    if fields["schema"] == schemas[0]:
        if fields.pop("seal", None) != sha256_of(fields):
            raise PreregError("the file was edited: its seal is not that of its fields", where=path)
    elif odd := sorted(set(fields) ^ names):
        raise PreregError("the file's fields are not those of its kind", got=odd[0], where=path)
    return fields, hashlib.sha256(data).hexdigest()


def _read_lock(path: Path) -> tuple[dict[str, Any], str]:
    """The lock, its plan checked like any other, and its SHA-256."""
    fields, digest = _read(path, _LOCK_SCHEMAS, _LOCK_FIELDS)
    try:
        fields["plan"] = _checked(fields.get("plan"))
    except (_Malformed, RecursionError) as error:
        raise PreregError(f"the lock's plan is malformed: {error}", where=path) from error
    _require_texts(fields, ("inputs", "versions"), path)
    if odd_fields := sorted(set(fields) ^ _LOCK_FIELDS):
        raise PreregError("the lock's fields are not a lock's", got=odd_fields[0], where=path)
    if not isinstance(fields.get("plan_sha256"), str):
        raise PreregError("the lock names no plan", where=path)
    if odd := set(fields["inputs"]) ^ set(_labels(fields["plan"])):
        raise PreregError(
            "the lock's inputs are not those of its plan", got=", ".join(sorted(odd)), where=path
        )
    return fields, digest


def _read_record(path: Path, plan: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The record of a run of `plan`, and its SHA-256."""
    fields, digest = _read(path, _RECORD_SCHEMAS, _RECORD_FIELDS)
    is_new = fields["schema"] == RECORD_SCHEMA
    if odd_fields := sorted(set(fields) ^ (_RECORD_FIELDS | ({"code"} if is_new else set()))):
        raise PreregError("the record's fields are not a record's", got=odd_fields[0], where=path)
    _require_texts(fields, ("versions",), path)
    _require_codes(fields, len(plan["commands"]), path)
    _require_texts(fields, ("outputs",), path, or_nothing=True)
    if odd := set(fields["outputs"]) ^ set(plan["outputs"]):
        raise PreregError(
            "the record's outputs are not those of the plan", got=", ".join(sorted(odd)), where=path
        )
    predictions = fields.get("predictions")
    if not isinstance(fields.get("lock_sha256"), str) or not isinstance(predictions, list):
        raise PreregError("the record names no lock, or no predictions", where=path)
    if not all(isinstance(one, dict) for one in predictions):
        raise PreregError("a prediction of the record is malformed", where=path)
    return fields, digest


def _require_codes(fields: Mapping[str, Any], commands: int, path: Path) -> None:
    """One exit code for each command that was started: all, or up to the first that failed."""
    codes, code = fields["exit_codes"], fields.get("code", [])
    if not isinstance(codes, list) or not all(type(one) is int for one in codes):
        raise PreregError("the record's exit codes are malformed", where=path)
    stopped = next((i for i, one in enumerate(codes, start=1) if one not in _DONE), commands)
    if len(codes) != stopped:
        raise PreregError(
            "the record's exit codes are not those of its plan",
            expected=f"{stopped} of {commands} commands",
            got=len(codes),
            where=path,
        )
    if "code" in fields and (
        not isinstance(code, list)
        or len(code) != len(codes)
        or not all(
            one is None
            or (isinstance(one, dict) and all(isinstance(value, str) for value in one.values()))
            for one in code
        )
    ):
        raise PreregError("the record's list of the source that ran is malformed", where=path)


def _require_texts(
    fields: Mapping[str, Any], names: Iterable[str], path: Path, or_nothing: bool = False
) -> None:
    """Each is a mapping to texts, or to nothing."""
    for name in names:
        found = fields.get(name)
        if not isinstance(found, dict) or not all(
            isinstance(value, str) or (or_nothing and value is None) for value in found.values()
        ):
            raise PreregError(f"{name} is malformed", where=path)


def _write(path: Path, fields: Mapping[str, Any]) -> str:
    """Write canonical JSON with its seal so that a crash leaves the old state or the new one; the
    SHA-256 of the file.
    """
    sealed = {key: value for key, value in fields.items() if key != "seal"}
    data = canonical({**sealed, "seal": sha256_of(sealed)}) + b"\n"
    try:
        durable.write(path, data)
    except OSError as error:
        raise StoreFull("it could not be written", got=error.strerror, where=path) from error
    return hashlib.sha256(data).hexdigest()


def failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The predictions that did not hold, or could not be measured."""
    return [verdict for verdict in verdicts if not verdict.held]

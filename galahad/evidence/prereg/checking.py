"""`check`: the chain from the lock to the outputs and the verdicts, link by link.

Needs no model and runs nothing. Deliberately does not know: whether a lock whose hash was never
published is the one that was made before the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from galahad.errors import PreregError
from galahad.evidence.prereg import files, inputs, predictions
from galahad.evidence.prereg.commands import our_command
from galahad.evidence.prereg.plan import read_plan
from galahad.evidence.prereg.records import DONE, Lock, Verdict
from galahad.measure.canonical import sha256_of
from galahad.solve import prompts
from taliesin.errors import ModelError, UsageError

State = Literal["same", "differs", "missing", "not checked", "failed", "not run"]


class Item(NamedTuple):
    """One link of the chain: `what` it is, and whether it is what was registered."""

    what: str
    state: State
    expected: str
    got: str


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
    locked, digest = files.read_lock(path)
    root, plan = path.absolute().parent, locked.plan
    items = []
    if published is not None:
        items.append(_item("lock", published.strip().lower(), digest))
    items += check_plan(path, locked)
    for label, expected in locked.inputs.items():
        items.append(_check_input(label, expected, root))
    record_file = files.record_path(path)
    if not record_file.exists():
        if published_record is not None:
            items.append(_item("record", published_record.strip().lower(), None))
        return Checked(digest, items, [])
    record, record_digest = files.read_record(record_file, plan)
    if published_record is not None:
        items.append(_item("record", published_record.strip().lower(), record_digest))
    items.append(_item("record's lock", record.lock_sha256, digest))
    items.append(_item("versions", str(locked.versions), str(record.versions)))
    for place, made in record.outputs.items():
        if made is None:
            items.append(Item(f"output {place}", "missing", "an output", "the run made none"))
            continue
        items.append(
            _item(
                f"output {place}",
                made,
                inputs.hash_path(root / place) if (root / place).exists() else None,
            )
        )
    codes = record.exit_codes
    items += _check_commands_ran(plan.words, codes)
    verdicts = predictions.verdicts(plan, root, codes)
    if record.code is not None:
        items += _check_code(plan.words, record.code)
        then = verdicts
    else:  # version 1 counted what a failed command left
        then = predictions.measure(plan, root)
    if tuple(then) != record.predictions:
        values = str([verdict.value for verdict in record.predictions])
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
        elif codes[number - 1] not in DONE:
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
        if our_command(words) is None:
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
    leaves = ".." in PurePosixPath(inside).parts or inside.startswith("/")
    if package not in inputs.PACKAGES or leaves:
        return None
    path = inputs.package_folder(package) / inside
    return inputs.hash_file(path) if path.suffix == ".py" and path.is_file() else None


def _check_input(label: str, expected: str, root: Path) -> Item:
    kind, _, name = label.partition(" ")
    try:
        if kind == "model":
            got = inputs.model_sha256(name, root)
        elif kind == "file":
            got = inputs.hash_path(root / name)
        elif kind == "package":
            got = inputs.package_sha256(name)
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


def check_plan(path: Path, locked: Lock) -> list[Item]:
    """The YAML's bytes are those that were locked, and the lock's plan is what they say."""
    plan_path = files.plan_path(path)
    if not plan_path.is_file():
        return [_item("plan", locked.plan_sha256, None)]
    items = [_item("plan", locked.plan_sha256, inputs.hash_file(plan_path))]
    if items[0].state == "same":
        try:
            written = read_plan(plan_path).sha256
        except UsageError as error:
            written = f"no plan: {error.message}"
        items.append(_item("plan in the lock", locked.plan.sha256, written))
    return items

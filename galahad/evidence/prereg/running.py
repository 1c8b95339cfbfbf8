"""`run`: the commands of a locked plan, then the hashes of its outputs and the verdicts.

Promises: nothing is run where anything is not as it was registered, and a run that was made leaves
its record, whatever came of it. Deliberately does not know: what the commands do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from galahad.errors import PreregError
from galahad.evidence.prereg import commands, files, inputs
from galahad.evidence.prereg.checking import Checked, check, check_plan
from galahad.evidence.prereg.predictions import verdicts
from galahad.evidence.prereg.records import DONE, Lock, RunRecord
from taliesin.host import clock, durable, records


def run(path: Path, note: Callable[[str], None] = lambda _line: None) -> Checked:
    """Run the plan's commands if everything is as it was locked; then hash the outputs and measure
    the predictions.

    Raises:
        PreregError: an input or a version differs, an output is there already, an input changed
            while it ran, or another process runs the plan. StoreFull: the record could not be
            written; found out before the run where possible.
    """
    locked, digest = files.read_lock(path)
    with files.alone(path, "being run"):
        _run(path, locked, digest, note)
    return check(path)


def _run(path: Path, locked: Lock, digest: str, note: Callable[[str], None]) -> None:
    root = path.absolute().parent
    record, plan = files.record_path(path), locked.plan
    if record.exists():
        raise PreregError("this plan was run already", where=record, hint="galahad prereg check")
    _require_plan(path, locked)
    _require_inputs(locked, root)
    if there := [place for place in plan.outputs if (root / place).exists()]:
        raise PreregError("an output is there before the run", got=", ".join(there), where=root)
    durable.require_output(record)
    started = clock.now()
    codes: list[int] = []
    code: list[dict[str, str] | None] = []
    for words in plan.words:
        note(" ".join(words))
        exit_code, imported = commands.call(words, root, note)
        codes.append(exit_code)
        code.append(imported)
        if exit_code not in DONE:
            note(f"exit code {exit_code}: what follows is not run")
            break
    _require_plan(path, locked)
    _require_inputs(locked, root)
    outputs = {place: _hash_output(place, root, note) for place in plan.outputs}
    fields = RunRecord(
        schema="galahad.prereg.record/2",
        lock_sha256=digest,
        started=started,
        finished=clock.now(),
        exit_codes=tuple(codes),
        code=tuple(code),
        outputs=outputs,
        predictions=tuple(verdicts(plan, root, codes)),
        versions=inputs.versions(),
        seal="",
    )
    files.write(record, records.plain(fields))


def _require_plan(path: Path, locked: Lock) -> None:
    """The YAML that the lock names is there, unchanged, and says what the lock says."""
    for item in check_plan(path, locked):
        if item.state != "same":
            raise PreregError(
                f"{item.what}: not as registered",
                expected=item.expected[:16],
                got=item.got[:16] or None,
                where=files.plan_path(path),
                hint="put it back, or register a new plan",
            )


def _hash_output(place: str, root: Path, note: Callable[[str], None]) -> str | None:
    """None where there is nothing, or nothing that can be hashed: the record of a run that was made
    is written all the same.
    """
    try:
        return inputs.hash_path(root / place)
    except PreregError as error:
        note(f"output {place}: {error.message}")
        return None


def _require_inputs(locked: Lock, root: Path) -> None:
    now = inputs.of_plan(locked.plan, root) | _labelled(inputs.versions())
    then = locked.inputs | _labelled(locked.versions)
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


def _labelled(versions: dict[str, str]) -> dict[str, str]:
    return {f"version {name}": version for name, version in versions.items()}

"""`lock` writes the lock of a plan, and `commit` puts it into git.

Deliberately does not know: when it was really made. Publish its hash.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from galahad.errors import PreregError
from galahad.evidence.prereg import files, inputs
from galahad.evidence.prereg.plan import read_plan
from galahad.evidence.prereg.records import Lock, Plan
from taliesin.errors import UsageError
from taliesin.host import clock, records


def lock(plan_path: Path) -> tuple[Path, str]:
    """Write the lock of a plan; where it is, and its SHA-256.

    Raises:
        UsageError: not a plan, or it is locked already. PreregError, ModelError: an input is not
        there, or an output already is.
    """
    if plan_path.suffix != ".yaml":
        raise UsageError("a plan's name ends in .yaml", got=plan_path.name, where=plan_path.parent)
    plan = read_plan(plan_path)
    with files.alone(plan_path, "being locked"):
        return _lock(plan_path, plan)


def _lock(plan_path: Path, plan: Plan) -> tuple[Path, str]:
    root = plan_path.absolute().parent
    path = files.lock_path(plan_path)
    if path.exists():
        raise UsageError(
            "the plan is locked already", where=path, hint="a changed plan gets another file name"
        )
    if there := [place for place in plan.outputs if (root / place).exists()]:
        raise PreregError("an output is there before the run", got=", ".join(there), where=root)
    fields = Lock(
        schema="galahad.prereg.lock/2",
        created=clock.now(),
        plan=plan,
        plan_sha256=inputs.hash_file(plan_path),
        inputs=inputs.of_plan(plan, root),
        versions=inputs.versions(),
        seal="",
    )
    return path, files.write(path, records.plain(fields))


def commit(path: Path, tag: str | None) -> None:
    """Commit the lock and its plan to the git repository around them, and with `tag` tag the
    commit.

    Raises:
        PreregError: git refused; the lock stays.
    """
    plan = files.plan_path(path)
    names = [f.name for f in (plan, path) if f.exists()]
    message = f"Preregister {plan.name}: lock {inputs.hash_file(path)}"
    steps = [["add", "--", *names], ["commit", "--quiet", "-m", message, "--", *names]]
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

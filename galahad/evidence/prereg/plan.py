"""The plan: read from the YAML that a person wrote.

Deliberately does not know: what the plan names; `inputs` hashes that.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from galahad.evidence.prereg.records import Plan
from taliesin.errors import UsageError
from taliesin.host import records, strict_yaml


def read_plan(path: Path) -> Plan:
    """The plan in a YAML file; the words of its commands are texts.

    Raises:
        UsageError: not readable, not YAML, or not a plan; the field is named.
    """
    what = "the plan"
    try:
        fields = strict_yaml.read(path, what=what, error=UsageError)
        plan = records.convert(
            fields,
            Plan,
            what=what,
            where=path,
            error=UsageError,
            hint="docs/prereg.md has an example; quote yes, no, true and false",
        )
    except OSError as error:
        raise UsageError("the plan cannot be read", got=error.strerror, where=path) from error
    except RecursionError as error:
        raise UsageError("the plan is nested too deeply", where=path) from error
    return replace(plan, commands=tuple(map(tuple, plan.words)))

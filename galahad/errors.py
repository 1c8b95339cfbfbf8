"""Galahad's branch of the exception tree (the root and the exit codes are in `taliesin.errors`).

GalahadError
├── SuiteError              40   a problem file that cannot be used
├── BankError               41   an entry that may not enter the bank, or is missing from it
├── SandboxUnavailable      42   this host cannot isolate a program, `--allow-weak` not given
├── RunLogError             43   a run log that is damaged, or belongs to another run
└── PreregError             44   something differs from what was registered
"""

from __future__ import annotations

from taliesin.errors import ToolkitError


class GalahadError(ToolkitError):
    pass


class SuiteError(GalahadError):
    exit_code = 40
    kind = "suite"


class BankError(GalahadError):
    exit_code = 41
    kind = "bank"


class SandboxUnavailable(GalahadError):
    exit_code = 42
    kind = "sandbox-unavailable"


class RunLogError(GalahadError):
    exit_code = 43
    kind = "run-log"


class PreregError(GalahadError):
    exit_code = 44
    kind = "prereg"

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

from galahad.evidence.prereg.checking import Checked, Item, check
from galahad.evidence.prereg.files import lock_path, record_path
from galahad.evidence.prereg.locking import commit, lock
from galahad.evidence.prereg.predictions import failed
from galahad.evidence.prereg.records import Verdict
from galahad.evidence.prereg.running import run

__all__ = [
    "Checked",
    "Item",
    "Verdict",
    "check",
    "commit",
    "failed",
    "lock",
    "lock_path",
    "record_path",
    "run",
]

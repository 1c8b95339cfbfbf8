"""Running programs that a model wrote: isolated, limited, and judged by what they print.

from galahad import sandbox
sandbox.run("print(204)").stdout            # "204\\n"
sandbox.verify("print(204)", 204).verdict   # "verified"
sandbox.probe().level                       # "full", "kernel" or "weak"
"""

from galahad.sandbox.capabilities import Capabilities, probe, run, user_namespaces
from galahad.sandbox.execution import Execution, Level, Limits, Mechanisms
from galahad.sandbox.verdict import Verdict, judge, program_answer, verify

__all__ = [
    "Capabilities",
    "Execution",
    "Level",
    "Limits",
    "Mechanisms",
    "Verdict",
    "judge",
    "probe",
    "program_answer",
    "run",
    "user_namespaces",
    "verify",
]

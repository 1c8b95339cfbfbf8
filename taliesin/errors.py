"""Every way the toolkit can fail, each with the exit code that a shell sees.

    ToolkitError                        1   a bug: nothing should raise the bare class
    ├── UsageError                      2   flags that contradict, a value out of range
    ├── TaliesinError
    │   ├── StoreMissing               10   no such library, block or name
    │   ├── StoreLocked                11   another process holds the lock
    │   ├── StoreDamaged               12   bytes on disk are not what was written
    │   ├── StoreFull                  13   no space, or not writable
    │   ├── FormatError                20   not a block file, or not a valid one
    │   ├── UnsupportedVersion         21   a block file of a version this build does not read
    │   ├── RecipeMismatch             22   a block that this engine would not have computed
    │   ├── CertificateMismatch        23   restored, but the probe's logits are not the stored ones
    │   ├── EngineUnavailable          30   llama_cpp is missing, or a build that is not supported
    │   ├── ModelError                 31   model file missing, unreadable, or with a wrong hash
    │   ├── DecodeError                32   llama.cpp refused a batch or a state
    │   ├── ContextFull                33   more tokens than the context has cells
    │   ├── UnsupportedModel           34   a model whose memory the verifier has not passed
    │   └── ServerError                35   llama-server: unreachable, refused, ineffective restore
    └── GalahadError (galahad.errors)  40-

"No" is not a failure: a verifier that finds a difference exits with `EXIT_NO` (3) and raises
nothing, and a run that completed only in part exits with `EXIT_PARTIAL` (4). Exit code 1 is left to
Python, so a crash never reads as a verdict.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_NO = 3
EXIT_PARTIAL = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class ToolkitError(Exception):
    """One clear message: what was expected, what came, where, and what to try.

    `kind` is a stable machine-readable word (the class's own, in kebab case) for `--json`;
    `exit_code` is the process's.
    """

    exit_code = 1
    kind = "bug"

    def __init__(
        self,
        message: str,
        *,
        expected: object = None,
        got: object = None,
        where: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.got = got
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        for label, value in (
            ("expected", self.expected),
            ("got", self.got),
            ("where", self.where),
            ("try", self.hint),
        ):
            if value is not None:
                lines.append(f"  {label}: {value}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The error as one JSON-ready object, without empty fields."""
        fields = {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "message": self.message,
            "expected": self.expected,
            "got": self.got,
            "where": self.where,
            "hint": self.hint,
        }
        return {
            k: v if isinstance(v, (int, str)) else str(v)
            for k, v in fields.items()
            if v is not None
        }


class UsageError(ToolkitError):
    exit_code = 2
    kind = "usage"


class TaliesinError(ToolkitError):
    pass


class StoreMissing(TaliesinError):
    exit_code = 10
    kind = "store-missing"


class StoreLocked(TaliesinError):
    exit_code = 11
    kind = "store-locked"


class StoreDamaged(TaliesinError):
    exit_code = 12
    kind = "store-damaged"


class StoreFull(TaliesinError):
    exit_code = 13
    kind = "store-full"


class FormatError(TaliesinError):
    exit_code = 20
    kind = "format"


class UnsupportedVersion(TaliesinError):
    exit_code = 21
    kind = "unsupported-version"


class RecipeMismatch(TaliesinError):
    exit_code = 22
    kind = "recipe-mismatch"


class CertificateMismatch(TaliesinError):
    exit_code = 23
    kind = "certificate-mismatch"


class EngineUnavailable(TaliesinError):
    exit_code = 30
    kind = "engine-unavailable"


class ModelError(TaliesinError):
    exit_code = 31
    kind = "model"


class DecodeError(TaliesinError):
    exit_code = 32
    kind = "decode"


class ContextFull(TaliesinError):
    exit_code = 33
    kind = "context-full"


class UnsupportedModel(TaliesinError):
    exit_code = 34
    kind = "unsupported-model"


class ServerError(TaliesinError):
    exit_code = 35
    kind = "server"

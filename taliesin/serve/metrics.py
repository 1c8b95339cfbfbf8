"""What a front has done, as counters in Prometheus' text form.

Deliberately does not know: HTTP, engines. Thread-safe by the event loop: only the front's own
thread counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from taliesin.serve.plan import Count, Usage

TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # seconds, of the histogram


@dataclass
class Metrics:
    """waiting: requests that wait for their turn; computing: those that compute now."""

    waiting: int = 0
    computing: int = 0
    left: int = 0
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    seconds: float = 0.0
    _buckets: Counter[float] = field(default_factory=Counter)

    def answered(self, path: str, status: int, seconds: float, usage: Usage) -> None:
        """Count one answer to a request for a completion."""
        self.requests[path, status] += 1
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.generated += usage.generated
        self.seconds += seconds
        for bound in _BOUNDS:
            self._buckets[bound] += seconds <= bound

    def text(self, more: Sequence[Count] = ()) -> str:
        """Everything and `more`, in Prometheus' text form."""
        total = sum(self.requests.values())
        lines: list[str] = []

        def add(name: str, kind: str, help_: str, samples: list[tuple[str, float]]) -> None:
            lines.append(f"# HELP taliesin_{name} {help_}")
            lines.append(f"# TYPE taliesin_{name} {kind}")
            lines.extend(f"taliesin_{name}{label} {value}" for label, value in samples)

        add(
            "requests_total",
            "counter",
            "Answers by path and HTTP status; 499 is a client that left.",
            [
                (f'{{path="{path}",status="{status}"}}', n)
                for (path, status), n in sorted(self.requests.items())
            ],
        )
        for name, help_, value in (
            ("prompt_tokens_total", "Tokens of the prompts.", self.prompt),
            ("cached_tokens_total", "Prompt tokens not evaluated again.", self.cached),
            ("generated_tokens_total", "Tokens generated.", self.generated),
            ("clients_left_total", "Clients that left before their answer ended.", self.left),
        ):
            add(name, "counter", help_, [("", value)])
        for name, help_, value in (
            ("requests_waiting", "Requests that wait for their turn.", self.waiting),
            ("requests_computing", "Requests that compute now.", self.computing),
        ):
            add(name, "gauge", help_, [("", value)])
        for count in more:
            add(count.name, "gauge" if count.gauge else "counter", count.help, [("", count.value)])
        lines.append("# HELP taliesin_request_seconds From the request to the end of its answer.")
        lines.append("# TYPE taliesin_request_seconds histogram")
        lines.extend(
            f'taliesin_request_seconds_bucket{{le="{bound:g}"}} {self._buckets[bound]}'
            for bound in _BOUNDS
        )
        lines.append(f'taliesin_request_seconds_bucket{{le="+Inf"}} {total}')
        lines.append(f"taliesin_request_seconds_sum {self.seconds:g}")
        lines.append(f"taliesin_request_seconds_count {total}")
        return "\n".join(lines) + "\n"

"""matplotlib, where it is installed: it is no dependency, and everything works without a plot."""

from __future__ import annotations

from typing import Any

from taliesin.errors import UsageError


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError(
            "no plot without matplotlib",
            hint="in a checkout: python3 scripts/bootstrap.py --extras test,plots",
        ) from error
    matplotlib.rcParams["svg.hashsalt"] = "taliesin"  # the same figure is the same file
    return pyplot

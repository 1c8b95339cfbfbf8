"""The campaigns as modules: scripts of benchmarks/campaigns/ that import each other by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "campaigns"))

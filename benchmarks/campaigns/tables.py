"""Write docs/reliability.md from the raw results of the campaigns.

    python benchmarks/campaigns/tables.py            # write it
    python benchmarks/campaigns/tables.py --check    # exit 3 if the document says something else

Raw results are the `.jsonl` and `.jsonl.gz` files in benchmarks/results/campaigns/.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import campaign

from taliesin.errors import EXIT_NO, EXIT_OK
from taliesin.host import console

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "campaigns"
DOCUMENT = ROOT / "docs" / "reliability.md"
ABOUT = """# Reliability

Written by `python benchmarks/campaigns/tables.py` from the raw results in
`benchmarks/results/campaigns/`; a test fails when the two disagree. Each case comes from a seed
and its number, and `--case K --kinds KIND` runs one again, alone.

- **held**: refused with one error, or without effect; the next use in the same process was exact.
- **unprotected**: changed inside a foreign format that has no checksum (the rows and token ids of a
  llama-server's slot file). No reader can see it; keep such a text as a block instead.
- **wrong**: another value came out as if nothing had happened. **lost**: what was there before is
  not there, or not exact, afterwards. **crashed**: an exception that is no error of ours.
  **escaped**: a program got what its sandbox denies.

A run log counts as held where what is read is an earlier state of the run: one that was cut at its
end, or whose last record is no JSON any more, which is also what a kill leaves. `RunLog.resume`
says how many bytes it cut off, and the attempt is made again. A cut between two records leaves no
trace.

What was found and mended:

- bundle 5107, version 1.0 of the format: one bit of a *name* in the manifest gave another name.
  Since version 1.1 the manifest has a hash, and the case is held. A bundle of version 1.0 is still
  read, and `taliesin import` says that its names have none ([format.md](format.md)).
"""


def build(folder: Path) -> str:
    """The document.

    Raises:
        FormatError: a raw result is not one.
    """
    parts = [ABOUT]
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        result = campaign.read(path)
        facts = result.header.machine
        table = console.markdown_table(
            ["kind", "n", "held", "unprotected", *campaign.BAD], campaign.summary(result.rows)
        )
        bad = [row for row in result.rows if row.outcome in campaign.BAD]
        parts.append(
            f"## {result.header.campaign}\n\nSeed {result.header.seed}, {facts['cpu']}, "
            f"{facts['cores']} cores, Python {facts['python']}, {facts['time'][:10]}. Raw: "
            f"[{path.name}](../benchmarks/results/campaigns/{path.name}), SHA-256 "
            f"`{hashlib.sha256(path.read_bytes()).hexdigest()}`.\n\n{table}\n"
            + "".join(f"\n- {r.kind} {r.case}: {r.outcome}: {r.detail}" for r in bad)
        )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    text = build(RESULTS)
    if given.check:
        same = DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text
        console.note("they agree" if same else f"they disagree: python {Path(__file__).name}")
        return EXIT_OK if same else EXIT_NO
    DOCUMENT.write_text(text, encoding="utf-8")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

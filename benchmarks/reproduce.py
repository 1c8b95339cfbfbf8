"""Write docs/reproduction.md: every claim, the paper's figure, and ours, computed from the raw
results beside this script.

    python benchmarks/reproduce.py            # write it
    python benchmarks/reproduce.py --check    # exit 3 if the document and the results disagree

`claims.yaml` says what each claim is and which command measures it; `galahad.evidence.findings`
says what a raw file tells of which claim. A claim that no result speaks of is "not measured".
Results that no reader knows are listed with their hashes, so that every raw file is in the
document.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from galahad.evidence import findings
from galahad.evidence.findings import READERS, Document, Finding, Said
from taliesin.errors import EXIT_NO, FormatError
from taliesin.host import console

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CLAIMS = ROOT / "benchmarks" / "claims.yaml"
DOCUMENT = ROOT / "docs" / "reproduction.md"


class Result(NamedTuple):
    """One raw file: its name in the folder, its objects (one, or one a line), and the SHA-256 of
    its bytes.
    """

    name: str
    documents: list[Document]
    sha256: str

    @property
    def schema(self) -> str:
        return str(self.documents[0].get("schema", "none")) if self.documents else "none"


def load(folder: Path) -> list[Result]:
    """Every .json and .jsonl of the folder and the folders in it, sorted by name.

    Raises:
        FormatError: one is not JSON.
    """
    found = []
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.jsonl")]):
        data = path.read_bytes()
        try:
            try:
                documents = [json.loads(data)]
            except ValueError:
                documents = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise FormatError("a raw result is not JSON", got=str(error), where=path) from error
        name = path.relative_to(folder).as_posix()
        dicts = [d for d in documents if isinstance(d, dict)]
        found.append(Result(name, dicts, hashlib.sha256(data).hexdigest()))
    return found


# -- the document ----------------------------------------------------------------------------------


def build(results: list[Result], claims: list[dict[str, str]]) -> str:
    """The document.

    Raises:
        FormatError: a result is not as its schema says.
    """
    found: dict[str, list[tuple[Finding, str]]] = {}
    unread = []
    for result in results:
        if result.schema not in READERS:
            unread.append(result)
        for document in result.documents:
            for finding in findings.of(document, result.name):
                found.setdefault(finding.claim, []).append((finding, result.name))
    parts = [
        "# Reproduction",
        "Written by `make reproduce` from the raw results in `benchmarks/results/`; a test fails "
        "when the two disagree. Claims C1 to "
        "C22 are those of arXiv 2607.14431 as reported, measured with other models and on other "
        "machines: read the figures beside "
        "each other and not as one. R1 to R7 are our own. Nothing here was typed by hand.",
    ]
    known = {claim["id"] for claim in claims}
    assert set(found) <= known, (
        f"claims without a line in {CLAIMS.name}: {sorted(set(found) - known)}"
    )
    n_measured = sum(claim["id"] in found for claim in claims)
    parts.append(f"{n_measured} of {len(claims)} claims have a result here.")
    for claim in claims:
        lines = [f"## {claim['id']}. {claim['claim']}", ""]
        lines += [f"- paper: {claim['paper']}"] if claim.get("paper") else []
        lines += [f"- command: `{claim['command']}`"]
        if claim.get("test"):
            lines.append(f"- test: `{claim['test']}`")
        lines += _ours(found.get(claim["id"], []))
        if claim["id"] not in found:
            lines.append(
                "- ours: **not measured**" + (" (shown by its test)" if claim.get("test") else "")
            )
        parts.append("\n".join(lines))
    rows = ["| file | schema | SHA-256 |", "| --- | --- | --- |"]
    rows += [f"| {r.name} | {r.schema} | `{r.sha256}` |" for r in results]
    parts.append("## Raw results\n\n" + "\n".join(rows))
    if unread:
        parts.append("Without a reader here: " + ", ".join(r.name for r in unread) + ".")
    return "\n\n".join(parts) + "\n"


def _ours(found: list[tuple[Finding, str]]) -> Iterator[str]:
    """Markdown of one claim's sentences, then its tables."""
    tables: dict[tuple[str, ...], list[str]] = {}
    for finding, name in found:
        raw = f"[{Path(name).name}](../benchmarks/results/{name})"
        if isinstance(finding, Said):
            yield f"- ours: {finding.text} ({raw})"
        else:
            cells = " | ".join(map(str, finding.cells.values()))
            tables.setdefault(tuple(finding.cells), []).append(f"| {cells} | {raw} |")
    for columns, rows in tables.items():
        yield from (
            "",
            f"| {' | '.join(columns)} | raw |",
            "| --- " * (len(columns) + 1) + "|",
            *rows,
        )


def claims() -> list[dict[str, str]]:
    loaded: list[dict[str, str]] = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return loaded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 3 if the document is another one"
    )
    options = parser.parse_args()
    try:
        text = build(load(RESULTS), claims())
    except FormatError as error:
        console.report_error(error, as_json=False)
        sys.exit(error.exit_code)
    if options.check:
        same = DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text
        console.note(
            "the document and the results agree" if same else "they disagree: make reproduce"
        )
        sys.exit(0 if same else EXIT_NO)
    DOCUMENT.write_text(text, encoding="utf-8")
    console.note(f"{DOCUMENT.relative_to(ROOT)}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()

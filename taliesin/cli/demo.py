"""`taliesin demo`: the main job from end to end, through the same commands that a user types."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import typer

from taliesin.cli.options import Json, Model
from taliesin.errors import EXIT_NO, TaliesinError
from taliesin.host import console

commands = typer.Typer()

QUESTION = "What is the name of the relief boat?"
_QUERIES = "7,64"


@commands.command()
def demo(
    question: Annotated[
        str, typer.Option("--prompt", "-p", help="What to ask the text.")
    ] = QUESTION,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Save a text as a block, graft it in a second process with a question, and prove the graft.

    taliesin demo

    The text is the log of a lighthouse that ships with the toolkit; the library is one of its own
    in the cache folder.

    Exit codes: 0 the graft is exact, 3 it is not, 30-34 engine or model.
    """
    from taliesin.models import resolve as models

    text = models.data_dir() / "texts" / "skellan_light.txt"
    library = models.cache_dir() / "demo-library"
    name = model or models.DEFAULT
    console.note(f"$ taliesin save {text.name} --name demo --model {name}")
    saved = _run(
        "save", str(text), "--name", "demo", "--replace", "--model", name, "--library", str(library)
    )["blocks"][0]
    console.note(f'$ taliesin graft demo --prompt "{question}"')
    arguments = ("demo", "--library", str(library), "--model", name)
    grafted = _run("graft", *arguments, "--prompt", question, "-n", "32", "--certify")
    console.note(f"  {grafted['text'].strip()}")
    console.note(f"$ taliesin verify demo --trials 1 --queries {_QUERIES}")
    report = _run(
        "verify", *arguments, "--trials", "1", "--queries", _QUERIES, allowed=(0, EXIT_NO)
    )
    n_vectors = sum(row["n_vectors"] for row in report["rows"])
    n_equal = sum(row["equal_block_then_query"] for row in report["rows"])
    restored = grafted["restored"]
    graft_seconds = restored["read_seconds"] + restored["place_seconds"]
    result = {
        "model": name,
        "n_tokens": saved["n_tokens"],
        "file_bytes": saved["file_bytes"],
        "prefill_seconds": saved["prefill_seconds"],
        "graft_seconds": graft_seconds,
        "ratio": saved["prefill_seconds"] / graft_seconds,
        "n_vectors": n_vectors,
        "n_equal": n_equal,
        "exact": report["exact"],
        "label": grafted["label"],
        "question": question,
        "answer": grafted["text"].strip(),
    }
    if as_json:
        console.emit_json("taliesin.demo/1", result)
    else:
        rows = [
            ("model", name),
            ("tokens in the block", saved["n_tokens"]),
            ("bytes on disk", f"{saved['file_bytes']:,}"),
            ("fresh prefill", f"{saved['prefill_seconds'] * 1e3:,.0f} ms"),
            ("graft, read and placed", f"{graft_seconds * 1e3:,.1f} ms ({result['ratio']:,.0f}x)"),
            ("SHA-256 of logits equal", f"{n_equal} of {n_vectors}"),
            ("verdict", "exact" if report["exact"] else "NOT EXACT"),
        ]
        console.out(console.table(["taliesin demo", ""], rows))
    if not report["exact"]:
        raise typer.Exit(EXIT_NO)


def _run(verb: str, *arguments: str, allowed: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run a command of this toolkit in a process of its own; its JSON.

    Raises:
        TaliesinError: it failed; with its exit code and message.
    """
    command = [sys.executable, "-m", "taliesin", verb, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        lines = done.stderr.strip().splitlines()
        fields = (
            json.loads(lines[-1])["error"] if lines and lines[-1].startswith('{"error"') else {}
        )
        error = TaliesinError(
            fields.get("message", f"`taliesin {verb}` failed"),
            got=fields.get("got") or done.stderr[-400:],
        )
        error.exit_code = done.returncode
        raise error
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result

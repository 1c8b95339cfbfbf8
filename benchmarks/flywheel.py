"""Every arm of the bank's claims (C9 to C17, C20), one command of `galahad` each.

    python benchmarks/flywheel.py --problems aime2025.jsonl --model qwen2.5-coder-0.5b --work DIR
    [--stage NAME ...] python benchmarks/flywheel.py --problems data/problems --own --model
    smollm2-135m --work DIR --results benchmarks/results/flywheel

The problems are eight of AIME 2025, for which data/programs holds programs and not the text, or
with `--own` eight of data/problems, whose templates hold both.

The stages, in order: add, check, lint, route, recall, merged, isomorph, transfer, baked (transfer
again, from programs whose parameters were replaced by their values), controls, voting, cost,
rewrite (the only one that changes the bank). Each leaves its JSON files in `--results`
(DIR/results) and repeats nothing that is there, so a stopped series goes on. The problems' text
stays in the banks and in DIR/variants.jsonl; the results hold none. `--tokens` bounds one chain of
thought of the voting arm, `--measure` the one that decides whether a problem is needed,
`--card-tokens` an answer under the method card: small values measure less, and are written into the
results. With `--run` a run of the suite tells which problems are needed.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import time
from pathlib import Path

from galahad.responses import program as programs

ROOT = Path(__file__).parent.parent
IDS = (
    "2025-I-9",
    "2025-I-10",
    "2025-I-11",
    "2025-I-13",
    "2025-I-14",
    "2025-II-5",
    "2025-II-13",
    "2025-II-15",
)
# Two of each domain, with parameters that are integers.
OWN = (
    "alg-power-sum",
    "alg-toll-road",
    "comb-strip-tiling",
    "comb-echo-words",
    "geo-lattice-triangle",
    "geo-crossed-chords",
    "nt-factorial-zeros",
    "nt-gcd-gears",
)
STAGES = (
    "add",
    "check",
    "lint",
    "route",
    "recall",
    "merged",
    "isomorph",
    "transfer",
    "baked",
    "controls",
    "voting",
    "cost",
    "rewrite",
)


class _Bake(ast.NodeTransformer):
    """Puts the default value of each parameter of `solve` where its name is read, and takes the
    parameters away.
    """

    def __init__(self) -> None:
        self.values: dict[str, ast.expr] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == programs.ENTRY and node.args.defaults:
            names = [argument.arg for argument in node.args.args[-len(node.args.defaults) :]]
            self.values = dict(zip(names, node.args.defaults, strict=True))
            node.args = ast.arguments([], [], None, [], [], None, [])
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def bake(program: str) -> str:
    """The program with its parameters' values inside its logic; the sandbox then shows whether it
    still gives the answer.
    """
    return ast.unparse(_Bake().visit(ast.parse(program))) + "\n"


class Series:
    """The commands of one model."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.problems: Path = options.problems.resolve()
        self.work: Path = options.work.resolve()
        self.bank = self.work / "bank"
        self.results: Path = (options.results or self.work / "results").resolve()
        self.results.mkdir(parents=True, exist_ok=True)
        self.engine = [
            "--model",
            options.model,
            "--threads",
            options.threads,
            "--gpu-layers",
            options.gpu_layers,
        ]
        self.judge = ["--allow-weak"] if options.allow_weak else []
        self.ids = [part for one in (OWN if options.own else IDS) for part in ("--id", one)]
        self.tokens, self.measure, self.card_tokens = (
            options.tokens,
            options.measure,
            options.card_tokens,
        )
        self.base = ["--run", options.run.resolve()] if options.run else []

    def galahad(self, name: str, *arguments: object) -> None:
        """Run a command with --json into results/`name`.json, unless it is there; 3 and 4 are
        results, too.
        """
        target = self.results / f"{name}.json"
        if target.exists():
            return
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        command = [sys.executable, "-m", "galahad", *map(str, arguments), "--json"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 3, 4):
            raise SystemExit(done.returncode)
        document = json.loads(done.stdout)
        if "bank" in document:
            # results go into the repository, this machine's paths do not
            document["bank"] = self.bank.name
        target.write_text(
            json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    def arm(self, name: str, *arguments: object) -> None:
        self.galahad(name, *arguments, *self.engine, "--out", self.work / f"{name}.arm.json")

    def add(self) -> None:
        need = self.base or (["--measure", self.measure] if self.measure else ["--force"])
        self.galahad(
            "add",
            "bank",
            "add",
            self.problems,
            *self.ids,
            "--bank",
            self.bank,
            *need,
            *self.engine,
            *self.judge,
        )

    def check(self) -> None:
        self.galahad(
            "check", "bank", "check", "--bank", self.bank, "--certify", *self.engine, *self.judge
        )

    def lint(self) -> None:
        self.galahad("lint", "bank", "lint", "--bank", self.bank)

    def rewrite(self) -> None:
        self.galahad(
            "rewrite", "bank", "lint", "--bank", self.bank, "--rewrite", *self.engine, *self.judge
        )

    def route(self) -> None:
        outside = ROOT / "data" / "programs" / "outside.txt"
        self.galahad(
            "route",
            "bank",
            "route",
            self.problems,
            *self.ids,
            "--bank",
            self.bank,
            "--outside",
            outside,
        )

    def recall(self) -> None:
        self.arm("recall", "recall", self.problems, *self.ids, "--bank", self.bank)
        self.arm(
            "recall-quoted", "recall", self.problems, *self.ids, "--bank", self.bank, "--quote"
        )

    def merged(self) -> None:
        self.arm("merged", "recall", self.problems, *self.ids, "--bank", self.bank, "--merged")

    def isomorph(self) -> None:
        variants = self.work / "variants.jsonl"
        self.galahad(
            "isomorph",
            "isomorph",
            self.problems,
            *self.ids,
            "--seed",
            1,
            "--out",
            variants,
            "--timeout",
            60,
            *self.judge,
        )

    def transfer(self) -> None:
        for way in ("arguments", "program"):
            self.arm(
                f"transfer-{way}",
                "transfer",
                self.work / "variants.jsonl",
                "--bank",
                self.bank,
                "--adapt",
                way,
                *self.judge,
            )

    def baked(self) -> None:
        """C14's other half: the same solutions with their numbers inside the logic."""
        bank = self.work / "baked-bank"
        kept = {
            path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in self.bank.glob("entries/*.json")
        }
        for name, entry in sorted(kept.items()):
            program = self.work / "baked.py"
            program.write_text(bake(entry["program"]), encoding="utf-8")
            given = (
                "--id",
                entry["id"],
                "--bank",
                bank,
                "--program",
                program,
                "--force",
                *self.engine,
                *self.judge,
            )
            self.galahad(f"baked-add-{Path(name).stem}", "bank", "add", self.problems, *given)
        self.galahad("baked-lint", "bank", "lint", "--bank", bank)
        variants = self.work / "variants.jsonl"
        self.arm(
            "baked-transfer",
            "transfer",
            variants,
            "--bank",
            bank,
            "--adapt",
            "program",
            *self.judge,
        )

    def controls(self) -> None:
        """C16 and C17: problems that the model solves, without anything, with a bank, and with a
        method card.
        """
        easy = ROOT / "data" / "controls" / "easy.jsonl"
        bank = self.work / "control-bank"
        self.arm("control-direct", "recall", easy, "--no-bank")
        for row in map(json.loads, easy.read_text(encoding="utf-8").splitlines()):
            program = self.work / "control.py"
            program.write_text(f"print({row['answer']})\n", encoding="utf-8")
            name = f"control-add-{row['id']}"
            self.galahad(
                name,
                "bank",
                "add",
                easy,
                "--id",
                row["id"],
                "--bank",
                bank,
                "--program",
                program,
                "--force",
                *self.engine,
                *self.judge,
            )
        self.arm("control-bank", "recall", easy, "--bank", bank)
        card = ROOT / "data" / "controls" / "card.md"
        self.arm(
            "control-card",
            "recall",
            easy,
            "--no-bank",
            "--card",
            card,
            "--tokens",
            self.card_tokens,
        )

    def voting(self) -> None:
        self.arm(
            "voting",
            "recall",
            self.problems,
            *self.ids,
            "--no-bank",
            "--best-of",
            5,
            "--tokens",
            self.tokens,
        )

    def cost(self) -> None:
        arms = sorted(
            self.work.glob("*.arm.json"),
            key=lambda path: (path.name != "voting.arm.json", path.name),
        )
        self.galahad("cost", "cost", *arms, *self.base)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--own", action="store_true", help="eight of our problems instead of eight of AIME 2025"
    )
    parser.add_argument("--results", type=Path, help="folder of the JSON files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--run",
        type=Path,
        help="this model's run of the suite: what it needs, and the system score",
    )
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument(
        "--allow-weak", action="store_true", help="run programs even without a full sandbox"
    )
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--measure", type=int, default=256)
    parser.add_argument("--card-tokens", type=int, default=384)
    parser.add_argument("--stage", action="append", choices=STAGES)
    options = parser.parse_args()
    series = Series(options)
    for stage in options.stage or STAGES:
        getattr(series, stage)()


if __name__ == "__main__":
    main()

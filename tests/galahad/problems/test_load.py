"""Problem files in every form, the doctor's faults, its repairs, and the comparison with a clean
copy.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galahad.errors import SuiteError
from galahad.problems import faults, rows
from galahad.problems import load as problems

# Of our own wording, with the LaTeX that gets damaged.
CLEAN: list[dict[str, Any]] = [
    {
        "id": "a",
        "problem": "Compute $\\frac{84}{2}$ for $\\triangle ABC$ with $\\theta = 30^\\circ$.",
        "answer": 42,
    },
    {
        "id": "b",
        "problem": "How many of the first 200 positive integers end in 7 or in 9?",
        "answer": 40,
    },
    {
        "id": "c",
        "problem": "Let $AB = 12$ and $\\angle ABC = 60^\\circ$. Find $m + n$ if the ratio is "
        "$m/n$.",
        "answer": 7,
    },
]


def jsonl(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def put(tmp_path: Path, content: str | bytes, name: str = "file.bin") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def kinds(path: Path) -> list[tuple[int, str]]:
    return [(fault.row, fault.kind) for fault in problems.examine(path).faults]


def with_text(tmp_path: Path, text: str, answer: object = 42) -> list[str]:
    return [
        kind
        for _, kind in kinds(put(tmp_path, jsonl([{"id": "x", "problem": text, "answer": answer}])))
    ]


# --- forms ---


def as_csv(records: list[dict[str, Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_parquet(records: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), sink)
    return sink.getvalue()


def as_arrow(records: list[dict[str, Any]], stream: bool) -> bytes:
    import pyarrow
    import pyarrow.ipc

    table = pyarrow.Table.from_pylist(records)
    sink = io.BytesIO()
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FORMS = {
    "jsonl": jsonl,
    "json": lambda records: json.dumps(records, indent=1),
    "json wrapped": lambda records: json.dumps({"version": 1, "data": records}),
    "json wrapped, indented": lambda records: json.dumps({"data": records}, indent=1),
    "jsonl after blank lines": lambda records: "\n\n" + jsonl(records).replace("\n", "\n\n"),
    "csv": as_csv,
    "csv with semicolons": lambda records: as_csv(records, ";"),
    "csv with tabs": lambda records: as_csv(records, "\t"),
    "parquet": as_parquet,
    "arrow file": lambda records: as_arrow(records, False),
    "arrow stream": lambda records: as_arrow(records, True),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_told_by_its_content(tmp_path: Path, form: str) -> None:
    suite = problems.load(put(tmp_path, FORMS[form](CLEAN), "named.txt"))
    assert [(p.id, p.problem, p.answer) for p in suite.problems] == [
        tuple(r.values()) for r in CLEAN
    ]
    assert suite.warnings == ()
    assert all(p.sha256 == problems.text_sha256(p.problem) for p in suite.problems)


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, b"PAR1" + b"\0" * 100)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SuiteError, match=r"need pyarrow[\s\S]*taliesin\[data\]"):
        problems.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty problem file"),
        (b" \n\n", "an empty problem file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"\x1f\x8b\x08\x00", "a gzip file"),
        (b"PK\x03\x04rest", "a zip file"),
        (b"\xff\xfe{\x00}\x00", "UTF-16"),
        (b'{"problem": "caf\xe9", "answer": 1}', "not UTF-8"),
        (b"just prose\nand more", "no problem file of a form known here"),
        (b'[{"problem": "x"', "not JSON"),
        (b"[1, 2]", "no row of this file can be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "no row of this file can be read"),
        (b'{"text": "x", "label": 3}', "no row has a problem field"),
        (b"PAR1" + b"\0" * 100, "a damaged Parquet file"),
        (b"ARROW1" + b"\0" * 100, "a damaged Arrow file"),
        (b"\xff\xff\xff\xff" + b"\0" * 100, "no row in this file|a damaged Arrow file"),
    ],
)
def test_what_is_no_problem_file_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    if content[:3] in (b"PAR", b"ARR", b"\xff\xff\xff"):
        pytest.importorskip("pyarrow")
    with pytest.raises(SuiteError, match=message):
        problems.load(put(tmp_path, content))


def test_missing_files_folders_and_oversize_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SuiteError, match="cannot read"):
        problems.load(tmp_path / "nothing.jsonl")
    with pytest.raises(SuiteError, match="a folder"):
        problems.examine(tmp_path)
    monkeypatch.setattr(rows, "MAX_FILE_BYTES", 50)
    with pytest.raises(SuiteError, match="too large"):
        problems.load(put(tmp_path, jsonl(CLEAN)))


def test_row_and_decoding_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 2)
    for form in ("jsonl", "json", "csv", "parquet", "arrow stream"):
        with pytest.raises(SuiteError, match="too many rows"):
            problems.load(put(tmp_path, FORMS[form](CLEAN)))
    monkeypatch.setattr(rows, "MAX_ROWS", 100)
    monkeypatch.setattr(rows, "MAX_DECODED_BYTES", 20)
    for form in ("parquet", "arrow file"):
        with pytest.raises(SuiteError, match="too large when decoded"):
            problems.load(put(tmp_path, FORMS[form](CLEAN)))


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_give_problems_or_one_error(content: bytes) -> None:
    path = Path(__file__).parent / "unused"
    try:
        table_rows = rows._text_rows(rows._text(content, "bytes")[0], str(path))[1]
    except SuiteError:
        return
    assert all(row.fields is not None or row.trouble for row in table_rows)


# --- fields ---

TEXT = "How many primes are below 30?"


@pytest.mark.parametrize(
    ("record", "id"),
    [
        ({"problem": TEXT, "answer": "010"}, "1"),
        ({"ID": "2024-I-1", "Problem": TEXT, "Solution": "long", "Answer": 10}, "2024-I-1"),
        ({"Question": TEXT, "Answer": "10"}, "1"),
        ({"input": TEXT, "target": "10"}, "1"),
        ({"input": TEXT, "target": "10", "metadata": {"ID": "x-7", "Solution": "long"}}, "x-7"),
        (
            {
                "id": "aime25-0",
                "problem": TEXT,
                "expected_answer": "10",
                "reference_solution": "\\boxed{99}",
            },
            "aime25-0",
        ),
        ({"problem_idx": 3, "problem": TEXT, "answer": 10, "problem_type": ["Algebra"]}, "3"),
        ({"idx": 0, "prompt": TEXT, "answer": "10"}, "0"),
        ({"question_id": "ab12", "turns": [TEXT], "ground_truth": "010"}, "ab12"),
        (
            {
                "prompt": [{"role": "user", "content": TEXT}],
                "reward_model": {"ground_truth": "10", "style": "rule"},
                "extra_info": {"index": 5},
            },
            "5",
        ),
        ({"id": 60, "question": TEXT, "problem": TEXT, "answer": "10", "solution": ""}, "60"),
    ],
)
def test_the_field_names_of_public_copies_are_known(
    tmp_path: Path, record: dict[str, Any], id: str
) -> None:
    suite = problems.load(put(tmp_path, jsonl([record])))
    assert suite.problems == (problems.Problem.of(id, TEXT, 10),)


def test_a_solution_is_never_read(tmp_path: Path) -> None:
    record = {
        "idx": 1,
        "problem": TEXT,
        "reference_solution": "\\boxed{70}\n#### 70",
        "solution": "70",
    }
    path = put(tmp_path, jsonl([record]))
    assert kinds(path) == [(1, "missing-gold")]
    assert "70" not in str(problems.examine(path))


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("25.0", "gold-with-fraction"),
        (25.0, "gold-with-fraction"),
        ("1000", "gold-out-of-range"),
        (-1, "gold-out-of-range"),
        ("1,024", "gold-out-of-range"),
        ("B", "gold-not-an-integer"),
        (True, "gold-not-an-integer"),
        (["25"], "gold-not-an-integer"),
        ("2/1", "gold-not-an-integer"),
        (10**30, "gold-not-an-integer"),
        ("", "missing-gold"),
        (None, "missing-gold"),
    ],
)
def test_golds_that_are_no_answers_are_refused(tmp_path: Path, gold: object, kind: str) -> None:
    path = put(tmp_path, jsonl([{"id": "x", "problem": TEXT, "answer": gold}]))
    assert kinds(path) == [(1, kind)]
    with pytest.raises(SuiteError, match=kind):
        problems.load(path)


def test_rows_that_contradict_themselves_are_named(tmp_path: Path) -> None:
    lines = [
        json.dumps({"problem": TEXT, "answer": 1, "expected_answer": "2"}),
        json.dumps({"problem": TEXT + " Really?", "question": "Another one?", "answer": 1}),
        '{"problem": "How many?", "answer": 1, "answer": 2}',
        json.dumps(
            {
                "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "answer": 1,
            }
        ),
        json.dumps(
            {
                "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Q?"}],
                "answer": 1,
            }
        ),
        json.dumps({"problem": 5, "answer": 1}),
        '{"problem": "cut off',
        '{"problem": "x", "answer": NaN}',
        json.dumps({"problem": "   ", "answer": 1}),
    ]
    assert kinds(put(tmp_path, "\n".join(lines) + "\n")) == [
        (1, "golds-disagree"),
        (2, "texts-disagree"),
        (3, "repeated-field"),
        (4, "conversation"),
        (5, "instruction"),
        (6, "missing-text"),
        (7, "unreadable-row"),
        (8, "unreadable-row"),
        (9, "empty-text"),
    ]


def test_ids_are_labels_and_some_are_none(tmp_path: Path) -> None:
    records = [
        {"id": id, "problem": f"What is {n}?", "answer": n}
        for n, id in enumerate((0, "x" * 300, None, [1], "a\tb"))
    ]
    path = put(tmp_path, jsonl(records))
    assert kinds(path) == [(2, "bad-id"), (3, "missing-id"), (4, "bad-id"), (5, "bad-id")]
    assert [c.id for c in problems.examine(path).candidates] == ["0", "2", "3", "4", "5"]


def test_csv_rows_that_do_not_fit_the_header_are_named(tmp_path: Path) -> None:
    assert kinds(put(tmp_path, "problem,answer\nHow many?,3\nHow much?,4,5\nWhat?\n")) == [
        (2, "unreadable-row"),
        (3, "unreadable-row"),
    ]


# --- the file ---


def test_duplicates_are_told_apart(tmp_path: Path) -> None:
    a, b, c = CLEAN
    records = [
        a,
        b,
        {**a},
        {**b, "id": "other"},
        {**c, "id": "a"},
        {**c, "problem": b["problem"], "answer": 41},
    ]
    assert kinds(put(tmp_path, jsonl(records))) == [
        (2, "conflicting-duplicate"),
        (3, "duplicate-text"),
        (3, "duplicate-id"),
        (4, "duplicate-text"),
        (5, "duplicate-id"),
        (6, "conflicting-duplicate"),
    ]


def many(count: int) -> str:
    return jsonl([{"problem": f"How many divisors has {n}?", "answer": n} for n in range(count)])


@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("aime25.jsonl", 15, "half-set"),
        ("aime_2025.json", 15, "half-set"),
        ("aime2025.jsonl", 3, "incomplete-set"),
        ("aime2025.jsonl", 30, None),
        ("aime2025-I.jsonl", 15, None),
        ("aime_2025_ii.jsonl", 15, None),
        ("aime2025-I.jsonl", 14, "incomplete-set"),
        ("AIME_2020_2024.jsonl", 20, None),
        ("aime.jsonl", 15, "half-set"),
        ("others.jsonl", 15, "half-set"),
        ("others.jsonl", 16, None),
        ("aime-I.jsonl", 15, None),
    ],
)
def test_a_name_promises_a_number_of_rows(
    tmp_path: Path, name: str, count: int, kind: str | None
) -> None:
    (tmp_path / "d").mkdir()
    assert kinds(put(tmp_path / "d", many(count), name)) == ([(0, kind)] if kind else [])


def test_the_folder_promises_too(tmp_path: Path) -> None:
    (tmp_path / "aime24").mkdir()
    assert kinds(put(tmp_path / "aime24", many(15), "test.jsonl")) == [(0, "half-set")]


def test_marks_of_the_file_are_named(tmp_path: Path) -> None:
    assert kinds(put(tmp_path, b"\xef\xbb\xbf" + jsonl(CLEAN).rstrip().encode())) == [
        (0, "bom"),
        (0, "no-final-newline"),
    ]
    assert kinds(put(tmp_path, json.dumps(CLEAN))) == []


def test_own_files_are_checked_against_their_hashes(tmp_path: Path) -> None:
    suite = problems.load(put(tmp_path, jsonl(CLEAN)))
    path = tmp_path / "own.jsonl"
    problems.write(suite.problems, path)
    assert problems.load(path).problems == suite.problems
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().replace("first 200", "first 300"))
    assert kinds(path) == [(2, "hash-mismatch")]
    with pytest.raises(SuiteError, match="cannot write"):
        problems.write(suite.problems, tmp_path / "no" / "folder.jsonl")
    assert list(tmp_path.glob(".*")) == []


# --- the text ---


@pytest.mark.parametrize(
    ("text", "found", "mended"),
    [
        ("Compute $\frac{84}{2}$.", ["control-character"], "Compute $\\frac{84}{2}$."),
        (
            "In $\triangle ABC$ let $x = 3\times y$.",
            ["control-character"] * 2,
            "In $\\triangle ABC$ let $x = 3\\times y$.",
        ),
        (
            "Find $\binom{9}{3}$ and $\beta$.",
            ["control-character"] * 2,
            "Find $\\binom{9}{3}$ and $\\beta$.",
        ),
        ("If $a \neq b$, count.", ["control-character"], "If $a \\neq b$, count."),
        ("Let $\\left(x\right)$ be.", ["control-character"], "Let $\\left(x\\right)$ be."),
        ("A \x00null\x00 byte.", ["control-character"] * 2, "A null byte."),
        (
            "Compute $rac{84}{2}$ and $qrt{4}$.",
            ["broken-latex"] * 2,
            "Compute $\\frac{84}{2}$ and $\\sqrt{4}$.",
        ),
        ("Compute $\\\\frac{84}{2}$.", ["over-escaped"], "Compute $\\frac{84}{2}$."),
        ("Zero\u200bwidth\u202e.", ["invisible-character"], "Zerowidth."),
        ("It\u00e2\u20ac\u2122s five.", ["mojibake"], "It\u2019s five."),
        ("Let x<sup>2</sup>&nbsp;&lt; 5.<br>Count.", ["html"], "Let x^{2} < 5.\nCount."),
        ("<p>Count the ways.</p>", ["html"], "Count the ways."),
        (
            "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nCount.<|im_end|>\n",
            ["chat-template"],
            "Count.",
        ),
        (
            "<start_of_turn>user\nCount.<end_of_turn>\n<start_of_turn>model\n",
            ["chat-template"],
            "Count.",
        ),
        ("[INST] Count. [/INST]", ["chat-template"], "Count."),
        (
            "Count the ways. Please reason step by step, and put your final answer within "
            "\\boxed{}.",
            ["instruction"],
            "Count the ways.",
        ),
        ("Solve this step by step:\nCount the ways.", ["instruction"], "Count the ways."),
        ("Count the ways. The answer is 42.", ["answer-in-text"], "Count the ways."),
        ("Count the ways.\n\n\\boxed{042}", ["answer-in-text"], "Count the ways."),
        ("Count the ways.\n#### 42", ["answer-in-text"], "Count the ways."),
        ("Count the ways $n$. 42", ["answer-in-text"], "Count the ways $n$."),
    ],
)
def test_faults_of_texts_are_found_and_mended(
    tmp_path: Path, text: str, found: list[str], mended: str
) -> None:
    assert with_text(tmp_path, text) == found
    repaired, done = faults.repair(text, 42)
    assert repaired.strip() == mended
    assert done
    assert faults.find(repaired.strip(), 42) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The total is $m+n=42$, so count the rest.", "answer-in-text"),
        ("Count the ways.\n\nSolution: first we", "solution-in-text"),
        ("Lost \ufffd text.", "bad-character"),
        ("A lone \ud800 surrogate.", "bad-character"),
        ("As shown, count the squares.", "figure-missing"),
        ("Let $x be 5.", "unbalanced-dollars"),
        ("Let $\\frac{1}{2$ be.", "unbalanced-braces"),
        ("<|im_start|>user\nA<|im_end|><|im_start|>user\nB<|im_end|>", "chat-template"),
        ("x" * 30_000, "too-long"),
    ],
)
def test_faults_that_cannot_be_mended_are_left_alone(tmp_path: Path, text: str, found: str) -> None:
    assert with_text(tmp_path, text) == [found]
    assert not problems.examine(tmp_path / "file.bin").faults[0].repairable
    assert faults.repair(text, 42) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "Let $a<b>c$ and p < q and r > s.",
        "A frog moves step by step along 42 stones. How many ways?",
        "Find the value of $f(42)$ as a tree grows; the cost is \\$5.",
        "As shown, count.\n\\begin{tikzpicture}\n\t\\draw ($(B)!0.5!(C)$);\n\\end{tikzpicture}",
        "\\begin{align*}x &= 1 \\\\ y &= 2\\end{align*}",
        "Tabs\tand an\ttext, \u00e9t\u00e9, \u03c0, \u4e2d.",
        "The answer to 42 questions is sought. How many?",
        "Find $n$ such that $1 + 2 + 42 = n$ for 421 cases.",
    ],
)
def test_sound_texts_raise_no_alarm(tmp_path: Path, text: str) -> None:
    assert with_text(tmp_path, text) == []


@given(st.text(), st.none() | st.integers(0, 999))
def test_repair_never_raises_and_a_second_repair_finds_little(text: str, gold: int | None) -> None:
    repaired, done = faults.repair(text, gold)
    assert (repaired == text) or done
    faults.find(text, gold)


@given(st.text(alphabet="abcxyz0123456789 +=,.?", min_size=1))
def test_plain_text_is_never_changed(text: str) -> None:
    assert faults.repair(text, None) == (text, [])


def test_repair_writes_what_it_can_and_names_what_it_left(tmp_path: Path) -> None:
    a, b, c = CLEAN
    records = [
        {**a, "problem": a["problem"].replace("\\frac", "\frac").replace("\\theta", "\theta")},
        {**b, "answer": "$040$"},
        {**c, "answer": "7.0"},
        dict(a),
        {**b},
    ]
    path = put(tmp_path, jsonl(records))
    mended = problems.repair(problems.examine(path))
    assert [(p.id, p.problem, p.answer) for p in mended.problems][:2] == [
        tuple(a.values()),
        tuple(b.values()),
    ]
    assert any("put back LaTeX commands" in line for line in mended.done)
    assert any("read the answer '$040$' as 40" in line for line in mended.done)
    assert (3, "gold-with-fraction") in [(fault.row, fault.kind) for fault in mended.left]


def test_repeated_rows_are_dropped_once(tmp_path: Path) -> None:
    mended = problems.repair(problems.examine(put(tmp_path, jsonl([*CLEAN, CLEAN[0]]))))
    assert [p.id for p in mended.problems] == ["a", "b", "c"]
    assert mended.left == ()
    assert mended.done == ("row 4 (a): left out, it repeats another row",)


# --- against a clean copy ---


def against(
    tmp_path: Path, records: list[dict[str, Any]]
) -> list[tuple[str, int | None, str | None]]:
    reference = problems.load(put(tmp_path, jsonl(CLEAN), "reference.jsonl"))
    found = problems.examine(put(tmp_path, jsonl(records), "copy.jsonl"))
    return [(d.kind, d.row, d.reference_id) for d in problems.compare(found, reference)]


def test_typesetting_figures_order_and_ids_are_no_difference(tmp_path: Path) -> None:
    a, b, c = CLEAN
    records = [
        {
            "problem": c["problem"].replace("$AB = 12$", "\\(AB=12\\)") + " [asy]draw();[/asy]",
            "answer": 7,
        },
        {
            "problem": a["problem"]
            .replace("\\frac{84}{2}", "\\dfrac{84}2")
            .replace("\\theta", "\\left. \\theta"),
            "answer": "042",
        },
        {"problem": b["problem"].replace("200", "\n200"), "answer": 40},
    ]
    assert against(tmp_path, records) == []


def test_a_wrong_angle_a_lost_word_and_a_wrong_gold_are_found(tmp_path: Path) -> None:
    _, b, c = CLEAN
    records = [
        {**c, "problem": c["problem"].replace("\\angle ABC", "\\angle XBC")},
        {**b, "problem": b["problem"].replace("positive ", ""), "answer": 39},
        {"id": "new", "problem": "What is the last digit of $7^{7}$?", "answer": 3},
    ]
    assert against(tmp_path, records) == [
        ("number-differs", 1, "c"),
        ("wording-differs", 2, "b"),
        ("answer-differs", 2, "b"),
        ("extra", 3, None),
        ("missing", None, "a"),
    ]


def test_the_documented_faults_are_the_real_ones() -> None:
    text = (Path(__file__).parents[3] / "docs" / "problems.md").read_text(encoding="utf-8")
    table = text.split("| fault | severity | what it is |\n| --- | --- | --- |\n", 1)[1].split(
        "<!-- faults: end"
    )[0]
    assert table.strip().splitlines() == [
        f"| {kind} | {severity} | {what} |" for kind, (severity, what) in faults.KINDS.items()
    ]

"""What enters the bank, what stays in it, and what `check` finds."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from galahad import sandbox
from galahad.answerer.answerer import SavedBlock
from galahad.bank import proposals as sources
from galahad.bank import rewrite as lint
from galahad.bank import routing
from galahad.bank.bank import Bank
from galahad.bank.check import check
from galahad.bank.entry import (
    Entry,
    Need,
    PersonSource,
    SolutionSource,
    Solved,
    require_need,
    verified,
)
from galahad.errors import BankError
from galahad.measure.canonical import sha256_of
from galahad.problems import solutions
from galahad.problems.problem import Problem

NEEDED = Need(solved="failed", by="a test")
BY_HAND = PersonSource(file="p.py")
PROBLEM = Problem.of("sum-7", "What is the sum of the integers from 1 to 37?", 703)
PROGRAM = "def solve(last=37):\n    return sum(range(last + 1))\n\nprint(solve())\n"
BAKED = "print(sum(range(37 + 1)))\n"
OTHER = Problem.of("count-9", "How many positive divisors does 5040 have?", 60)
COUNT = (
    "def solve(n=5040):\n    return sum(n % d == 0 for d in range(1, n + 1))\n\nprint(solve())\n"
)

needs_sandbox = pytest.mark.skipif(
    sandbox.probe().level == "weak", reason="this host cannot isolate a program"
)


@pytest.fixture
def store(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "bank", create=True)


@pytest.fixture
def entry(prints: Any) -> Entry:
    return verified(PROBLEM, PROGRAM, BY_HAND, prints("703\n"))


@pytest.fixture
def other(prints: Any) -> Entry:
    return verified(OTHER, COUNT, BY_HAND, prints("60\n"))


@needs_sandbox
def test_a_program_that_prints_the_answer_in_the_sandbox_is_verified() -> None:
    made = verified(PROBLEM, PROGRAM, BY_HAND)
    assert made.verification.verdict == "verified"
    assert made.verification.level in ("full", "kernel")
    assert made.parametric
    assert made.document().endswith("Verified answer: 703")


@pytest.mark.parametrize(
    ("stdout", "status", "said"),
    [
        ("704\n", "ok", "refuted"),
        ("703\n", "timeout", "timeout"),
        ("703\n", "error", "program-error"),
        ("", "ok", "no-output"),
    ],
)
def test_a_program_that_does_not_establish_the_answer_is_refused(
    prints: Any, stdout: str, status: str, said: str
) -> None:
    with pytest.raises(BankError, match=said):
        verified(PROBLEM, PROGRAM, BY_HAND, prints(stdout, status))


def test_numbers_of_the_problem_inside_the_logic_are_reported(prints: Any) -> None:
    made = verified(PROBLEM, BAKED, BY_HAND, prints("703\n"))
    assert not made.parametric
    assert any("37" in finding for finding in made.findings)


@pytest.mark.parametrize("id_", ["../up", "", "a/b", ".hidden", "a" * 101])
def test_an_id_that_cannot_be_a_file_is_refused(prints: Any, id_: str) -> None:
    with pytest.raises(BankError):
        verified(replace(PROBLEM, id=id_), PROGRAM, BY_HAND, prints("703\n"))


def test_a_text_with_half_a_character_is_refused_before_it_is_run() -> None:
    with pytest.raises(BankError, match="half a surrogate pair"):
        verified(PROBLEM, "print('\ud800', 703)", BY_HAND, lambda *_: pytest.fail("run"))


@pytest.mark.parametrize("solved", ["uncertain", "failed"])
def test_what_the_model_lacks_is_needed(solved: Solved) -> None:
    require_need("p", Need(solved=solved, by="run"), force=False)


@pytest.mark.parametrize(
    ("solved", "said"), [("solved", "already solves"), ("not-measured", "nobody measured")]
)
def test_what_the_model_solves_or_nobody_measured_is_refused_unless_forced(
    solved: Solved, said: str
) -> None:
    with pytest.raises(BankError, match=said):
        require_need("p", Need(solved=solved, by="run"), force=False)
    require_need("p", Need(solved=solved, by="run"), force=True)


def test_an_entry_comes_back_with_its_provenance_need_and_block(
    store: Bank, entry: Entry, scripted: Any
) -> None:
    reader = scripted()
    stored = store.add(entry, reader, NEEDED)
    found = store.get("sum-7")
    assert found == stored
    assert (found.provenance, found.source) == (BY_HAND, "person")
    assert found.need[reader.model_sha256] == NEEDED
    with store.library.open(found.block(reader.model_sha256)) as block:
        assert block.header.text == entry.document()
    assert check(store, verify=None) == []


def test_another_model_adds_its_block_to_the_same_solution(
    store: Bank, entry: Entry, scripted: Any
) -> None:
    first, second = scripted(), scripted(model="bigger")
    store.add(entry, first, NEEDED)
    store.add(entry, second, Need(solved="uncertain", by="run"))
    found = store.get("sum-7")
    assert set(found.blocks) == {first.model_sha256, second.model_sha256}
    assert found.need[first.model_sha256].solved == "failed"


def test_a_model_without_a_block_is_told_how_to_get_one(entry: Entry) -> None:
    with pytest.raises(BankError, match="no block of this model") as refused:
        entry.block("0" * 64)
    assert "bank add" in (refused.value.hint or "")


def test_another_solution_of_a_problem_takes_its_place_only_when_told(
    store: Bank, entry: Entry, scripted: Any, prints: Any
) -> None:
    store.add(entry, scripted(), NEEDED)
    another = verified(PROBLEM, BAKED, BY_HAND, prints("703\n"))
    with pytest.raises(BankError, match="another solution"):
        store.add(another, scripted(), NEEDED)
    assert store.get("sum-7").program == PROGRAM
    store.add(another, scripted(), NEEDED, replace_existing=True)
    assert store.get("sum-7").program == BAKED
    assert check(store, verify=None) == []


def test_one_problem_is_not_banked_under_two_ids(store: Bank, entry: Entry, scripted: Any) -> None:
    store.add(entry, scripted(), NEEDED)
    with pytest.raises(BankError, match="as sum-7"):
        store.add(structs.replace(entry, id="again"), scripted(), NEEDED)


def test_a_crash_before_the_entry_leaves_a_block_that_check_names(
    store: Bank, entry: Entry, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_entry: Entry) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_put", killed)
        with pytest.raises(KeyboardInterrupt):
            store.add(entry, scripted(), NEEDED)
    assert store.ids() == ()
    assert [(t.kind, t.detail) for t in check(store, verify=None)] == [
        ("block", "no entry names it")
    ]
    store.add(entry, scripted(), NEEDED)
    assert check(store, verify=None) == []


def test_a_changed_entry_is_refused_and_named(store: Bank, entry: Entry, scripted: Any) -> None:
    store.add(entry, scripted(), NEEDED)
    path = store.path / "entries" / "sum-7.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"answer": 703', '"answer": 704'), encoding="utf-8"
    )
    with pytest.raises(BankError, match="not as it was written"):
        store.get("sum-7")
    assert check(store, verify=None)[0].what == "sum-7"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"schema": "galahad.entry/9"}', "null", "[" * 100_000]
)
def test_a_file_that_is_no_entry_is_one_clear_error(store: Bank, content: str) -> None:
    (store.path / "entries" / "x.json").write_text(content, encoding="utf-8")
    with pytest.raises(BankError):
        store.get("x")


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": []},
        {"blocks": {"x": {}}},
        {"blocks": {"x": "y"}},
        {"provenance": []},
        {"problem": 3},
        {"program": None},
        {"program": "\ud800"},
        {"verification": "x"},
        {"need": [1]},
        {"need": {"x": 1}},
        {"answer": "703"},
        {"answer": 703.5},
        {"answer": -7},
        {"findings": 3},
        {"findings": [3]},
        {"more": 1},
        {"provenance": {}},
        {"provenance": {"source": "rumour"}},
        {"provenance": {"source": "person", "file": 3}},
        {"created": None},
    ],
)
def test_a_sealed_entry_with_a_field_of_another_type_is_one_clear_error(
    store: Bank, entry: Entry, scripted: Any, change: dict[str, Any]
) -> None:
    store.add(entry, scripted(), NEEDED)
    path = store.path / "entries" / "sum-7.json"
    fields = {
        name: value
        for name, value in json.loads(path.read_bytes()).items()
        if name not in ("schema", "seal")
    }
    fields |= change
    path.write_text(
        json.dumps({"schema": Entry.SCHEMA, **fields, "seal": sha256_of(fields)}), encoding="utf-8"
    )
    with pytest.raises(BankError, match=r"the entry|a file of the bank"):
        store.get("sum-7")


def test_an_entry_with_a_value_that_is_no_json_is_one_clear_error(
    store: Bank, entry: Entry, scripted: Any
) -> None:
    store.add(entry, scripted(), NEEDED)
    path = store.path / "entries" / "sum-7.json"
    path.write_text(path.read_text(encoding="utf-8").replace("703", "NaN", 1), encoding="utf-8")
    with pytest.raises(BankError):
        store.get("sum-7")


def test_files_that_no_entry_can_have_do_not_stop_the_bank_and_check_names_them(
    store: Bank, entry: Entry, scripted: Any
) -> None:
    store.add(entry, scripted(), NEEDED)
    folder = store.path / "entries"
    (folder / "sum-7 (copy).json").write_bytes((folder / "sum-7.json").read_bytes())
    (folder / f"{'a' * 200}.json").write_text("{}", encoding="utf-8")
    (folder / "dir.json").mkdir()
    os.mkfifo(folder / "fifo.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    assert [one.id for one in store.entries()] == ["sum-7"]
    assert {one.what for one in check(store, verify=None)} == {
        "sum-7 (copy).json",
        f"{'a' * 200}.json",
        "dir.json",
        "fifo.json",
        "zero.json",
    }


def test_an_entry_cannot_take_the_name_of_the_merged_block(prints: Any) -> None:
    with pytest.raises(BankError, match="cannot name an entry"):
        verified(replace(PROBLEM, id="merged"), PROGRAM, BY_HAND, prints("703\n"))


def test_a_bank_whose_entries_folder_is_gone_takes_entries_again(
    tmp_path: Path, entry: Entry, scripted: Any
) -> None:
    with Bank(tmp_path / "bank", create=True) as made:
        (made.path / "entries").rmdir()
    with Bank(tmp_path / "bank", create=True) as again:
        again.add(entry, scripted(), NEEDED)
        assert again.ids() == ("sum-7",)


def test_a_path_that_no_file_system_takes_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="no bank there"):
        Bank(tmp_path / ("y" * 300))


def test_check_runs_the_programs_again(
    store: Bank, entry: Entry, scripted: Any, prints: Any
) -> None:
    store.add(entry, scripted(), NEEDED)
    assert check(store, prints("703\n")) == []
    [trouble] = check(store, prints("1\n"))
    assert (trouble.what, trouble.kind) == ("sum-7", "program")


def test_check_finds_a_flipped_byte_of_a_block(store: Bank, entry: Entry, scripted: Any) -> None:
    reader = scripted()
    store.add(entry, reader, NEEDED)
    path = store.library.block_path(entry_block(store, reader).id)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))
    assert any(t.kind == "block" for t in check(store, verify=None))


def entry_block(store: Bank, reader: Any) -> SavedBlock:
    return store.get("sum-7").blocks[reader.model_sha256]


def test_check_recomputes_certificates_of_the_readers_own_blocks_only(
    store: Bank, entry: Entry, scripted: Any
) -> None:
    store.add(entry, scripted(), NEEDED)
    assert check(store, None, scripted(model="another", certificates_hold=False)) == []
    [trouble] = check(store, None, scripted(certificates_hold=False))
    assert trouble.detail.startswith("certificate-mismatch")


def test_removing_takes_the_blocks_of_all_models(
    store: Bank, entry: Entry, other: Entry, scripted: Any
) -> None:
    store.add(entry, scripted(), NEEDED)
    store.add(entry, scripted(model="bigger"), NEEDED)
    store.add(other, scripted(), NEEDED)
    assert store.remove("sum-7") == 2
    assert store.ids() == ("count-9",)
    assert check(store, verify=None) == []
    with pytest.raises(BankError):
        store.remove("sum-7")


def test_a_folder_with_other_things_is_not_made_a_bank(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BankError, match="holds other things"):
        Bank(tmp_path, create=True)
    with pytest.raises(BankError, match="no bank there"):
        Bank(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]


def test_a_bank_of_another_version_is_refused(store: Bank) -> None:
    (store.path / "bank.json").write_text(
        '{"format": "galahad-bank", "version": 2}', encoding="utf-8"
    )
    with pytest.raises(BankError, match="version"):
        Bank(store.path)


def test_files_and_folders_are_the_owners_alone(store: Bank, entry: Entry, scripted: Any) -> None:
    store.add(entry, scripted(), NEEDED)
    assert store.path.stat().st_mode & 0o077 == 0
    assert (store.path / "entries" / "sum-7.json").stat().st_mode & 0o077 == 0


def test_an_entry_of_an_earlier_version_is_read_with_its_seal(store: Bank, entry: Entry) -> None:
    """As it was written before blocks had sizes, its keys in another order."""
    fields = entry.fields() | {
        "blocks": {"a" * 64: {"name": "n", "id": "i", "model": "m", "model_sha256": "a" * 64}}
    }
    fields["blocks"]["a" * 64]["n_tokens"] = 9
    fields = dict(reversed(fields.items()))
    text = json.dumps({"seal": sha256_of(fields), **fields, "schema": "galahad.entry/1"})
    (store.path / "entries" / "sum-7.json").write_text(text, encoding="utf-8")
    found = store.get("sum-7")
    assert (found.blocks["a" * 64].n_tokens, found.blocks["a" * 64].file_bytes) == (9, 0)
    assert store.update(found, created="later") == store.get("sum-7")


# --- rewrites ---


def test_a_rewrite_enters_only_parametric_and_verified(prints: Any, scripted: Any) -> None:
    baked = verified(PROBLEM, BAKED, BY_HAND, prints("703\n"))
    good = scripted(says={None: [PROGRAM.strip() + "\n```"]})
    assert lint.rewrite(baked, good, verify=prints("703\n")).program is not None
    assert lint.rewrite(baked, good, verify=prints("702\n")).program is None
    still = lint.rewrite(
        baked, scripted(says={None: [BAKED.strip() + "\n```"]}), verify=prints("703\n")
    )
    assert still.program is None
    assert "still not parametric" in still.reason
    assert (
        lint.rewrite(baked, scripted(says={None: ["no code ("]}), verify=prints("703\n")).program
        is None
    )


# --- the router ---


def test_routing_figures_count_inside_variants_and_outside(
    store: Bank, entry: Entry, other: Entry, scripted: Any, tmp_path: Path
) -> None:
    store.add(entry, scripted(), NEEDED)
    store.add(other, scripted(), NEEDED)
    lines = tmp_path / "queries.txt"
    lines.write_text("# ours\nWho wrote the song of the lighthouse keeper?\n\n", encoding="utf-8")
    variant = Problem.of("sum-7~1", "What is the sum of the integers from 1 to 52?", 1)
    figures = routing.measure(
        store, [*routing.of_problems([PROBLEM, OTHER, variant]), *routing.of_lines(lines)], 0.5
    )
    assert (figures.inside.k, figures.inside.n) == (3, 3)
    assert (figures.outside.k, figures.outside.n) == (1, 1)
    assert figures.confusions == ()
    strict = routing.measure(store, routing.of_problems([variant]), 1.0)
    assert [c.got for c in strict.confusions] == [None]


# --- sources ---


def test_a_kept_solution_is_found_by_the_hash_of_the_text() -> None:
    kept = solutions.read_all()
    one = next(iter(kept.values()))
    problem = Problem("any-name", "", one.answer, one.sha256)
    proposal = sources.of_solutions(problem, kept)
    assert proposal is not None
    assert proposal.provenance == SolutionSource(solution=one.id)
    assert sources.of_solutions(PROBLEM, kept) is None


def test_measuring_calls_right_solved_and_anything_else_failed(scripted: Any) -> None:
    right = scripted(says={None: ["so \\boxed{703}"]})
    assert sources.measure(PROBLEM, right, max_tokens=64).solved == "solved"
    wrong = scripted(says={None: ["so \\boxed{7}"]})
    assert sources.measure(PROBLEM, wrong, max_tokens=64).solved == "failed"
    assert sources.measure(PROBLEM, right, max_tokens=4).solved == "failed"

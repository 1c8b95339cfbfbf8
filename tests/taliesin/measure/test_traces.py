"""Traces: conversations as a client sent them, requests of hashes in the order in which they came,
and one error that names the line for anything else.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from taliesin.errors import FormatError, StoreMissing
from taliesin.measure.traces import hashed, talks


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


TALK = {
    "messages": [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "look", "arguments": '{"at":1}'}}],
        },
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "it is 42"},
    ]
}


def test_a_request_is_everything_up_to_an_assistants_turn(tmp_path: Path) -> None:
    (talk,) = talks(written(tmp_path / "t.jsonl", TALK))
    first, second = talk.requests()
    assert first == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "hello"},
    ]
    assert second[:2] == first
    assert second[2:] == [
        {"role": "assistant", "content": 'look({"at":1})'},
        {"role": "user", "content": "42"},
    ]


def test_a_packed_trace_is_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path / "t.jsonl", TALK)
    packed = tmp_path / "t.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert list(talks(packed)) == list(talks(plain))


def test_requests_of_one_service_share_their_pieces(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [0, 1]},
        {"timestamp": 1, "input_length": 700, "output_length": 1, "hash_ids": [0, 2]},
    ]
    first, second = hashed(written(tmp_path / "t.jsonl", *lines))
    assert (first.pieces, first.n_tokens, first.prompt) == ([0, 1], 512, 900)
    assert first.pieces[0] == second.pieces[0]


def session(name: str, *times: float) -> dict[str, Any]:
    return {
        "id": name,
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [{"t": t, "in": 64, "hash_ids": [n]} for n, t in enumerate(times)],
    }


def test_sessions_run_beside_each_other_and_share_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl", session("a", 0, 10, 40), session("b", 0, 5), session("c", 0, 1)
    )
    order = [request.pieces[0] for request in hashed(path, at_once=2)]
    # c begins where b has ended
    assert order == [("a", 0), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("a", 1), ("a", 2)]
    alone = [request.pieces[0][0] for request in hashed(path, at_once=1)]  # type: ignore[index]
    assert alone == list("aaabbcc")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]\n", "line 1"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n{"messages": 3}\n', "line 2"),
        ('{"messages": [{"content": "x"}]}\n', "messages with a role"),
        ('{"messages"\n', "not JSON Lines"),
    ],
)
def test_anything_else_is_one_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(FormatError, match=said):
        list(talks(path))


def test_hashes_that_are_none_are_one_error(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"hash_ids": ["x"], "input_length": 3})
    with pytest.raises(FormatError, match="line 1"):
        list(hashed(path))


def test_a_cut_archive_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    packed = tmp_path / "t.jsonl.xz"
    packed.write_bytes(lzma.compress(json.dumps(TALK).encode() + b"\n")[:60])
    with pytest.raises(FormatError, match="not JSON Lines"):
        list(talks(packed))
    with pytest.raises(StoreMissing):
        list(talks(tmp_path / "none"))

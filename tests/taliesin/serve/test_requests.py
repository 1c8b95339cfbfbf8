"""Bodies of requests: what is typed, refused by name, ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.errors import UsageError
from taliesin.serve.requests import (
    CHAT,
    IGNORED,
    LLAMA_SERVER,
    TEXT,
    ChatRequest,
    CompletionRequest,
    read,
    text_of,
)

MESSAGES = [{"role": "user", "content": "x"}]


def chat(**fields: Any) -> Any:
    return read(CHAT, json.dumps({"messages": MESSAGES, **fields}).encode())


def text(**fields: Any) -> Any:
    return read(TEXT, json.dumps({"prompt": "x", **fields}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"tools_": []},
        {"top_logprobs": 5},
        {"top_logprobs": 21, "logprobs": True},
        {"temperature": -1},
        {"temperature": "warm"},
        {"top_p": 1.5},
        {"seed": 1 << 70},
        {"n": 0},
        {"stop": [1]},
        {"stream": 1},
        {"stream_options": {"include": True}},
        {"logit_bias": {"1": "x"}},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"audio": {}},
        {"functions": []},
        {"web_search_options": {}},
        {"frequency_penalty": 3},
        {"max_tokens": 10**12},
        {"messages": "x"},
        {"messages": []},
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as found:
        chat(**fields)
    name = next(iter(fields))
    assert name in str(found.value)


@pytest.mark.parametrize("name", ["echo", "suffix", "best_of"])
def test_what_no_engine_does_to_a_text_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        text(**{name: {"echo": True, "suffix": "z", "best_of": 2}[name]})


def test_what_cannot_change_an_answer_is_ignored() -> None:
    fields = {name: {"any": ["thing"]} for name in IGNORED}
    request = chat(**fields)
    assert request.body == {"messages": MESSAGES}


def test_null_is_a_field_that_is_not_there() -> None:
    fields = dict.fromkeys(("stop", "tools", "seed", "top_logprobs", "unknown_one"))
    assert chat(**fields).body == {"messages": MESSAGES}


def test_what_only_llama_server_knows_is_set_apart() -> None:
    request = text(mirostat=2, top_k=3)
    assert request.passed == {"mirostat"}
    assert request.fields.top_k == 3
    assert request.body["mirostat"] == 2
    assert not LLAMA_SERVER & {
        f for kind in (ChatRequest, CompletionRequest) for f in kind.__struct_fields__
    }


def test_other_names_of_a_field_are_the_field() -> None:
    assert chat(max_completion_tokens=7).fields.max_tokens == 7
    assert text(n_predict=7).body["max_tokens"] == 7
    assert text(n_cmpl=2).fields.n == 2


def test_stops_are_a_list_without_empty_ones() -> None:
    assert text(stop="a").fields.stops == ["a"]
    assert text(stop=["a", "", "b"]).fields.stops == ["a", "b"]


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [("x", "x"), (["x"], "x"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])],
)
def test_a_list_of_one_prompt_is_that_prompt(given_: object, wanted: object) -> None:
    request = text(prompt=given_)
    assert request.fields.prompt == request.body["prompt"] == wanted


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [[1], [2]], [], [[]], [1, "a"], [True], [-1], [1 << 31], [[["a"]]], 5]
)
def test_several_prompts_and_what_is_none_are_refused(prompt: object) -> None:
    with pytest.raises(UsageError, match="prompt"):
        text(prompt=prompt)


def test_content_in_parts_is_one_text() -> None:
    assert text_of("x", "here") == "x"
    assert text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "here") == "ab"
    for wrong in (None, 3, [{"type": "image_url", "image_url": {}}], ["x"], [{"type": "text"}]):
        with pytest.raises(UsageError, match="here"):
            text_of(wrong, "here")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_one_error(data: bytes) -> None:
    for path in (CHAT, TEXT):
        try:
            read(path, data)
        except UsageError:
            continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__})


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_values_are_a_request_or_one_error(fields: dict[str, Any]) -> None:
    for path, needed in ((CHAT, {"messages": MESSAGES}), (TEXT, {"prompt": "x"})):
        try:
            request = read(path, json.dumps({**needed, **fields}).encode())
        except UsageError:
            continue
        assert request.fields.stops is not None

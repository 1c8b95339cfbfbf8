"""Grammars of schemas: what they accept fits the schema, and what they cannot hold to is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.errors import UsageError
from taliesin.serve.grammar import of_schema

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number"}, "z": {"enum": ['a"\\b', 1]}},
    "required": ["y"],
}
SCHEMAS: list[dict[str, Any] | None] = [
    None,
    {"type": "object"},
    POINT,
    {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "array", "items": POINT, "minItems": 1, "maxItems": 2},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "boolean"}, {"const": {"k": [1, "\n"]}}]},
    {
        "type": "object",
        "properties": {k: {"$ref": "#/$defs/n"} for k in "abcdefghij"},
        "$defs": {"n": {"type": "integer", "title": "N"}},
    },
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    },
]


def fits(value: Any, schema: Any, root: Any) -> bool:  # noqa: PLR0911
    """Whether a value fits a schema of the keywords that are honoured, by another way than ours."""
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].split("/")[1:]:
            target = target[step]
        return fits(value, target, root)
    if "anyOf" in schema:
        return any(fits(value, each, root) for each in schema["anyOf"])
    for key, values in (("enum", schema.get("enum")), ("const", [schema.get("const")])):
        if key in schema and not any(
            json.dumps(value) == json.dumps(each) for each in values or []
        ):
            return False
    kinds = schema.get("type", [])
    types = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
        "boolean": bool, "null": type(None),
    }  # fmt: skip
    named = [kinds] if isinstance(kinds, str) else kinds
    if named and not any(
        isinstance(value, types[k]) and (k == "boolean" or not isinstance(value, bool))
        for k in named
    ):
        return False
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not set(schema.get("required", [])) <= set(value):
            return False
        for name, each in value.items():
            inner = known.get(name, others)
            if inner is False or (inner is not True and not fits(each, inner, root)):
                return False
    if isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", 10**9)
        return least <= len(value) <= most and all(
            fits(each, schema.get("items", {}), root) for each in value
        )
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9)
    return True


@pytest.mark.native
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_what_a_model_writes_fits_the_schema(
    schema: dict[str, Any] | None, tiny_model: Callable[..., Path]
) -> None:
    grammar = of_schema(schema)
    ended = 0
    with Engine(str(tiny_model())) as engine:
        quote = engine.model.tokenize('"', special=False)[0]
        for seed in range(12):
            context = engine.context(engine.settings, 600)
            context.decode([1], 0)
            # Long texts are of no interest: what closes something is preferred.
            closing = [engine.model.tokenize(c, special=False)[0] for c in "}]"]
            sampling = llama.Sampling(
                3.0,
                top_k=0,
                top_p=1,
                min_p=0,
                seed=seed,
                grammar=grammar,
                logit_bias=((quote, 4.0), *((t, 6.0) for t in closing), (2, 9.0)),
            )
            steps = list(engine.continue_from(context, 1, 500, sampling))
            if len(steps) < 500:
                text = "".join(step.text for step in steps)
                if "\ufffd" in text:  # bytes that are no text: only a random model writes them
                    continue
                assert fits(json.loads(text), schema or {"type": "object"}, schema), text
                ended += 1
    assert ended > 3


def test_the_check_of_this_test_can_fail() -> None:
    assert not fits({"x": 1}, POINT, POINT)
    assert not fits({"y": "1"}, POINT, POINT)
    assert not fits(True, {"type": "integer"}, {})
    assert fits({"y": 1.5, "z": 1}, POINT, POINT)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "pattern": "a"}, "pattern"),
        ({"type": "string", "format": "date"}, "format"),
        ({"type": "integer", "minimum": 3}, "minimum"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "prefixItems": []}, "prefixItems"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"oneOf": [{"type": "null"}]}, "oneOf"),
        ({"allOf": [{"type": "null"}]}, "allOf"),
        ({"not": {}}, "not"),
        ({"type": "date"}, "type"),
        ({"type": "array", "items": {"type": "string", "pattern": "a"}}, "items.pattern"),
        ({"anyOf": [{"type": "null"}], "minimum": 1}, "minimum"),
        ({"$ref": "https://example.org/x"}, r"\$ref"),
        ({"$ref": "#/$defs/x"}, r"\$ref"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "maxItems"),
        ({"type": "string", "maxLength": 10**9}, "maxLength"),
        ({"enum": []}, "enum"),
        ({"type": "string", "enum": [1]}, "enum"),
        ({"type": "object", "required": ["a"], "properties": {}}, "required"),
        ({"type": "object", "properties": []}, "properties"),
        ({"items": 3, "type": "array"}, "items"),
    ],
)
def test_what_cannot_be_held_to_is_named(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        of_schema(schema)


def test_large_and_deep_schemas_are_refused_not_crashed() -> None:
    many = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(3000)}}
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    for schema in (many, deep):
        with pytest.raises(UsageError, match="too"):
            of_schema(schema)


def test_many_optional_properties_stay_small() -> None:
    names = [f"p{random.Random(i).random()}" for i in range(300)]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    assert len(of_schema(schema)) < 200_000

"""A JSON Schema as a grammar (GBNF) that lets a model write nothing else.

Promises: whatever the grammar accepts is valid JSON and fits the schema; a keyword that it cannot
hold to is refused by name. Objects come with their properties in the schema's order and without
others; space only after a comma, a colon or a bracket. Deliberately does not know: models.
"""

from __future__ import annotations

import json
from typing import Any

from taliesin.errors import UsageError

_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "strict"),
    }
)
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
}
_MOST_RULES = 2000
_MOST_REPEATS = 1000

_BASE = {
    "ws": '[ ]? | "\\n" [ ]{0,16}',
    "char": '[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" (["\\\\/bfnrt] | "u00" [01] [0-9a-f])',
    "string": '"\\"" char* "\\""',
    "int": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'int ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws (string ":" ws value ("," ws string ":" ws value)* ws)? "}"',
    "array": '"[" ws (value ("," ws value)* ws)? "]"',
}
_CONTAINERS = {"list": "array", "dict": "object"}
_TYPES = {
    "object": "object",
    "array": "array",
    "string": "string",
    "integer": "int",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def of_schema(schema: dict[str, Any] | None) -> str:
    """The grammar of a schema; of any JSON object for None or an empty one.

    Raises:
        UsageError: a keyword that no grammar is made of, or a schema that is none.
    """
    if not schema:
        schema = {"type": "object"}
    try:
        return _Writer(schema).text()
    except RecursionError as error:
        raise UsageError("the schema is nested too deeply") from error


class _Writer:
    """The rules of one grammar while they are made."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._rules: dict[str, str] = {}
        self._refs: dict[str, str] = {}

    def text(self) -> str:
        self._rules["root"] = self._of(self._root, "schema")
        rules = {**self._rules, **_BASE}
        return "\n".join(f"{name} ::= {rule}" for name, rule in rules.items())

    def _rule(self, body: str) -> str:
        """A new rule's name."""
        name = f"r{len(self._rules)}"
        if len(self._rules) >= _MOST_RULES:
            raise UsageError("the schema is too large", expected=f"at most {_MOST_RULES} rules")
        self._rules[name] = body
        return name

    def _of(self, schema: Any, where: str) -> str:
        """What stands for `schema` in a rule."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, dict):
            raise _refused(where, "a schema", schema)
        given = {key for key in schema if key not in _ANNOTATIONS}
        for keyword, made in (
            ("$ref", self._ref),
            ("anyOf", self._any),
            ("enum", self._enum),
            ("const", self._const),
        ):
            if keyword in given:
                beside = given - {keyword} - ({"type"} if keyword in ("enum", "const") else set())
                _require(where, beside, set())
                return made(schema[keyword], f"{where}.{keyword}", schema)
        return self._typed(schema, given, where)

    def _typed(self, schema: dict[str, Any], given: set[str], where: str) -> str:
        """What stands for a schema that has a type, or properties."""
        kind = schema.get("type")
        if kind is None and given == {"properties"} | (given & _KEYWORDS["object"]):
            kind = "object"
        if isinstance(kind, list) and kind:
            return self._any([{**schema, "type": k} for k in kind], f"{where}.type", schema)
        if kind not in _TYPES:
            raise _refused(f"{where}.type", ", ".join(_TYPES), kind or sorted(given))
        _require(where, given, {"type"} | _KEYWORDS.get(str(kind), set()))
        if kind == "object" and given & {"properties", "additionalProperties"}:
            return self._object(schema, where)
        if kind == "array" and given - {"type"}:
            return self._array(schema, where)
        if kind == "string" and given - {"type"}:
            return self._rule(f'"\\"" char{_times(schema, "minLength", "maxLength", where)} "\\""')
        return _TYPES[str(kind)]

    def _ref(self, ref: Any, where: str, _schema: dict[str, Any]) -> str:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise _refused(where, "a place in this schema, #/...", ref)
        if ref not in self._refs:
            target: Any = self._root
            for step in ref.split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(target, dict) or name not in target:
                    raise _refused(where, "a place in this schema", ref)
                target = target[name]
            self._refs[ref] = name = self._rule("")  # first, so that it may name itself
            self._rules[name] = self._of(target, ref)
        return self._refs[ref]

    def _any(self, schemas: Any, where: str, _schema: dict[str, Any]) -> str:
        if not isinstance(schemas, list) or not schemas:
            raise _refused(where, "a list of schemas", schemas)
        return self._rule(
            " | ".join(self._of(each, f"{where}[{i}]") for i, each in enumerate(schemas))
        )

    def _enum(self, values: Any, where: str, schema: dict[str, Any]) -> str:
        if not isinstance(values, list) or not values:
            raise _refused(where, "a list of values", values)
        kept = [value for value in values if _is_of(value, schema.get("type"))]
        if not kept:
            raise _refused(where, f"a value of type {schema.get('type')}", values)
        return self._rule(" | ".join(_literal(_json(value)) for value in kept))

    def _const(self, value: Any, where: str, schema: dict[str, Any]) -> str:
        return self._enum([value], where, schema)

    def _object(self, schema: dict[str, Any], where: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", True)
        if not isinstance(properties, dict):
            raise _refused(f"{where}.properties", "an object", properties)
        if not isinstance(required, list) or not all(name in properties for name in required):
            raise _refused(f"{where}.required", "names of properties", required)
        if not properties:
            if others is False:
                return self._rule('"{" ws "}"')
            value = self._of(others, f"{where}.additionalProperties")
            pair = f'string ":" ws {value}'
            return self._rule(f'"{{" ws ({pair} ("," ws {pair})* ws)? "}}"')
        # From the last property to the first: `first` goes on before any was written, `later` after
        # one was.
        first, later = "", ""
        for name, each in reversed(properties.items()):
            pair = f'{_literal(_json(name))} ":" ws {self._of(each, f"{where}.{name}")}'
            if name in required:
                first = self._rule(f"{pair} {later}")
                later = self._rule(f'"," ws {pair} {later}')
            else:
                skipped = f" | {first}" if first else ""
                first = self._rule(f"({pair} {later}{skipped}){'' if first else '?'}")
                later = self._rule(f'("," ws {pair})? {later}')
        return self._rule(f'"{{" ws {first} ws "}}"')

    def _array(self, schema: dict[str, Any], where: str) -> str:
        item = self._of(schema.get("items", True), f"{where}.items")
        least, most = _bounds(schema, "minItems", "maxItems", where)
        if most == 0:
            return self._rule('"[" ws "]"')
        more = f'("," ws {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        items = f"{item} {more} ws" if least else f"({item} {more} ws)?"
        return self._rule(f'"[" ws {items} "]"')


def _require(where: str, given: set[str], allowed: set[str]) -> None:
    if unknown := sorted(given - allowed):
        raise UsageError(
            f"the schema's keyword {where}.{unknown[0]} is not honoured here",
            expected=", ".join(sorted(allowed)) or "none beside it",
            hint="leave it out, or use the engine server",
        )


def _refused(where: str, expected: str, got: object) -> UsageError:
    return UsageError(
        f"the schema's keyword {where} is not one that is honoured",
        expected=expected,
        got=repr(got)[:80],
    )


def _bounds(schema: dict[str, Any], low: str, high: str, where: str) -> tuple[int, int | None]:
    least, most = schema.get(low, 0), schema.get(high)
    for name, value in ((low, least), (high, 0 if most is None else most)):
        if type(value) is not int or not 0 <= value <= _MOST_REPEATS:
            raise _refused(f"{where}.{name}", f"0..{_MOST_REPEATS}", value)
    if most is not None and most < least:
        raise _refused(f"{where}.{high}", f"at least {low}", most)
    return least, most


def _times(schema: dict[str, Any], low: str, high: str, where: str) -> str:
    least, most = _bounds(schema, low, high, where)
    return f"{{{least},{'' if most is None else most}}}"


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a schema's type, as JSON sees it."""
    if kind is None:
        return True
    if isinstance(kind, list):
        return any(_is_of(value, each) for each in kind)
    if isinstance(value, bool) or value is None:
        return bool(kind == ("null" if value is None else "boolean"))
    if isinstance(value, (int, float)):
        return kind == "number" or (kind == "integer" and float(value).is_integer())
    return bool(kind == ("string" if isinstance(value, str) else _CONTAINERS[type(value).__name__]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _literal(text: str) -> str:
    """`text` as a string of GBNF."""
    escaped = "".join(
        "\\" + c if c in '"\\' else c if c >= " " and c != "\x7f" else f"\\x{ord(c):02X}"
        for c in text
    )
    return f'"{escaped}"'

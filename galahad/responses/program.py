"""Programs as text: found in a response, read by their syntax tree, given other parameters. Nothing
is ever run here.

A *program* prints one integer. A *parametric* program keeps every number of its problem in the
parameters of `solve(param=...)`, so that the same method solves a problem with other numbers; one
that has a number of its problem inside the logic (*baked in*) solves only the problem it was
written for.

This module does not know whether a program is right, nor what it does: that is the sandbox's and
the verifier's matter.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from galahad.responses import integer as answers
from taliesin.errors import UsageError

# A method worth keeping is a page; what is longer is refused before the parser sees it.
MAX_SOURCE_BYTES = 64 * 1024
ENTRY = "solve"

Literals = int | float | str | bool | None | list["Literals"] | tuple["Literals", ...]


# --- finding a program in a response ---


@dataclass(frozen=True, slots=True)
class Found:
    """A program in a response. `source` is None unless `reason` is "program"; `span` is its range
    in the response.
    """

    source: str | None
    reason: Literal["program", "no-code", "syntax-error", "unfinished"]
    span: tuple[int, int] | None


_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+.#-]*)[^\n`]*$", re.M
)
# The names that models give a block of Python; with a version or without.
_PYTHON = re.compile(r"(?:(?:[ic]?python|pypy|py)(?:\d+(?:\.\d+)*)?|sage|tool_code)?", re.I)


def extract(text: str, *, in_reasoning: bool = False, stopped_at_fence: bool = False) -> Found:
    """The last complete Python block of `text` that parses; without any fence, `text` itself if it
    is a program.

    As with answers, reasoning that was never closed holds no program. A fence that is not closed
    was cut off, unless the caller says that generation stopped at the closing fence
    (`stopped_at_fence`).
    """
    start, finished = answers.after_reasoning(text, in_reasoning)
    if not finished:
        return Found(None, "unfinished", None)
    spans, cut = _blocks(text, start, stopped_at_fence)
    for span in reversed(spans):
        source = textwrap.dedent(text[slice(*span)]).strip("\n") + "\n"
        if parse(source) is not None:
            return Found(source, "program", span)
    if cut is not None:
        return Found(None, "unfinished", cut)
    if spans:
        return Found(None, "syntax-error", spans[-1])
    bare = text[start:].strip()
    tree = parse(bare)
    if tree is not None and any(
        isinstance(node, (ast.FunctionDef, ast.Call)) for node in ast.walk(tree)
    ):
        at = text.index(bare, start)
        return Found(bare + "\n", "program", (at, at + len(bare)))
    return Found(None, "no-code", None)


def _blocks(
    text: str, start: int, stopped_at_fence: bool
) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
    """The spans of complete Python blocks in order, and the span of a block that was cut off at the
    end.
    """
    spans: list[tuple[int, int]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text, start):
        if opened is None:
            opened = fence
        elif fence["fence"].startswith(opened["fence"]) and not fence["language"]:
            if _PYTHON.fullmatch(opened["language"]):
                spans.append((min(opened.end() + 1, fence.start()), fence.start()))
            opened = None
    if opened is None or not _PYTHON.fullmatch(opened["language"]):
        return spans, None
    rest = (min(opened.end() + 1, len(text)), len(text))
    return ([*spans, rest], None) if stopped_at_fence else (spans, rest)


def parse(source: str) -> ast.Module | None:
    """The syntax tree of `source`, or None if it is no Python (or more than a parser should be
    given).
    """
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in a model's strings are its own matter
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _parsed(source: str) -> ast.Module:
    tree = parse(source)
    if tree is None:
        raise UsageError(
            "not a Python program", expected=f"Python source of at most {MAX_SOURCE_BYTES} bytes"
        )
    return tree


def complete(source: str) -> str:
    """`source` so that it prints: a bare last expression is printed, or else `solve()` if that
    needs no arguments.

    Models often stop at `solve()` or at the definition, as in a notebook. A program that prints
    anything at module level comes back unchanged, and so does one that calls a function of its own
    that prints and has no value: printing that call would end the output with `None`.

    Raises:
        UsageError: `source` is not Python.
    """
    tree = _parsed(source)
    statements = list(_module_level(tree))
    if any(_is_call(node, "print") for statement in statements for node in ast.walk(statement)):
        return source
    own = _functions(tree)
    last = _last(tree)
    if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Constant):
        called = _called(last, own)
        if not called or any(_has_value(function, own) for function in called):
            return _printing(source, last.value)
    if any(_prints(statement, own) for statement in statements):
        if (
            isinstance(last, ast.Assign)
            and last is tree.body[-1]
            and isinstance(target := last.targets[0], ast.Name)
            and any(_has_value(function, own) for function in _called(last, own))
        ):
            return f"{source.rstrip()}\n\nprint({target.id})\n"
        return source
    entry = _entry(tree)
    if entry is not None and len(entry.args.args) + len(entry.args.posonlyargs) == len(
        entry.args.defaults
    ):
        has_value = _has_value(entry, own) or not _prints_itself(entry, own)
        call = f"print({ENTRY}())" if has_value else f"{ENTRY}()"
        return f"{source.rstrip()}\n\n{call}\n"
    return source


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _last(tree: ast.Module) -> ast.stmt | None:
    """The last statement that runs; `if __name__ == ...:` is looked into."""
    last = tree.body[-1] if tree.body else None
    while (
        isinstance(last, ast.If)
        and not last.orelse
        and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(last.test))
    ):
        last = last.body[-1]
    return last


def _printing(source: str, node: ast.expr) -> str:
    """`source` with the expression `node` printed; every other byte stays as it is."""
    data = source.encode()
    begin, end = _byte_span(_line_starts(data), node)
    data = data[:begin] + b"print(" + data[begin:end] + b")" + data[end:]
    return data.decode().rstrip() + "\n"


def _line_starts(data: bytes) -> list[int]:
    """Where each line starts, by the lines that the parser counts: bytes end theirs at \\n, \\r and
    \\r\\n, text also at a form feed or U+2028.
    """
    return [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]


def _byte_span(starts: list[int], node: ast.expr) -> tuple[int, int]:
    """The range of `node` in the source's UTF-8 bytes, in which the tree counts its columns."""
    return (
        starts[node.lineno - 1] + node.col_offset,
        starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
    )


def _functions(tree: ast.Module) -> dict[str, list[_Function]]:
    """The program's own functions and methods by name."""
    own: dict[str, list[_Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own.setdefault(node.name, []).append(node)
    return own


def _called(node: ast.AST, own: Mapping[str, list[_Function]]) -> list[_Function]:
    """The program's own functions that `node` calls, by their names."""
    found: list[_Function] = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, (ast.Name, ast.Attribute)):
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            found += own.get(name, [])
    return found


def _prints(node: ast.AST, own: Mapping[str, list[_Function]]) -> bool:
    """Whether `node` calls a function of the program that prints, itself or through others."""
    seen: set[int] = set()
    waiting = _called(node, own)
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if any(_is_call(inner, "print") or _is_write(inner) for inner in ast.walk(function)):
            return True
        waiting += _called(function, own)
    return False


def _prints_itself(function: _Function, own: Mapping[str, list[_Function]]) -> bool:
    return any(
        _is_call(node, "print") or _is_write(node) for node in ast.walk(function)
    ) or _prints(function, own)


def _is_write(node: ast.AST) -> bool:
    """`sys.stdout.write(...)`"""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "write"
        and "stdout" in ast.unparse(node.func.value)
    )


def _has_value(
    function: _Function, own: Mapping[str, list[_Function]], above: frozenset[int] = frozenset()
) -> bool:
    """Whether `function` returns or yields anything; what it prints with a status (`return 0`) is
    its output, and the status is not.
    """
    if id(function) in above or len(above) > len(own):
        return False
    prints = _prints_itself(function, own)
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        value = node.value if isinstance(node, ast.Return) else None
        if isinstance(value, ast.Constant):
            if value.value is not None and not prints:
                return True
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            called = own.get(value.func.id, [])
            below = above | {id(function)}
            if not _is_call(value, "print") and (
                not called or any(_has_value(inner, own, below) for inner in called)
            ):
                return True
        elif value is not None:
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the program runs: not the bodies of functions and classes."""
    for statement in tree.body:
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _entry(tree: ast.Module) -> ast.FunctionDef | None:
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == ENTRY
    ]
    return functions[-1] if functions else None


# --- parameters ---


def parameters(source: str) -> dict[str, Literals]:
    """The parameters of `solve` with their default values, in order; empty if there is no `solve`.

    A parameter whose default is missing or not a literal is left out.

    Raises:
        UsageError: `source` is not Python.
    """
    entry = _entry(_parsed(source))
    return {} if entry is None else {name: value for name, (_, value) in _defaults(entry).items()}


def _defaults(entry: ast.FunctionDef) -> dict[str, tuple[ast.expr, Literals]]:
    positional = entry.args.posonlyargs + entry.args.args
    with_default = positional[len(positional) - len(entry.args.defaults) :]
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(with_default, entry.args.defaults, strict=True),
        *zip(entry.args.kwonlyargs, entry.args.kw_defaults, strict=True),
    ]
    found = {}
    for argument, node in pairs:
        if node is not None:
            try:
                # literals only: no names, no calls
                found[argument.arg] = (node, ast.literal_eval(node))
            except (ValueError, RecursionError, MemoryError):
                continue
    return found


def substitute(source: str, values: Mapping[str, Literals]) -> str:
    """`source` with other default values for parameters of `solve`; every other byte stays as it
    is.

    Keywords of calls of `solve` at module level (`print(solve(n=5))`) are replaced too: they would
    hide the default.

    Raises:
        UsageError: no such parameter, or a parameter without a literal default.
    """
    tree = _parsed(source)
    entry = _entry(tree)
    defaults = _defaults(entry) if entry is not None else {}
    unknown = sorted(set(values) - set(defaults))
    if unknown:
        raise UsageError(
            f"no parameter {', '.join(unknown)} in {ENTRY}",
            expected=", ".join(defaults) or "a solve(param=...)",
        )
    places = [(defaults[name][0], value) for name, value in values.items()]
    for statement in _module_level(tree):
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _is_call(node, ENTRY):
                places += [
                    (k.value, values[k.arg])
                    for k in node.keywords
                    if k.arg is not None and k.arg in values
                ]
    data = source.encode()
    starts = _line_starts(data)
    spans = sorted(
        ((*_byte_span(starts, node), value) for node, value in places),
        key=lambda span: span[0],
        reverse=True,
    )
    for begin, end, value in spans:
        data = data[:begin] + repr(value).encode() + data[end:]
    return data.decode()


# --- constants ---

Place = Literal["parameter", "call", "named", "logic"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number in a program. `place` says where: the default of a parameter, an argument of a call
    at module level, a module-level `NAME = literal`, or the logic. `line` is 1-based, `column`
    0-based, as in the syntax tree."""

    value: int | float
    line: int
    column: int
    place: Place

    def __str__(self) -> str:
        return f"{self.value} (line {self.line}, column {self.column + 1})"


def constants(source: str) -> list[Constant]:
    """The numbers of a program in order of appearance; numbers inside strings of digits count,
    docstrings do not.

    Raises:
        UsageError: `source` is not Python.
    """
    tree = _parsed(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: list[Constant] = []

    def visit(node: ast.AST, place: Place, at_module_level: bool) -> None:
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and _number(node.operand) is not None
        ):
            found.append(
                Constant(-(_number(node.operand) or 0), node.lineno, node.col_offset, place)
            )
            return
        if isinstance(node, ast.Constant):
            for value in _numbers_in(node):
                found.append(Constant(value, node.lineno, node.col_offset, place))
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    visit(default, "parameter", False)
            for statement in _without_docstring(node.body):
                visit(statement, "logic", False)
            return
        if (
            at_module_level
            and isinstance(node, (ast.Assign, ast.AnnAssign))
            and _is_literal(node.value)
        ):
            if node.value is not None:
                visit(node.value, "named", True)
            return
        if (
            at_module_level
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in own
        ):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                visit(argument, "call" if _is_literal(argument) else "logic", False)
            return
        children = (
            _without_docstring(node.body)
            if isinstance(node, ast.Module)
            else ast.iter_child_nodes(node)
        )
        for child in children:
            visit(child, place, at_module_level and not isinstance(node, ast.ClassDef))

    visit(tree, "logic", True)
    return sorted(found, key=lambda constant: (constant.line, constant.column))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _is_literal(node: ast.AST | None) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(map(_is_literal, [*node.keys, *node.values]))
    return isinstance(node, ast.Constant)


def _number(node: ast.AST) -> int | float | None:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
    ):
        return node.value if math.isfinite(node.value) else None
    return None


def _numbers_in(node: ast.Constant) -> list[int | float]:
    value = _number(node)
    if value is not None:
        return [value]
    if isinstance(node.value, str):
        return [int(digits) for digits in re.findall(r"(?<![\w.])[0-9]{1,18}(?![\w.])", node.value)]
    return []


# --- the parametric check ---

_WORDS = {
    word: value
    for value, word in enumerate(
        ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
        start=3,
    )
}
_FIGURE = re.compile(r"\[asy\].*?\[/asy\]|\\begin\{(tikzpicture|asy)\}.*?\\end\{\1\}", re.S)
_PROBLEM_NUMBER = re.compile(
    r"(?<![_\d.])(?<!_\{)\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|(?<![_\d.])(?<!_\{)\d+(?:\.\d+)?"
)
# Numbers that a method may hold on its own account, whatever the problem says.
_STRUCTURAL = frozenset({-1, 0, 1, 2})
_CONVENTIONAL = frozenset(
    {90, 180, 360, *(10**k for k in range(2, 19)), *(2**k for k in range(4, 64))}
)
_DERIVED_FROM = 12


def numbers_of(text: str) -> set[int | float]:
    """The numbers that a problem states, as digits or as words; indices (`x_1`) and figures are
    left out.
    """
    text = _FIGURE.sub(" ", text)
    found: set[int | float] = set()
    for match in _PROBLEM_NUMBER.finditer(text):
        digits = re.sub(r"[^\d.]", "", match[0])
        if len(digits) <= 18:
            found.add(float(digits) if "." in digits else int(digits))
    found |= {_WORDS[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _WORDS}
    return found


@dataclass(frozen=True, slots=True)
class Check:
    """How parametric a program is.

    `parameters` are those of `solve`. `baked` are constants in the logic that the problem states;
    `derived` are large constants in the logic that it does not state, so that somebody computed
    them from its numbers by hand; `loose` are numbers of the problem under a module-level name or
    in a call instead of a default; `unused` are numbers of the problem that occur nowhere in the
    program. -1, 0, 1 and 2 are structural wherever they stand.
    """

    parameters: tuple[str, ...]
    baked: tuple[Constant, ...]
    derived: tuple[Constant, ...]
    loose: tuple[Constant, ...]
    unused: tuple[int | float, ...]

    @property
    def parametric(self) -> bool:
        return bool(self.parameters) and not (self.baked or self.derived or self.loose)

    def explain(self) -> list[str]:
        """One line per finding, for a reader."""
        lines = (
            []
            if self.parameters
            else [f"no {ENTRY}(param=...): nothing can be given other numbers"]
        )
        lines += [
            f"baked in: {c} is a number of the problem inside the logic; make it a parameter"
            for c in self.baked
        ]
        lines += [
            f"derived: {c} is not in the problem; compute it from the parameters"
            for c in self.derived
        ]
        lines += [
            f"loose: {c} is a number of the problem outside the parameters of {ENTRY}"
            for c in self.loose
        ]
        return lines


def check(source: str, problem: str) -> Check:
    """Compare the numbers of a program with those that the problem's text states.

    Raises:
        UsageError: `source` is not Python.
    """
    stated = numbers_of(problem) - _STRUCTURAL
    found = constants(source)
    logic = [c for c in found if c.place == "logic" and c.value not in _STRUCTURAL]
    baked = tuple(c for c in logic if abs(c.value) in stated)
    return Check(
        parameters=tuple(parameters(source)),
        baked=baked,
        derived=tuple(c for c in logic if c not in baked and _is_derived(c.value)),
        loose=tuple(c for c in found if c.place in ("call", "named") and abs(c.value) in stated),
        unused=tuple(sorted(stated - {abs(c.value) for c in found})),
    )


def _is_derived(value: int | float) -> bool:
    if value != int(value):
        # Tolerances and halves belong to methods.
        return abs(value) > 1e-3 and (2 * value) != int(2 * value)
    return abs(value) > _DERIVED_FROM and abs(int(value)) not in _CONVENTIONAL

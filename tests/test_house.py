"""Where things live: no module lies flat, no circle of imports, and the names that users import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import taliesin

ROOT = Path(__file__).parents[1]
PACKAGES = ("taliesin", "galahad")
FLAT = {"__init__.py", "__main__.py", "errors.py"}  # and py.typed


def modules() -> dict[str, Path]:
    """Every module's dotted name -> its file; a package's is that of its `__init__`."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def running(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees; function bodies included."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def imports(name: str, known: dict[str, Path]) -> set[str]:
    """Our modules that `name` imports, at the top or within a function."""
    found = set()
    for node in running(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
    return (found & known.keys()) - {name}


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that reach themselves: leaves are taken away until none is left."""
    left = {name: set(targets) for name, targets in graph.items()}
    while leaves := {name for name, targets in left.items() if not targets}:
        left = {name: targets - leaves for name, targets in left.items() if name not in leaves}
    return sorted(left)


def test_only_the_doors_and_the_errors_lie_flat() -> None:
    for package in PACKAGES:
        assert {path.name for path in (ROOT / package).glob("*.py")} <= FLAT


def test_no_module_imports_itself_round_a_corner() -> None:
    known = modules()
    assert len(known) > 100
    assert circles({name: imports(name, known) for name in known}) == []


def test_a_circle_would_be_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_the_public_names_are_these() -> None:
    names = [
        "BlockFile",
        "Engine",
        "Grafted",
        "Library",
        "Sampling",
        "Settings",
        "__version__",
        "save",
    ]
    assert sorted(taliesin.__all__) == names
    assert all(getattr(taliesin, name) is not None for name in names)

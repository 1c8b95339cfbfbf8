"""The one loader of YAML files: plain data, every key once, no aliases.

Promises: what loads means what it seems to mean. A key given twice, an alias (which can grow
without bound) and a number that YAML reads otherwise than a person (010 is 8, 1:30 is 90) are
refused, with line and column.
Deliberately does not know: any format; `records.convert` checks what was read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taliesin.errors import FormatError, ToolkitError


def load(text: str, *, what: str, where: object, error: type[ToolkitError] = FormatError) -> Any:
    """The document that `text` holds, as plain Python objects.

    Raises:
        error: not YAML, or one of the faults named above; with line and column.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.MarkedYAMLError(problem="an alias; write it out", problem_mark=mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: Any) -> int:
            number: int = super().construct_yaml_int(node)
            if str(number) != node.value.lstrip("+"):
                problem = f"{node.value} would be read as {number}; quote it, or write the number"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return number

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    try:
        return yaml.load(text, Loader)  # a SafeLoader: plain data only
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise error(
            f"{what} is not valid YAML", got=fault.problem, where=f"{where}{place}"
        ) from fault
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as fault:
        raise error(f"{what} is not valid YAML", got=str(fault), where=where) from fault
    except RecursionError as fault:
        raise error(f"{what} is nested too deeply", where=where) from fault


def read(path: Path, *, what: str, error: type[ToolkitError] = FormatError) -> Any:
    """The document in the file at `path`. Raises as `load`; OSError as it comes."""
    raw = path.read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        raise error(f"{what} is not UTF-8", got=str(fault), where=path) from fault
    return load(text, what=what, where=path, error=error)

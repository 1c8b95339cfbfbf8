"""Run `galahad` or `taliesin` as a command, from exactly the source that was locked.

    python -P -E locked_package.py FOLDERS REPORT galahad solve ...

FOLDERS is a JSON object, package name -> folder. Promises: every module of these packages comes
from its folder, compiled from the source file itself, whatever lies in the working folder, on
PYTHONPATH or in a byte code cache. Each file that is imported is a line `<sha256>  <path>` of the
file REPORT, written before its code runs; the hash is of the bytes that are compiled.
Deliberately does not know: which hashes are right. It imports nothing of either package itself.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source, never from a cache, and reports what it compiled."""

    def __init__(self, module: str, path: Path, reported: str, report: Path) -> None:
        super().__init__(module, str(path))
        self._reported, self._report = reported, report

    def get_code(self, fullname: str) -> CodeType:
        data = self.get_data(self.path)
        line = f"{hashlib.sha256(data).hexdigest()}  {self._reported}\n"
        fd = os.open(self._report, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)
        return self.source_to_code(data, self.path)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the packages in `folders`, and nothing else, in these folders alone."""

    def __init__(self, folders: Mapping[str, str], report: Path) -> None:
        self._folders = {name: Path(folder) for name, folder in folders.items()}
        self._report = report

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        package, *parts = fullname.split(".")
        if package not in self._folders:
            return None
        root = self._folders[package]
        folder = root.joinpath(*parts)
        file = folder / "__init__.py"
        is_package = file.is_file()
        if not is_package:
            file = folder.with_name(f"{folder.name}.py")
            if not parts or not file.is_file():
                raise ModuleNotFoundError(f"the locked package has no {fullname}", name=fullname)
        reported = f"{package}/{file.relative_to(root).as_posix()}"
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_Source(fullname, file, reported, self._report),
            submodule_search_locations=[str(folder)] if is_package else None,
        )


def main(words: Sequence[str]) -> None:
    """`words` are FOLDERS, REPORT and the command."""
    folders, report, package, *rest = words
    sys.meta_path.insert(0, Finder(json.loads(folders), Path(report)))
    sys.argv = [package, *rest]
    runpy.run_module(package, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

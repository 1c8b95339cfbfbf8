"""scripts/bootstrap.py without its minutes: builds and pip are played by small commands, locks and
files are real.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "scripts" / "bootstrap.py"
VERSION = "0.3.36"
WHEEL_NAME = f"llama_cpp_python-{VERSION}-py3-none-linux_x86_64.whl"


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bootstrap", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    for name in ("TALIESIN_CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS", "TALIESIN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return module


def write_wheel(path: Path, library: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llama_cpp/lib/libllama.so" if library else "llama_cpp/__init__.py", b"x")
    return path


Run = Callable[..., None]


@pytest.fixture
def steps(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every command that would run; `pip wheel` leaves a wheel, `pip download` the source
    package.
    """
    log: list[list[str]] = []

    def play(argv: Sequence[object], _label: str, _log: Path, **_kw: object) -> None:
        words = [str(word) for word in argv]
        log.append(words)
        if "wheel" in words:
            time.sleep(0.05)
            write_wheel(Path(words[words.index("--wheel-dir") + 1]) / WHEEL_NAME)
        elif "download" in words:
            (
                Path(words[words.index("--dest") + 1]) / f"llama_cpp_python-{VERSION}.tar.gz"
            ).write_bytes(b"source")

    monkeypatch.setattr(bootstrap, "run_logged", play)
    monkeypatch.setitem(
        bootstrap.RELEASES, VERSION, (bootstrap.hashlib.sha256(b"source").hexdigest(), "abc")
    )
    monkeypatch.setattr(bootstrap, "need_compiler", lambda: None)
    return log


def builds(steps: list[list[str]]) -> int:
    return sum("wheel" in words for words in steps)


# --- keys and places ------------------------------------------------------------------------------


def test_the_pinned_version_is_that_of_pyproject_and_has_a_known_hash(
    bootstrap: ModuleType,
) -> None:
    version = bootstrap.pinned_version(CHECKOUT)
    assert version == VERSION
    assert len(bootstrap.release(version)[0]) == 64
    with pytest.raises(bootstrap.BootstrapError, match=r"knows no hash for llama-cpp-python 9\.9"):
        bootstrap.release("9.9")


def test_constraints_name_every_package_once_with_an_exact_version() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines if not line.startswith("#"))
    assert len(names) == len(set(names))
    assert f"llama-cpp-python=={VERSION}" in lines


def test_every_direct_requirement_has_a_constraint(bootstrap: ModuleType) -> None:
    project = bootstrap.pyproject(CHECKOUT)["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    have = {line.split("==")[0] for line in (CHECKOUT / "constraints.txt").read_text().splitlines()}
    assert {
        re.split(r"[^A-Za-z0-9._-]", name)[0].lower().replace("_", "-") for name in wanted
    } <= have


def test_the_key_changes_with_whatever_changes_the_build(bootstrap: ModuleType) -> None:
    def key(**env: str) -> str:
        return str(
            bootstrap.build_of(VERSION, bootstrap.WHEEL_CMAKE_ARGS, python=True, env=env).key
        )

    assert key() == key(UNRELATED="1")
    variants = {
        key(),
        key(TALIESIN_CMAKE_ARGS="-DGGML_CUDA=ON"),
        key(CFLAGS="-O1"),
        key(CXXFLAGS="-O1"),
    }
    assert len(variants) == 4
    assert bootstrap.wheel_build(VERSION).key != bootstrap.server_build(VERSION).key
    assert "-DGGML_NATIVE=OFF" in bootstrap.wheel_build(VERSION).cmake_args
    assert "-DGGML_NATIVE=OFF" in bootstrap.server_build(VERSION).cmake_args


def test_the_cache_folder_is_the_one_of_the_package(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taliesin.models import resolve as models

    for variables in (
        {},
        {"XDG_CACHE_HOME": "/x/y"},
        {"TALIESIN_CACHE": "/a b"},
        {"XDG_CACHE_HOME": ""},
    ):
        with monkeypatch.context() as patch:
            for name in ("XDG_CACHE_HOME", "TALIESIN_CACHE"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            assert bootstrap.cache_dir(os.environ) == models.cache_dir()


# --- the wheel ------------------------------------------------------------------------------------


def test_a_wheel_is_built_once(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path
) -> None:
    first = bootstrap.wheel(VERSION, Path("python"), tmp_path)
    second = bootstrap.wheel(VERSION, Path("python"), tmp_path)
    assert first == second
    assert builds(steps) == 1
    assert json.loads((first.parent / "build.json").read_text())["llama_cpp_python"] == VERSION
    assert sorted(path.name for path in first.parent.iterdir()) == ["build.json", WHEEL_NAME]


def test_pips_own_cache_of_built_wheels_is_never_used(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path
) -> None:
    bootstrap.wheel(VERSION, Path("python"), tmp_path)
    (build,) = [words for words in steps if "wheel" in words]
    assert "--no-cache-dir" in build
    assert build[-1].endswith(f"llama_cpp_python-{VERSION}.tar.gz")


def test_two_builds_at_once_are_one(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path
) -> None:
    got: list[Path] = []

    def call() -> None:
        got.append(bootstrap.wheel(VERSION, Path("python"), tmp_path))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got)) == 1
    assert len(got) == 3
    assert builds(steps) == 1


def test_a_given_wheel_is_kept_and_replaces_another(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path
) -> None:
    bootstrap.wheel(VERSION, Path("python"), tmp_path / "cache")
    given = write_wheel(tmp_path / f"llama_cpp_python-{VERSION}-cp311-cp311-other.whl")
    kept = bootstrap.wheel(VERSION, Path("python"), tmp_path / "cache", given)
    assert kept.read_bytes() == given.read_bytes()
    assert bootstrap.wheel(VERSION, Path("python"), tmp_path / "cache") == kept
    assert builds(steps) == 1


@pytest.mark.parametrize(
    "name", ["llama_cpp_python-0.3.35-py3-none-any.whl", "other-0.3.36-py3-none-any.whl"]
)
def test_a_given_wheel_of_something_else_is_refused(
    bootstrap: ModuleType, tmp_path: Path, name: str
) -> None:
    given = write_wheel(tmp_path / name)
    with pytest.raises(bootstrap.BootstrapError, match="no wheel of llama-cpp-python"):
        bootstrap.wheel(VERSION, Path("python"), tmp_path / "cache", given)


def test_a_truncated_or_empty_wheel_in_the_cache_is_built_anew(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path
) -> None:
    path = bootstrap.wheel(VERSION, Path("python"), tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    assert bootstrap.is_wheel(bootstrap.wheel(VERSION, Path("python"), tmp_path), VERSION)
    write_wheel(path, library=False)
    assert bootstrap.is_wheel(bootstrap.wheel(VERSION, Path("python"), tmp_path), VERSION)
    assert builds(steps) == 3


def test_a_killed_build_leaves_no_wheel_and_its_rest_is_removed(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "wheels" / bootstrap.wheel_build(VERSION).key
    write_wheel(folder / ".staging-dead" / WHEEL_NAME)
    path = bootstrap.wheel(VERSION, Path("python"), tmp_path)
    assert builds(steps) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["build.json", WHEEL_NAME]


def test_another_source_package_is_refused(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bootstrap.RELEASES, VERSION, ("0" * 64, "abc"))
    with pytest.raises(bootstrap.BootstrapError, match="another source package"):
        bootstrap.wheel(VERSION, Path("python"), tmp_path)
    assert builds(steps) == 0
    assert not list(tmp_path.rglob("*.tar.gz"))


def test_too_little_space_is_said_before_the_build(
    bootstrap: ModuleType, steps: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "BUILD_BYTES", 10**18)
    with pytest.raises(bootstrap.BootstrapError, match="are free"):
        bootstrap.wheel(VERSION, Path("python"), tmp_path)
    assert steps == []


def test_a_missing_compiler_is_named_with_the_command_that_gets_it(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bootstrap.shutil,
        "which",
        lambda name, **_kw: "/usr/bin/apt-get" if name == "apt-get" else None,
    )
    with pytest.raises(bootstrap.BootstrapError, match="apt-get install -y build-essential"):
        bootstrap.need_compiler(env={})
    with pytest.raises(bootstrap.BootstrapError, match="apt-get install -y cmake"):
        bootstrap.need_cmake(Path("/nowhere"))


# --- llama-server ---------------------------------------------------------------------------------


def test_the_server_is_built_from_the_source_package_and_found_again(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = io.BytesIO()
    with tarfile.open(fileobj=source, mode="w:gz") as tar:
        for name in (
            f"llama_cpp_python-{VERSION}/vendor/llama.cpp/CMakeLists.txt",
            f"llama_cpp_python-{VERSION}/other",
        ):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    labels: list[str] = []

    def play(argv: Sequence[object], label: str, _log: Path, *, cwd: Path, **_kw: object) -> None:
        labels.append(label.partition(",")[0])
        words = [str(word) for word in argv]
        if "download" in words:
            (cwd / f"llama_cpp_python-{VERSION}.tar.gz").write_bytes(source.getvalue())
        elif "--build" in words:
            built = Path(words[words.index("--build") + 1]) / "bin" / "llama-server"
            built.parent.mkdir(parents=True)
            built.write_text("#!/bin/sh\necho version\n")
            built.chmod(0o755)
        else:
            assert (Path(words[words.index("-S") + 1]) / "CMakeLists.txt").is_file()
            assert not list(cwd.rglob("other"))

    digest = bootstrap.hashlib.sha256(source.getvalue()).hexdigest()
    monkeypatch.setitem(bootstrap.RELEASES, VERSION, (digest, "abc"))
    monkeypatch.setattr(bootstrap, "run_logged", play)
    monkeypatch.setattr(bootstrap, "need_compiler", lambda: None)
    monkeypatch.setattr(bootstrap, "need_cmake", lambda _folder: "cmake")
    path = bootstrap.server(VERSION, tmp_path, Path("python"), tmp_path)
    assert (
        bootstrap.server(VERSION, tmp_path, Path("python"), tmp_path)
        == path
        == bootstrap.cached_server(VERSION, tmp_path)
    )
    assert len(labels) == 3
    assert sorted(p.name for p in path.parent.iterdir()) == ["build.json", "llama-server"]


# --- running commands -----------------------------------------------------------------------------


def test_a_failing_command_shows_its_last_lines_and_keeps_its_log(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    code = "import sys\nfor i in range(99): print('line', i)\nsys.exit(7)"
    log = tmp_path / "logs" / "x.log"
    argv = [sys.executable, "-c", code]
    with pytest.raises(bootstrap.BootstrapError) as failure:
        bootstrap.run_logged(argv, "compiling", log, cwd=tmp_path, env=os.environ, hint="pray")
    said = str(failure.value)
    assert said.startswith("compiling failed (exit 7)")
    assert "line 98" in said
    assert "line 60" not in said
    assert said.endswith(f"whole log: {log}\n  try: pray")
    assert "line 0\n" in log.read_text()


def test_a_command_that_was_killed_is_said_to_have_been(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    argv = [
        sys.executable,
        "-c",
        "import os; print('x' * 999, flush=True); os.kill(os.getpid(), 15)",
    ]
    with pytest.raises(bootstrap.BootstrapError, match="compiling was ended by SIGTERM") as failure:
        bootstrap.run_logged(argv, "compiling", tmp_path / "x.log", cwd=tmp_path, env=os.environ)
    assert max(map(len, str(failure.value).splitlines())) <= 200


def test_a_long_command_says_how_far_it_is(
    bootstrap: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bootstrap, "REPORT_SECONDS", 0.05)
    code = "import time\nprint('[ 43%] Building', flush=True)\ntime.sleep(0.5)"
    argv = [sys.executable, "-c", code]
    bootstrap.run_logged(argv, "compiling", tmp_path / "x.log", cwd=tmp_path, env=os.environ)
    out, err = capfd.readouterr()
    assert out == ""
    assert "compiling: 0:00 min, 43%" in err
    assert err.splitlines()[-1].startswith("compiling: done in")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[  3%] Building C object", "3%"),
        ("  [12/48] c++ -c", "25%"),
        ("[100%] Built", "100%"),
        ("note: 3%", None),
    ],
)
def test_progress_is_read_from_make_and_ninja(
    bootstrap: ModuleType, line: str, said: str | None
) -> None:
    assert bootstrap.progress_of(line) == said


def test_an_interrupt_ends_the_commands_children_too(tmp_path: Path) -> None:
    marker = tmp_path / "grandchild"
    grandchild = (
        f"import pathlib, os, time; pathlib.Path({str(marker)!r}).write_text(str(os.getpid())); "
        f"time.sleep(60)"
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    script = textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        sys.dont_write_bytecode = True
        import bootstrap
        signal.signal(signal.SIGTERM, bootstrap._terminated)
        folder = Path({str(tmp_path)!r})
        argv = [sys.executable, "-c", {child!r}]
        bootstrap.run_logged(argv, "x", folder / "log", cwd=folder, env=os.environ)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300  # a loaded machine is slow, not wrong
        while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.terminate()
        assert process.wait(timeout=300) == 143
    pid = int(marker.read_text())
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the grandchild still runs"
        time.sleep(0.02)


# --- the environment ------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a space in its name that has what the stamp depends on."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "constraints.txt").write_text("x==1\n")
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "x"\nversion = "1"\ndependencies = '
        f'["llama-cpp-python=={VERSION}"]\n[tool.ruff]\nline-length = 9\n'
    )
    return folder


@pytest.fixture
def installs(
    bootstrap: ModuleType, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], int]:
    """The number of installs so far; a venv is a folder with a stand-in interpreter, and llama_cpp
    loads in it.
    """
    real = subprocess.run

    def run(argv: Sequence[object], **keywords: Any) -> Any:
        words = [str(word) for word in argv]
        if words[1:3] == ["-m", "venv"]:
            binary = Path(words[-1]) / "bin"
            bootstrap.shutil.rmtree(binary.parent, ignore_errors=True)
            binary.mkdir(parents=True)
            (binary / "python").symlink_to(sys.executable)
            return subprocess.CompletedProcess(argv, 0, "", "")
        if "import llama_cpp" in words[-1]:
            return subprocess.CompletedProcess(argv, 0, f"{VERSION}\n", "")
        return real(argv, **keywords)

    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    return lambda: sum("install" in words for words in steps)


def test_a_finished_environment_runs_nothing(
    bootstrap: ModuleType,
    checkout: Path,
    installs: Callable[[], int],
    steps: list[list[str]],
    tmp_path: Path,
) -> None:
    python = bootstrap.environment(checkout, tmp_path / "cache", ["test"])
    assert python == checkout / ".venv" / "bin" / "python"
    assert installs() == 1
    assert ".[test]" in steps[-1]
    before = len(steps)
    assert bootstrap.environment(checkout, tmp_path / "cache", ["test"]) == python
    assert len(steps) == before


def test_an_install_is_repeated_when_what_decides_it_changed_and_only_then(
    bootstrap: ModuleType, checkout: Path, installs: Callable[[], int], tmp_path: Path
) -> None:
    def again(extras: Sequence[str] = ("test",)) -> int:
        bootstrap.environment(checkout, tmp_path / "cache", extras)
        return installs()

    assert again() == 1
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("line-length = 9", "line-length = 99"))
    assert again() == 1
    (checkout / "constraints.txt").write_text("x==2\n")
    assert again() == 2
    project.write_text(project.read_text().replace('version = "1"', 'version = "2"'))
    assert again() == 3
    assert again(["test", "hub"]) == 4


def test_a_moved_checkout_gets_a_new_environment(
    bootstrap: ModuleType, checkout: Path, installs: Callable[[], int], tmp_path: Path
) -> None:
    bootstrap.environment(checkout, tmp_path / "cache", [])
    (checkout / ".venv" / "old").touch()
    moved = checkout.rename(tmp_path / "moved checkout")
    bootstrap.environment(moved, tmp_path / "cache", [])
    assert installs() == 2
    assert not (moved / ".venv" / "old").exists()


def test_another_build_gets_a_new_environment(
    bootstrap: ModuleType,
    checkout: Path,
    installs: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap.environment(checkout, tmp_path / "cache", [])
    (checkout / ".venv" / "old").touch()
    monkeypatch.setenv("TALIESIN_CMAKE_ARGS", "-DGGML_CUDA=ON")
    bootstrap.environment(checkout, tmp_path / "cache", [])
    assert not (checkout / ".venv" / "old").exists()


def test_an_install_that_failed_is_not_taken_for_a_finished_one(
    bootstrap: ModuleType,
    checkout: Path,
    installs: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working = bootstrap.run_logged

    def broken(argv: Sequence[object], label: str, log: Path, **keywords: Any) -> None:
        if "install" in argv:
            raise bootstrap.BootstrapError("no network")
        working(argv, label, log, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "run_logged", broken)
        with pytest.raises(bootstrap.BootstrapError, match="no network"):
            bootstrap.environment(checkout, tmp_path / "cache", [])
    bootstrap.environment(checkout, tmp_path / "cache", [])
    assert installs() == 1


def test_errors_are_one_message_and_exit_30(tmp_path: Path) -> None:
    argv = [sys.executable, str(SCRIPT), "wheel", "--wheel", str(tmp_path / "none.whl")]
    env = {**os.environ, "TALIESIN_CACHE": str(tmp_path / "cache"), "TALIESIN_CMAKE_ARGS": "-DX=1"}
    (tmp_path / "cache").write_text("a file")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 30
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


# --- the Makefile ---------------------------------------------------------------------------------


def test_every_make_target_is_listed_by_help() -> None:
    text = (CHECKOUT / "Makefile").read_text()
    (phony,) = [line for line in text.splitlines() if line.startswith(".PHONY:")]
    listed = subprocess.run(
        ["make", "help"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    for target in phony.split()[1:]:
        assert f"make {target} " in listed

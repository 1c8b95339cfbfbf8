"""`taliesin doctor`: each lack is named with the command that mends it, and only what the default
job needs decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from taliesin import cli
from taliesin.engine import llama
from taliesin.errors import EXIT_NO, EngineUnavailable
from taliesin.host import filehash
from taliesin.measure import doctor
from taliesin.models import catalogue
from taliesin.models import resolve as models

PAYLOAD = b"GGUF" + (3).to_bytes(4, "little") + bytes(200)
Findings = Callable[..., dict[str, doctor.Finding]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with everything: its folders are under the path that this gives."""
    for name in ("TALIESIN_CATALOGUE", "TALIESIN_MODELS", "TALIESIN_LLAMA_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TALIESIN_CACHE", str(tmp_path / "cache"))
    small = replace(
        models.entry(models.DEFAULT),
        n_bytes=len(PAYLOAD),
        sha256=hashlib.sha256(PAYLOAD).hexdigest(),
    )
    monkeypatch.setattr(catalogue, "catalogue", lambda: [small])
    info = {
        "llama_cpp_python": "0.3.36",
        "instruction_set": "AVX2=1 FMA=1",
        "libraries": {},
        "supports_gpu": False,
    }
    monkeypatch.setattr(llama, "build_info", lambda: info)
    monkeypatch.setattr(doctor, "available_memory", lambda: 8 << 30)
    monkeypatch.setattr(doctor, "_version", lambda _package: "0.3.36")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=1 << 40))
    small.path.parent.mkdir(parents=True)
    small.path.write_bytes(PAYLOAD)
    return tmp_path


@pytest.fixture
def findings(machine: Path) -> Findings:
    return lambda **options: {f.what: f for f in doctor.examine(machine / "library", **options)}


def server(machine: Path, script: str, version: str = "0.3.36") -> Path:
    folder = machine / "cache" / "server" / "key"
    folder.mkdir(parents=True)
    (folder / "build.json").write_text(json.dumps({"llama_cpp_python": version}))
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


def test_a_machine_with_the_default_model_can_run_the_default_job(
    machine: Path, findings: Findings
) -> None:
    found = findings()
    assert doctor.able(list(found.values()))
    assert "not checked" in found[models.DEFAULT].found
    assert not (machine / "library").exists()  # it looks and makes nothing


def test_the_hash_of_a_model_is_checked_on_request(findings: Findings) -> None:
    assert "SHA-256 right" in findings(rehash=True)[models.DEFAULT].found


@pytest.mark.parametrize("rehash", [False, True])
@pytest.mark.parametrize(("content", "state"), [(None, "missing"), (PAYLOAD[:-1], "wrong")])
def test_a_missing_or_truncated_default_model_is_mended_by_pull(
    findings: Findings, content: bytes | None, state: str, rehash: bool
) -> None:
    path = models.entry(models.DEFAULT).path
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = findings(rehash=rehash)
    assert found[models.DEFAULT].state == state
    assert found[models.DEFAULT].mend == f"taliesin model pull {models.DEFAULT}"
    assert not doctor.able(list(found.values()))


def test_a_model_with_other_bytes_is_wrong_when_hashed_and_when_remembered(
    findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filehash, "_RACY_SECONDS", -1.0)
    models.entry(models.DEFAULT).path.write_bytes(PAYLOAD[:-1] + b"x")
    assert findings()[models.DEFAULT].state == "ok"  # said to be unchecked
    assert findings(rehash=True)[models.DEFAULT].state == "wrong"
    assert findings()[models.DEFAULT].state == "wrong"


def test_a_model_that_is_not_the_default_is_not_needed(
    findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = catalogue.catalogue()
    other = replace(entries[0], name="other", file="other.gguf")
    monkeypatch.setattr(catalogue, "catalogue", lambda: [*entries, other])
    found = findings()
    assert found["other"].state == "missing"
    assert doctor.able(list(found.values()))


@pytest.mark.parametrize(("version", "state"), [("not installed", "missing"), ("0.3.35", "wrong")])
def test_another_or_no_engine_is_named(
    findings: Findings, monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    def refuse() -> Any:
        raise EngineUnavailable("not the one", expected="0.3.36", got=version)

    monkeypatch.setattr(llama, "build_info", refuse)
    monkeypatch.setattr(doctor, "_version", lambda _package: version)
    found = findings()
    assert found["llama-cpp-python"].state == state
    assert found["llama-cpp-python"].mend
    assert not doctor.able(list(found.values()))


def test_a_native_build_is_told_and_does_not_stop_the_job(
    findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {**llama.build_info(), "instruction_set": "AVX2=1 AVX512=1 AMX_INT8=1"}
    monkeypatch.setattr(llama, "build_info", lambda: info)
    found = findings()
    assert found["instruction set"].state == "wrong"
    assert "AMX_INT8=1" in found["instruction set"].found
    assert doctor.able(list(found.values()))


@pytest.mark.parametrize(("free", "able"), [(1 << 20, False), (None, True)])
def test_too_little_memory_stops_the_job_and_unknown_memory_does_not(
    findings: Findings, monkeypatch: pytest.MonkeyPatch, free: int | None, able: bool
) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: free)
    assert doctor.able(list(findings().values())) is able


def test_a_full_disk_is_named_with_the_folder(
    findings: Findings, monkeypatch: pytest.MonkeyPatch, machine: Path
) -> None:
    usage = shutil.disk_usage(machine)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=1000))
    found = findings()
    assert found["library"].state == "missing"
    assert "TALIESIN_LIBRARY" in str(found["library"].mend)
    assert not doctor.able(list(found.values()))


def test_a_folder_that_is_a_file_is_named(findings: Findings, machine: Path) -> None:
    (machine / "library").write_text("a file")
    assert findings()["library"].state == "wrong"


def test_a_server_that_was_built_is_found_and_started_for_its_version(
    findings: Findings, machine: Path
) -> None:
    path = server(machine, "echo 'version: 1 (abc)' >&2")
    found = findings()["llama-server"]
    assert found.state == "ok"
    assert str(path) in found.found
    assert "version: 1 (abc)" in found.found


def test_a_server_that_does_not_start_is_wrong_and_not_needed(
    findings: Findings, machine: Path
) -> None:
    server(machine, "exit 1")
    found = findings()
    assert found["llama-server"].state == "wrong"
    assert doctor.able(list(found.values()))


def test_a_server_of_another_version_is_not_taken(
    findings: Findings, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server(machine, "true", version="0.3.35")
    monkeypatch.setenv("PATH", str(machine))
    found = findings()
    assert found["llama-server"].mend == "make server"
    assert {found[what].state for what in ("C++ compiler", "CMake")} == {"missing"}
    assert doctor.able(list(found.values()))


def test_a_named_server_comes_first(
    findings: Findings, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server(machine, "true")
    monkeypatch.setenv("TALIESIN_LLAMA_SERVER", str(machine / "own"))
    assert doctor.find_server() == (machine / "own", "TALIESIN_LLAMA_SERVER")
    assert findings()["llama-server"].state == "wrong"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_available_memory_is_a_number_of_bytes_below_what_the_machine_has() -> None:
    free = doctor.available_memory()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_command_exits_0_or_3_and_names_every_mend(machine: Path) -> None:
    run = CliRunner().invoke
    argv = ["doctor", "--library", str(machine / "library")]
    good = run(cli.app, argv)
    assert good.exit_code == 0, good.output
    assert good.stdout.endswith("the default job can run\n")

    models.entry(models.DEFAULT).path.unlink()
    bad = run(cli.app, argv)
    assert bad.exit_code == EXIT_NO
    assert f"{models.DEFAULT}: taliesin model pull {models.DEFAULT}" in bad.stdout
    document = json.loads(run(cli.app, [*argv, "--json"]).stdout)
    assert document["schema"] == "taliesin.doctor/1"
    assert document["ok"] is False
    assert all(
        finding["mend"]
        for finding in document["findings"]
        if finding["state"] not in ("ok", "unknown")
    )

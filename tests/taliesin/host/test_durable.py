"""Durable files: the old content or the new, never a part, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taliesin.errors import StoreFull, UsageError
from taliesin.host import durable


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_content_takes_the_place_of_the_old_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    path.chmod(0o644)
    durable.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["state"]


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    def stopped() -> None:
        with durable.replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    path = tmp_path / "state"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


@pytest.mark.parametrize("through_link", [False, True])
def test_a_file_does_not_take_the_place_of_a_device(tmp_path: Path, through_link: bool) -> None:
    # As root, `--out /dev/null` would be the end of /dev/null.
    path = device = tmp_path / "device"
    os.mkfifo(device)
    if through_link:
        path = tmp_path / "link"
        path.symlink_to(device)
    before = names(tmp_path)
    with pytest.raises(OSError, match="Not a regular file"):
        durable.write(path, b"new")
    with pytest.raises(StoreFull, match="cannot be written"):
        durable.write_output(path, "new")
    with pytest.raises(StoreFull, match="cannot be written"):
        durable.require_output(path)
    assert device.is_fifo()
    assert names(tmp_path) == before


def test_whether_an_output_can_be_written_is_known_before(tmp_path: Path) -> None:
    path = tmp_path / "result"
    durable.require_output(path)
    path.write_bytes(b"old")
    durable.require_output(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["result"]
    with pytest.raises(UsageError, match="folder is missing"):
        durable.require_output(tmp_path / "absent" / "result")
    with pytest.raises(StoreFull, match="cannot be written"):
        durable.require_output(path / "result")


def test_a_full_disk_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="cannot be written"):
        durable.write_output(path, "new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["page.html"]


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    code = (
        "import os, pathlib, sys\nfrom taliesin.host import durable\n"
        "with durable.replacing(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"untouched")
    path = tmp_path / "state"
    path.symlink_to(target)
    durable.write(path, b"new")
    assert (path.is_symlink(), path.read_bytes(), target.read_bytes()) == (
        False,
        b"new",
        b"untouched",
    )


def test_a_missing_folder_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder is missing"):
        durable.write_output(tmp_path / "no" / "page.html", "text")


@pytest.mark.parametrize("folder", [".", "/", ".."])
def test_a_folder_is_no_output(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreFull):
        durable.write_output(Path(folder), "text")
    assert names(tmp_path) == []


def test_an_output_may_have_the_users_own_mode_and_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    before = os.umask(0o022)
    try:
        durable.write_output(path, "text", mode=0o666)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644

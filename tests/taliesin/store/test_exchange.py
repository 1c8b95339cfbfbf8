"""Bundles out and in: real, forged and damaged ones."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    ToolkitError,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host.canonical import canonical_json
from taliesin.store.blockfile import BlockFile
from taliesin.store.check import check as check_library
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    GOLDEN,
    damage,
    files,
    header,
    names,
    payload,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_bundle_carries_blocks_to_another_library(store: Library, tmp_path: Path) -> None:
    infos = [store.put(name, header(name), payload(i)) for i, name in enumerate(["a", "b/c", "ŵ"])]
    store.put("a again", header("a"), payload(0))
    size = store.export(["a", "b/c", "ŵ", "a again"], tmp_path / "out.tar")
    assert size == (tmp_path / "out.tar").stat().st_size
    other = Library(tmp_path / "other")
    report = other.import_(tmp_path / "out.tar")
    assert [line.id for line in report.added] == [info.id for info in infos] + [infos[0].id]
    assert names(other) == ["a", "a again", "b/c", "ŵ"]
    assert check_library(other).findings == []
    again = other.import_(tmp_path / "out.tar")
    assert (again.added, again.present) == ([], ["a", "b/c", "ŵ", "a again"])


@pytest.mark.parametrize(("file", "hashed"), [("bundle_v1.tar", False), ("bundle_v1_1.tar", True)])
def test_golden_bundle_of_each_version_is_read(store: Library, file: str, hashed: bool) -> None:
    report = store.import_(GOLDEN / file)
    [info] = report.added
    assert report.names_hashed is hashed
    assert info.id == (GOLDEN / "block_v1.sha256").read_text()[:64]
    assert names(store) == ["golden"]
    with store.open("golden") as block:
        assert block.header.extra == {"written_by": "a later program"}


def test_exported_golden_block_gives_the_golden_bundle(store: Library, tmp_path: Path) -> None:
    store.import_(GOLDEN / "bundle_v1.tar")
    store.export(["golden"], tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_bytes() == (GOLDEN / "bundle_v1_1.tar").read_bytes()


def test_any_tar_program_can_open_a_bundle(store: Library, tmp_path: Path) -> None:
    info = store.put("a", header(), payload())
    store.export(["a"], tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames() == ["manifest.json", f"blocks/{info.id}.kvb"]
        content = tar.extractfile(f"blocks/{info.id}.kvb")
        assert content is not None
        assert hashlib.sha256(content.read()).hexdigest() == info.id


def test_damaged_block_is_not_exported(store: Library, tmp_path: Path) -> None:
    info = store.put("a", header(), payload())
    damage(store.block_path(info.id))
    with pytest.raises(StoreDamaged):
        store.export(["a"], tmp_path / "out.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


def test_existing_file_is_not_overwritten_by_an_export(store: Library, tmp_path: Path) -> None:
    store.put("a", header(), payload())
    (tmp_path / "out.tar").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        store.export(["a"], tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_bytes() == b"mine"


def test_import_refuses_a_taken_name_and_loses_nothing(store: Library, tmp_path: Path) -> None:
    store.put("golden", header(), payload())
    before = files(store)
    with pytest.raises(UsageError, match="belongs to another block"):
        store.import_(GOLDEN / "bundle_v1.tar")
    assert files(store) == before
    store.import_(GOLDEN / "bundle_v1.tar", replace=True)
    assert len(store.list()) == 1


def test_import_that_the_caller_does_not_accept_lets_nothing_in(store: Library) -> None:
    seen = []

    def refuse(name: str, block: BlockFile) -> None:
        seen.append((name, block.header.title))
        raise UsageError("not this one")

    before = files(store)
    with pytest.raises(UsageError, match="not this one"):
        store.import_(GOLDEN / "bundle_v1.tar", accept=refuse)
    assert seen == [("golden", "Gwern ap Llwyd — a golden block")]
    assert files(store) == before


BLOCK = (GOLDEN / "block_v1.kvb").read_bytes()
BLOCK_ID = hashlib.sha256(BLOCK).hexdigest()


def forge_bundle(
    path: Path,
    members: list[tuple[Any, bytes]] | None = None,
    entries: Any = None,
    tar_format: int = tarfile.GNU_FORMAT,
    **manifest: Any,
) -> Path:
    """A bundle of the golden block, with what is given in place of the right things. A member: name
    or TarInfo, content.
    """
    entry = {"name": "golden", "id": BLOCK_ID, "bytes": len(BLOCK), "root": BLOCK[-32:].hex()}
    fields = {
        "format": "taliesin-bundle",
        "version": 1,
        "blocks": [entry] if entries is None else entries,
    } | manifest
    raw = canonical_json(fields)
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, content in (
            members
            if members is not None
            else [("manifest.json", raw), (f"blocks/{BLOCK_ID}.kvb", BLOCK)]
        ):
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content if content != b"MANIFEST" else raw))
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "golden",
        "id": BLOCK_ID,
        "bytes": len(BLOCK),
        "root": BLOCK[-32:].hex(),
    } | changes


def manifest_of(*entries: dict[str, Any]) -> bytes:
    return canonical_json({"format": "taliesin-bundle", "version": 1, "blocks": list(entries)})


def link(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


MEMBER = f"blocks/{BLOCK_ID}.kvb"


@pytest.mark.parametrize(
    ("forgery", "error", "message"),
    [
        ({"members": []}, FormatError, "manifest.json first|not a bundle"),
        ({"members": [(MEMBER, BLOCK)]}, FormatError, "not a bundle"),
        ({"members": [("manifest.json", b"{}")]}, FormatError, "not a bundle"),
        ({"members": [("manifest.json", b"not json")]}, FormatError, "manifest"),
        ({"members": [(link("manifest.json", tarfile.SYMTYPE), b"")]}, FormatError, "not a bundle"),
        ({"version": 2}, UnsupportedVersion, "version 2"),
        ({"minor": 2}, UnsupportedVersion, "version 1.2"),
        ({"minor": 1}, FormatError, "another minor version"),
        ({"minor": 0, "sha256": "0" * 64}, FormatError, "another minor version"),
        ({"sha256": "0" * 64}, FormatError, "another minor version"),
        ({"minor": 1, "sha256": "0" * 64}, StoreDamaged, "manifest is damaged"),
        ({"minor": 1, "sha256": "0"}, FormatError, "field sha256 of"),
        ({"minor": True, "sha256": "0" * 64}, FormatError, "field minor of"),
        ({"version": True}, FormatError, "field version of"),
        ({"version": 1.0}, FormatError, "field version of"),
        ({"version": 0}, FormatError, "field (version|blocks) of"),
        ({"entries": {}}, FormatError, "field (version|blocks) of"),
        ({"entries": [7]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(id="../../x")]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(id=BLOCK_ID.upper())]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(bytes="9")]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(bytes=True)]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(more=1)]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(name="a\nb")]}, UsageError, "name"),
        ({"entries": [entry(name="e\u0301")]}, FormatError, "NFC"),
        ({"entries": [entry(), entry()]}, FormatError, "twice"),
        ({"entries": [entry(), entry(name="b", bytes=5)]}, FormatError, "two ways"),
        ({"entries": [entry(root="0" * 64)]}, FormatError, "root"),
        ({"entries": [entry(bytes=len(BLOCK) + 1)]}, FormatError, "size"),
        ({"entries": [entry(id="0" * 64)]}, FormatError, "does not list"),
        ({"members": [("manifest.json", manifest_of(entry()))]}, FormatError, "ends before"),
        (
            {"members": [("manifest.json", manifest_of(entry())), ("../evil", BLOCK)]},
            FormatError,
            "does not list",
        ),
        (
            {"members": [("manifest.json", manifest_of(entry())), ("/abs", BLOCK)]},
            FormatError,
            "does not list",
        ),
        (
            {
                "members": [
                    ("manifest.json", manifest_of(entry())),
                    (link(MEMBER, tarfile.SYMTYPE), b""),
                ]
            },
            FormatError,
            "list",
        ),
        (
            {
                "members": [
                    ("manifest.json", manifest_of(entry())),
                    (link(MEMBER, tarfile.LNKTYPE), b""),
                ]
            },
            FormatError,
            "list",
        ),
        (
            {
                "members": [
                    ("manifest.json", manifest_of(entry())),
                    (link(MEMBER, tarfile.FIFOTYPE), b""),
                ]
            },
            FormatError,
            "list",
        ),
        (
            {"members": [("manifest.json", manifest_of(entry())), (MEMBER, BLOCK), ("more", b"x")]},
            FormatError,
            "goes on",
        ),
        (
            {"members": [("manifest.json", manifest_of(entry())), (MEMBER, BLOCK[:-1] + b"!")]},
            StoreDamaged,
            "is damaged",
        ),
        (
            {
                "members": [
                    (
                        "manifest.json",
                        manifest_of(entry(id=hashlib.sha256(b"x" * 500).hexdigest(), bytes=500)),
                    ),
                    (f"blocks/{hashlib.sha256(b'x' * 500).hexdigest()}.kvb", b"x" * 500),
                ]
            },
            FormatError,
            "not a block file",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else getattr(value, "__name__", str(value)),
)
def test_bundle_that_breaks_a_rule_lets_nothing_in(
    store: Library, tmp_path: Path, forgery: dict[str, Any], error: type[ToolkitError], message: str
) -> None:
    path = forge_bundle(tmp_path / "forged.tar", **forgery)
    before = files(store)
    with pytest.raises(error) as caught:
        store.import_(path)
    assert re.search(message, str(caught.value))
    assert files(store) == before


def test_block_with_a_wrong_chunk_table_is_not_imported(store: Library, tmp_path: Path) -> None:
    # Only a faulty or hostile writer makes this: the file's hash is right, and a chunk's digest in
    # the header is not.
    at = len(BLOCK) - 4 * 32 - 1  # the last byte of the payload
    bad = BLOCK[:at] + b"!" + BLOCK[at + 1 :]
    bad_id = hashlib.sha256(bad).hexdigest()
    members = [("manifest.json", manifest_of(entry(id=bad_id))), (f"blocks/{bad_id}.kvb", bad)]
    with pytest.raises(StoreDamaged, match="chunk 2"):
        store.import_(forge_bundle(tmp_path / "forged.tar", members))
    assert store.list() == []


@given(cut=st.integers(0, 20479))
@settings(max_examples=40, deadline=None)
def test_bundle_cut_anywhere_lets_nothing_in(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    base = tmp_path_factory.getbasetemp()
    raw = (GOLDEN / "bundle_v1.tar").read_bytes()
    path = base / "cut.tar"
    path.write_bytes(raw[:cut])
    with Library(base / "cut-library") as store:
        if any(raw[cut:]):
            with pytest.raises((FormatError, StoreDamaged)):
                store.import_(path)
            assert store.list() == []


@given(
    file=st.sampled_from(["bundle_v1.tar", "bundle_v1_1.tar"]),
    offset=st.integers(0, 16_800),
    bit=st.integers(0, 7),
)
@settings(max_examples=150, deadline=None)
def test_flipped_bit_in_a_bundle_never_gets_in(
    tmp_path_factory: pytest.TempPathFactory, file: str, offset: int, bit: int
) -> None:
    base = tmp_path_factory.getbasetemp()
    raw = bytearray((GOLDEN / file).read_bytes())
    raw[offset] ^= 1 << bit
    path = base / "flipped.tar"
    path.write_bytes(bytes(raw))
    with Library(base / "flipped-library") as store:
        try:
            store.import_(path)
        except ToolkitError:
            assert store.list() == []
            return
        # Padding of the tar, or the name in the manifest: what came in is still the block, whole.
        [line] = store.list()
        assert line.id == BLOCK_ID
        if file != "bundle_v1.tar":
            assert line.name == "golden"
        assert check_library(store).findings == []
        store.gc(0)


@pytest.mark.parametrize(("file", "seen"), [("bundle_v1.tar", False), ("bundle_v1_1.tar", True)])
def test_a_changed_name_is_seen_from_version_1_1_on(
    store: Library, tmp_path: Path, file: str, seen: bool
) -> None:
    path = tmp_path / file
    path.write_bytes((GOLDEN / file).read_bytes().replace(b'"golden"', b'"goldem"'))
    if seen:
        with pytest.raises(StoreDamaged, match="manifest is damaged"):
            store.import_(path)
        assert store.list() == []
    else:
        assert not store.import_(path).names_hashed
        assert names(store) == ["goldem"]


def test_pax_and_gzip_bundles_are_refused(store: Library, tmp_path: Path) -> None:
    long_name = tarfile.TarInfo("x" * 200)
    forge_bundle(tmp_path / "pax.tar", [(long_name, b"x")], tar_format=tarfile.PAX_FORMAT)
    with tarfile.open(tmp_path / "gz.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("manifest.json"), io.BytesIO())
    for name in ("pax.tar", "gz.tar"):
        with pytest.raises(FormatError):
            store.import_(tmp_path / name)

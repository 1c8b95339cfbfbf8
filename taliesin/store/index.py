"""A cache of what the files of a library say, so that a listing reads no file that did not change.

Promises that losing it, damaging it or replacing it by one of another version costs time and
nothing else. Deliberately
does not know which files exist: `library` scans the folder (docs/format.md, "Library").
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from taliesin.errors import StoreDamaged
from taliesin.store.refs import Ref

T = TypeVar("T")

# Another number means other tables: the file is thrown away and built again.
SCHEMA = 3
_TABLES = """
CREATE TABLE folders (folder TEXT PRIMARY KEY, stamp TEXT) WITHOUT ROWID;
CREATE TABLE blocks (id TEXT PRIMARY KEY, stamp TEXT, size INTEGER, root TEXT, title TEXT, \
created TEXT, equals TEXT,
  n_tokens INTEGER, n_tail INTEGER, payload_bytes INTEGER, part_index INTEGER, part_count INTEGER, \
recipe_id TEXT,
  problem TEXT) WITHOUT ROWID;
CREATE TABLE refs (file BLOB PRIMARY KEY, stamp TEXT, name TEXT, block_id TEXT, root TEXT, \
pinned INTEGER, created TEXT)
  WITHOUT ROWID;
CREATE INDEX refs_by_block ON refs (block_id);
CREATE TABLE used (id TEXT PRIMARY KEY, at REAL) WITHOUT ROWID;
CREATE TABLE verified (id TEXT PRIMARY KEY, stamp TEXT, at REAL) WITHOUT ROWID;
CREATE TABLE certified (id TEXT PRIMARY KEY, at REAL) WITHOUT ROWID;
"""


class BlockRow(NamedTuple):
    """What a listing says of one block file; with a `problem` the header could not be read: its
    fields are empty.
    """

    id: str
    stamp: str
    size: int
    root: str
    title: str
    created: str
    equals: str
    n_tokens: int
    n_tail: int
    payload_bytes: int
    part_index: int
    part_count: int
    recipe_id: str
    problem: str | None


class _RefRow(NamedTuple):
    """A ref as SQLite keeps it: `pinned` is 0 or 1."""

    file: bytes
    stamp: str
    name: str
    block_id: str
    root: str
    pinned: int
    created: str

    def ref(self) -> Ref:
        return Ref(*self[:5], bool(self.pinned), self.created)


class Changes(NamedTuple):
    """What differs between the index and the files. A folder's stamp says up to when its rows are
    known to be right.
    """

    folders: dict[str, str]
    gone_folders: list[str]
    blocks: list[BlockRow]
    gone_blocks: list[str]
    refs: list[Ref]
    gone_refs: list[bytes]


class Index:
    """The cache in one SQLite file. Where that cannot be opened or written, every method works in
    memory only.
    """

    def __init__(self, path: Path) -> None:
        """Opens nothing yet. `path` is the SQLite file."""
        self.path = path
        # Counts how often the content was lost: who read before and after a change of it has not
        # read one state.
        self.generation = 0
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def blocks(self) -> dict[str, BlockRow]:
        """Block id -> row."""
        rows = self._typed("SELECT * FROM blocks", BlockRow)
        return {row.id: row for row in rows}

    def refs(self) -> list[Ref]:
        """Sorted by name."""
        query = "SELECT file, stamp, name, block_id, root, pinned, created FROM refs ORDER BY name"
        return [row.ref() for row in self._typed(query, _RefRow)]

    def used(self) -> dict[str, float]:
        """Block id -> Unix time of its last use, for the blocks that were used."""
        return dict(self._typed("SELECT id, at FROM used", tuple[str, float]))

    def folder_stamps(self) -> dict[str, str]:
        return dict(self._typed("SELECT folder, stamp FROM folders", tuple[str, str]))

    def block_stamps(self, folder: str) -> dict[str, str]:
        """Block id -> stamp, for the blocks in that folder of `blocks/`."""
        query = "SELECT id, stamp FROM blocks WHERE id GLOB ?"
        return dict(self._typed(query, tuple[str, str], f"{folder}*"))

    def ref_stamps(self) -> dict[bytes, str]:
        return dict(self._typed("SELECT file, stamp FROM refs", tuple[bytes, str]))

    def apply(self, changes: Changes) -> None:
        """All of it in one transaction."""
        marks = ",".join("?" * len(BlockRow._fields))
        ids = [(block_id,) for block_id in changes.gone_blocks]
        with self._transaction() as db:
            db.executemany(f"INSERT OR REPLACE INTO blocks VALUES ({marks})", changes.blocks)
            db.executemany("INSERT OR REPLACE INTO refs VALUES (?,?,?,?,?,?,?)", changes.refs)
            for table in ("blocks", "used", "verified", "certified"):
                db.executemany(f"DELETE FROM {table} WHERE id = ?", ids)
            db.executemany(
                "DELETE FROM refs WHERE file = ?", [(file,) for file in changes.gone_refs]
            )
            db.executemany("INSERT OR REPLACE INTO folders VALUES (?,?)", changes.folders.items())
            db.executemany(
                "DELETE FROM folders WHERE folder = ?",
                [(folder,) for folder in changes.gone_folders],
            )

    def mark_used(self, block_id: str, at: float) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO used VALUES (?,?)", (block_id, at))

    def verified(self) -> Mapping[str, tuple[str, float]]:
        """Block id -> (stamp of the file that was verified, Unix time of that)."""
        rows = self._typed("SELECT id, stamp, at FROM verified", tuple[str, str, float])
        return {block_id: (stamp, at) for block_id, stamp, at in rows}

    def verified_stamp(self, block_id: str) -> str | None:
        query = "SELECT stamp FROM verified WHERE id = ?"
        return next((row[0] for row in self._typed(query, tuple[str], block_id)), None)

    def set_verified(self, block_id: str, stamp: str, at: float) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO verified VALUES (?,?,?)", (block_id, stamp, at))

    def certified(self) -> Mapping[str, float]:
        """Block id -> Unix time at which its certificate was last re-run by this machine's engine
        and held.
        """
        return dict(self._typed("SELECT id, at FROM certified", tuple[str, float]))

    def set_certified(self, block_id: str, at: float) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO certified VALUES (?,?)", (block_id, at))

    def last_used(self, block_id: str) -> float | None:
        """Unix time of the block's last use."""
        query = "SELECT at FROM used WHERE id = ?"
        return next((row[0] for row in self._typed(query, tuple[float], block_id)), None)

    def _typed(self, query: str, kind: type[T], *values: str) -> list[T]:
        """The rows as `kind`; none of an index that holds something else, which is begun anew."""
        try:
            return msgspec.convert(self._rows(query, *values), list[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError:
            return msgspec.convert(self._start_over().execute(query, values).fetchall(), list[kind])  # type: ignore[valid-type]

    def _rows(self, query: str, *values: str) -> list[Any]:
        try:
            return self._db().execute(query, values).fetchall()
        except sqlite3.OperationalError:  # locked for longer than the timeout
            return self._use_memory().execute(query, values).fetchall()
        except sqlite3.DatabaseError:
            return self._start_over().execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction; where the file cannot take it, the index goes on in memory, empty."""
        try:
            db = self._db()
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            db = self._use_memory()
            db.execute("BEGIN")
        except sqlite3.DatabaseError:
            db = self._start_over()
            db.execute("BEGIN")
        try:
            yield db
            db.execute("COMMIT")
        except sqlite3.Error:  # a full disk or a damaged page
            self._remove_files()
            self._use_memory()

    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                status = self.path.lstat()
            except FileNotFoundError:
                pass
            else:
                if not stat.S_ISREG(status.st_mode):
                    raise StoreDamaged(
                        "the library's index is not a regular file",
                        where=self.path,
                        hint="remove it",
                    )
            try:
                self._connection = self._open()
            except sqlite3.OperationalError:
                return self._use_memory()
            except sqlite3.DatabaseError:
                return self._start_over()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        try:
            # SQLite gives its other files the mode of this one.
            os.close(
                os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            )
        except FileExistsError:
            pass
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        db = sqlite3.connect(self.path, timeout=2.0, isolation_level=None)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version != SCHEMA:
                n_tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if n_tables:
                    raise sqlite3.DatabaseError(f"schema {version}")
                # WAL: a commit costs no fsync, and readers do not wait for a writer.
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(
                    f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;"
                )
            db.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _use_memory(self) -> sqlite3.Connection:
        self.generation += 1
        self.close()
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.executescript(_TABLES)
        return self._connection

    def _start_over(self) -> sqlite3.Connection:
        """An empty index in place of a damaged one, or one of another schema; the second time in
        memory.
        """
        if self.generation:
            return self._use_memory()
        self.generation += 1
        self.close()
        self._remove_files()
        try:
            self._connection = self._open()
        except sqlite3.Error:
            return self._use_memory()
        return self._connection

    def _remove_files(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            try:
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            except OSError:
                return

"""A cache of what the files of a library say, so that a listing reads no file that did not change.

Promises that losing it, damaging it or replacing it by one of another version costs time and nothing else. Deliberately
does not know which files exist: `library` scans the folder (docs/format.md, "Library").
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from taliesin.errors import StoreDamaged

# Another number means other tables: the file is thrown away and built again.
SCHEMA = 1
_TABLES = """
CREATE TABLE blocks (id TEXT PRIMARY KEY, stamp TEXT, size INTEGER, root TEXT, title TEXT, created TEXT, equals TEXT,
  n_tokens INTEGER, n_tail INTEGER, payload_bytes INTEGER, part_index INTEGER, part_count INTEGER, recipe_id TEXT,
  problem TEXT) WITHOUT ROWID;
CREATE TABLE refs (file BLOB PRIMARY KEY, stamp TEXT, name TEXT, block_id TEXT, root TEXT, pinned INTEGER, created TEXT)
  WITHOUT ROWID;
CREATE TABLE used (id TEXT PRIMARY KEY, at REAL) WITHOUT ROWID;
CREATE TABLE verified (id TEXT PRIMARY KEY, stamp TEXT, at REAL) WITHOUT ROWID;
"""


class BlockRow(NamedTuple):
    """What a listing says of one block file; with a `problem` the header could not be read: its fields are empty."""

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


class RefRow(NamedTuple):
    """One ref file: its file name and stamp, and what it says."""

    file: bytes
    stamp: str
    name: str
    block_id: str
    root: str
    pinned: bool
    created: str


class Index:
    """The cache in one SQLite file. Where that cannot be opened or written, every method works in memory only."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet. `path` is the SQLite file."""
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def blocks(self) -> dict[str, BlockRow]:
        return {row[0]: BlockRow._make(row) for row in self._rows("SELECT * FROM blocks")}

    def refs(self) -> dict[bytes, RefRow]:
        return {row[0]: RefRow._make((*row[:5], bool(row[5]), row[6])) for row in self._rows("SELECT * FROM refs")}

    def update(
        self, blocks: Iterable[BlockRow], gone_blocks: Iterable[str], refs: Iterable[RefRow], gone_refs: Iterable[bytes]
    ) -> None:
        """Put these rows in and take those out, in one transaction."""
        marks = ",".join("?" * len(BlockRow._fields))
        ids = [(block_id,) for block_id in gone_blocks]
        with self._transaction() as db:
            db.executemany(f"INSERT OR REPLACE INTO blocks VALUES ({marks})", blocks)
            db.executemany("INSERT OR REPLACE INTO refs VALUES (?,?,?,?,?,?,?)", refs)
            for table in ("blocks", "used", "verified"):
                db.executemany(f"DELETE FROM {table} WHERE id = ?", ids)
            db.executemany("DELETE FROM refs WHERE file = ?", [(file,) for file in gone_refs])

    def last_used(self) -> Mapping[str, float]:
        """Block id -> Unix time of its last use, for the blocks that were used."""
        return dict(self._rows("SELECT id, at FROM used"))

    def mark_used(self, block_id: str, at: float) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO used VALUES (?,?)", (block_id, at))

    def verified(self) -> Mapping[str, tuple[str, float]]:
        """Block id -> (stamp of the file that was verified, Unix time of that)."""
        return {block_id: (stamp, at) for block_id, stamp, at in self._rows("SELECT id, stamp, at FROM verified")}

    def verified_stamp(self, block_id: str) -> str | None:
        return next((row[0] for row in self._rows("SELECT stamp FROM verified WHERE id = ?", block_id)), None)

    def set_verified(self, block_id: str, stamp: str, at: float) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO verified VALUES (?,?,?)", (block_id, stamp, at))

    def _rows(self, query: str, *values: str) -> list[Any]:
        try:
            return self._db().execute(query, values).fetchall()
        except sqlite3.OperationalError:  # locked for longer than the timeout
            return []
        except sqlite3.DatabaseError:
            return self._start_over().execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is dropped, not failed, when the cache cannot be written now."""
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
        except sqlite3.Error:
            # Disk full or a damaged page: the files are the truth, the next listing reads them again.
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._remove_files()
            self.close()

    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                status = self.path.lstat()
            except FileNotFoundError:
                pass
            else:
                if not stat.S_ISREG(status.st_mode):
                    raise StoreDamaged("the library's index is not a regular file", where=self.path, hint="remove it")
            try:
                self._connection = self._open()
            except sqlite3.OperationalError:
                return self._use_memory()
            except sqlite3.DatabaseError:
                return self._start_over()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=2.0, isolation_level=None)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version != SCHEMA:
                n_tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if n_tables:
                    raise sqlite3.DatabaseError(f"schema {version}")
                # WAL: a commit costs no fsync, and readers do not wait for a writer.
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
                self.path.chmod(0o600)
            db.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _use_memory(self) -> sqlite3.Connection:
        self.close()
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.executescript(_TABLES)
        return self._connection

    def _start_over(self) -> sqlite3.Connection:
        """An empty index in place of a damaged one, or one of another schema."""
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

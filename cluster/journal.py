"""What must outlive the scheduler actor: the epoch and virtual time, in SQLite (WAL mode) in `state_dir`.

Laws: an epoch is handed out once, ever; the V that is loaded is never above the V that was reached, and at most
one save behind it. Without a directory nothing is kept, and epochs come from the wall clock, which tells two
schedulers of one cluster apart unless it is set back between them; `move_above` is the remedy for that.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from cluster.clock import monotonic_s, pause, wall_s

BUSY_S = 10.0
_RETRY_S = 0.02
_SCHEMA = "CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER, virtual_time REAL)"


class Journal:
    """One scheduler's journal; opening it takes the next epoch."""

    def __init__(self, state_dir: Path | None) -> None:
        self._database: sqlite3.Connection | None = None
        self.epoch = int(wall_s() * 1000)
        self.virtual_time = 0.0
        if state_dir is not None:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._open(state_dir / "journal.sqlite3")

    def _open(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        _use_write_ahead_log(self._database)
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute(_SCHEMA)
        self._database.execute("BEGIN IMMEDIATE")
        row = self._database.execute("SELECT epoch, virtual_time FROM clock").fetchone()
        last_epoch, self.virtual_time = row or (0, 0.0)
        self.epoch = max(last_epoch + 1, self.epoch)
        self._database.execute("REPLACE INTO clock VALUES (1, ?, ?)", (self.epoch, self.virtual_time))
        self._database.execute("COMMIT")

    def move_above(self, epoch: int) -> bool:
        """Take the epoch above one that was met, where no later opening has the journal; returns whether it did."""
        if self._database is not None:
            moved = self._database.execute("UPDATE clock SET epoch = ? WHERE epoch = ?", (epoch + 1, self.epoch))
            if moved.rowcount == 0:
                return False
        self.epoch = epoch + 1
        return True

    def save(self, virtual_time: float) -> None:
        """Note how far V has come, unless a later epoch has taken over the journal."""
        self.virtual_time = virtual_time
        if self._database is not None:
            self._database.execute(
                "UPDATE clock SET virtual_time = ? WHERE epoch = ? AND virtual_time < ?",
                (virtual_time, self.epoch, virtual_time),
            )

    def close(self) -> None:
        """Release the file; idempotent."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    """Switch the file to WAL. SQLite does not wait for others here as it does elsewhere, so this does."""
    deadline_s = monotonic_s() + BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if monotonic_s() > deadline_s:
                raise
            pause(_RETRY_S)
        else:
            return

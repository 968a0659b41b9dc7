"""The history file, opened so that nothing is written, also by another account."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpulab.config import Settings
from gpulab.hardware import hosting
from gpulab.telemetry.storing import schema

__all__ = ["history_path", "opened", "store_path", "suspect_path", "trouble"]

_LOG = logging.getLogger(__name__)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def store_path(settings: Settings) -> str:
    """Where this account's history of this machine lies."""
    return os.path.join(settings.machine_dir, "history.sqlite")


def history_path(settings: Settings) -> str:
    """The file that is read: of the host's sampler while its record is trusted, else the account's own."""
    return hosting.history_path(settings) or store_path(settings)


def suspect_path(path: str) -> str:
    """A note for the writer, which may never touch the damaged part itself, that a reader met damage."""
    return f"{path}.suspect"


@contextmanager
def opened(settings: Settings) -> Iterator[sqlite3.Connection | None]:
    """A connection for reading, None where there is no history. An error of SQLite ends the block."""
    path = history_path(settings)
    try:
        connection = _open(path)
    except (sqlite3.Error, OSError, schema.HistoryError) as error:
        _LOG.info("No history from %s: %s", path, error)
        connection = None
    try:
        yield connection
    except sqlite3.Error as error:
        _LOG.info("No history from %s: %s", path, error)
        _note_damage(path, error)
    finally:
        if connection is not None:
            connection.close()


def trouble(settings: Settings) -> str | None:
    """Why the history cannot be read, in one sentence; None if it can, or if there is none."""
    path = history_path(settings)
    try:
        connection = _open(path)
        if connection is not None:
            try:
                connection.execute("SELECT key FROM raw ORDER BY key DESC LIMIT 1").fetchone()
            finally:
                connection.close()
    except schema.HistoryError as error:
        return f"The history {path} cannot be read: {error}"
    except (sqlite3.Error, OSError) as error:
        return f"The history {path} cannot be read ({error}); {_remedy(path, error)}"
    if os.path.exists(suspect_path(path)):
        return f"The history {path} is damaged; its sampler will soon start it anew and keep the old file."
    return None


def _remedy(path: str, error: sqlite3.Error | OSError) -> str:
    if _is_damage(error):
        return "its sampler will start it anew and keep the old file beside it."
    if os.path.exists(path) and not os.access(path, os.R_OK):
        return "ask its owner for permission to read it."
    return "see that its directory can be read, and try again."


def _open(path: str) -> sqlite3.Connection | None:
    """Raises sqlite3.Error, HistoryError; None if there is no file."""
    try:
        size = os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    if size == 0:  # a writer is about to make it
        return None
    try:
        return _checked(_connect(path, "mode=ro"))
    except sqlite3.OperationalError:
        # After a clean end there is no shared memory, and where we may not write none can be made
        if _has_log(path):
            raise
        return _checked(_connect(path, "mode=ro&immutable=1"))


def _has_log(path: str) -> bool:
    with suppress(OSError):
        return os.stat(f"{path}-wal").st_size > 0
    return False


def _connect(path: str, mode: str) -> sqlite3.Connection:
    from urllib.parse import quote

    return sqlite3.connect(f"file:{quote(os.path.abspath(path))}?{mode}", uri=True, timeout=0.5)


def _checked(connection: sqlite3.Connection) -> sqlite3.Connection | None:
    try:
        version = schema.version_of(connection)
        if version == 1:
            schema.pretend(connection)
    except BaseException:
        connection.close()
        raise
    if version == 0:
        connection.close()
        return None
    return connection


def _is_damage(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _note_damage(path: str, error: sqlite3.Error) -> None:
    if _is_damage(error):
        with suppress(OSError):
            os.close(
                os.open(suspect_path(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            )

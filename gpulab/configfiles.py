"""Configuration files: read whole, and the administrator's only if nobody but root could have written it."""

import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

from gpulab.errors import ConfigError

__all__ = ["ROOT", "parse", "read", "read_trusted"]

ROOT = 0
"""Whose file binds all accounts."""

_MAX_LINKS = 40


def read(path: str) -> bytes:
    """A file of the account's own choice. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from error


def read_trusted(path: str) -> bytes | None:
    """A file of root's, which no other account could have written; None if there is none.

    Looked at are the opened file itself, and every directory and link on the way to it: who may write
    there could put another file in its place. In a directory with the sticky bit nobody can do that to
    what belongs to root. Raises ConfigError, with the remedy.
    """
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not os.path.islink(path):
            return None
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} cannot be read (it is no plain file); put a file in its place.")
        if sys.platform != "win32":
            _check_way(path)
            _check(path, path, status)
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def parse(content: bytes, path: str, keys: tuple[str, ...], *, others: str = "") -> dict[str, Any]:
    """Read TOML that may have just these keys. Raises ConfigError; `others` says who may write more."""
    import tomllib  # only where there is a file: most machines have none

    try:
        found = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be understood ({error}); correct that file.") from error
    unknown = sorted(set(found).difference(keys))
    if unknown:
        raise ConfigError(f"{path} has a key {unknown[0]!r}; there are {', '.join(keys)}{others}.")
    return found


def _unreadable(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be read ({error.strerror}); make it readable.")


def _check_way(path: str) -> None:
    try:
        for place in _way(path):
            _check(path, place, os.lstat(place))
    except OSError as error:
        raise _unreadable(path, error) from error


def _check(path: str, place: str, status: os.stat_result) -> None:
    """Raise ConfigError if another account than root may write there."""
    if status.st_uid not in (0, ROOT):
        reason, remedy = f"belongs to user {status.st_uid}", f"sudo chown root:root {place}"
    elif _others_may_write(status):
        reason, remedy = "can be written by others than root", f"sudo chmod go-w {place}"
    else:
        return
    what = "it" if place == path else place
    raise ConfigError(
        f"{path} is refused, because {what} {reason}; look through the file and run `{remedy}`."
    )


def _others_may_write(status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        return False  # its mode means nothing; its owner and the directory that it lies in do
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return bool(status.st_mode & 0o022) and not sticky


def _way(path: str) -> Iterator[str]:
    """Every directory and link that is passed on the way to `path`, in the kernel's order."""
    pending, here, links = path.split("/")[::-1], "/", 0
    yield here
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        before, here = here, os.path.dirname(here) if part == ".." else os.path.join(here, part)
        yield here
        if part != ".." and os.path.islink(here):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(0, "too many links")
            target = os.readlink(here)
            pending += target.split("/")[::-1]
            here = "/" if target.startswith("/") else before

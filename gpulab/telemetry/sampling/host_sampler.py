"""The sampler of `gpulab serve`: one for all accounts of this host, as far as the lease directory reaches."""

from __future__ import annotations

import contextlib
import logging
import os
import time

from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.config import Settings
from gpulab.errors import GpulabError, LeaseDirectoryError
from gpulab.hardware import hosting
from gpulab.hardware.devices import Snapshot
from gpulab.telemetry.sampling.election import holder, is_in_office, note_pid, take_lock
from gpulab.telemetry.sampling.lease_reading import LeaseReading
from gpulab.telemetry.sampling.loop import Place, Sampling

__all__ = ["AlreadyServingError", "HostSampler"]

_LOG = logging.getLogger(__name__)
_TRIES, _PAUSE_SECONDS = 5, 0.05
"""Who only looks at the lock holds it for a moment too."""


class AlreadyServingError(GpulabError):
    """Another process serves this host already."""

    exit_code = 1


class HostSampler(Sampling):
    """Samples for the whole host between `with` and its end; `run` goes on until `stop.set()`.

    `scope` is "host", or "account" where the lease directory is this account's alone; `newest()` is the
    snapshot that was published last.
    """

    def __init__(self, settings: Settings) -> None:
        """Nothing is made yet. Raises LeaseDirectoryError."""
        directory = find(settings)
        self.scope = directory.scope
        settings = settings._replace(lease_dir=directory.path)
        self._lock = -1
        super().__init__(settings, _place(settings, directory))
        self.leases = LeaseReading(settings, public=self.scope == "host")

    def __enter__(self) -> HostSampler:
        """Be the one that serves. Raises LeaseDirectoryError, AlreadyServingError."""
        try:
            self._make_directories()
            self._lock = self._elect()
            note_pid(self._lock)
        except OSError as error:
            raise LeaseDirectoryError(
                f"{error.filename or hosting.machine_path(self.settings)} cannot be written "
                f"({error.strerror}); run `sudo gpulab setup`, and serve from the account that it names."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def run(self) -> None:
        """Sample until stopped. Raises LeaseDirectoryError if others can no longer find it."""
        super().run()
        if not self.stop.is_set():
            raise LeaseDirectoryError(
                f"{hosting.lock_path(self.settings)} is gone, so nobody finds this service; start it again."
            )

    def _publish(self, snapshot: Snapshot) -> None:
        is_first = self.newest() is None
        super()._publish(snapshot)
        if is_first and not snapshot.driver.ok:
            _LOG.warning(
                "No GPU is sampled now: %s The service goes on, and asks again each second.",
                snapshot.driver.message,
            )

    def _goes_on(self, *, watched: bool) -> bool:  # noqa: ARG002 - a host's goes on without readers
        return is_in_office(self._lock, hosting.lock_path(self.settings))

    def _elect(self) -> int:
        path = hosting.lock_path(self.settings)
        for _ in range(_TRIES):
            lock = take_lock(path)
            if lock is not None:
                return lock
            time.sleep(_PAUSE_SECONDS)
        pid = holder(path)
        who = "another process" if pid is None else f"process {pid}"
        raise AlreadyServingError(
            f"This host is served by {who} already; end that one first, or leave it as it is."
        )

    def _make_directories(self) -> None:
        """Raises OSError, LeaseDirectoryError."""
        host, machine = hosting.host_dir(self.settings), hosting.machine_path(self.settings)
        if self.scope == "account" or os.getuid() == 0:
            _make(host, 0o700 if self.scope == "account" else 0o755)
        if hosting.is_safe(self.settings):
            _make(machine, 0o755)
        if hosting.trusted(self.settings) is None:
            raise LeaseDirectoryError(
                f"{host} is missing, or others could write there, so nobody would believe it; "
                "run `sudo gpulab setup`."
            )
        self._make_room_for_history()

    def _make_room_for_history(self) -> None:
        """Raises LeaseDirectoryError."""
        try:
            self._make_history_directories()
        except OSError as error:
            raise LeaseDirectoryError(
                f"The history's directory {error.filename} cannot be made ({error.strerror}); "
                "set GPULAB_DATA_DIR to a directory that this account may write."
            ) from error

    def _make_history_directories(self) -> None:
        folder = os.path.dirname(self._place.history or "")
        if self.scope == "account":
            os.makedirs(folder, mode=0o700, exist_ok=True)
            return
        os.makedirs(self.settings.data_dir, mode=0o755, exist_ok=True)
        _make(os.path.dirname(folder), 0o755)
        _make(folder, 0o755)
        barred = _barred(folder)
        if barred is not None:
            _LOG.warning(
                "Other accounts may be unable to read the history, because %s bars them; "
                "set GPULAB_DATA_DIR to a directory that all may pass.",
                barred,
            )


def _place(settings: Settings, directory: LeaseDirectory) -> Place:
    history = os.path.join(settings.machine_dir, "history.sqlite")
    if directory.scope == "host":  # where other accounts may pass, beside what is this account's own
        name = os.path.basename(settings.machine_dir)
        history = os.path.join(settings.data_dir, "host", name, "history.sqlite")
    return Place(
        record=hosting.record_path(settings),
        wake=hosting.wake_path(settings),
        wake_mode=0o622,
        watches=hosting.watches_path(settings),
        watches_mode=0o1777,
        history=history,
        host=True,
    )


def _barred(path: str) -> str | None:
    """The directory on the way that others may not pass; a group or a list may still let them."""
    while os.stat(path).st_mode & 0o001:
        if path == os.path.dirname(path):
            return None
        path = os.path.dirname(path)
    return path


def _make(path: str, mode: int) -> None:
    """A directory of this mode, whatever the umask; one that is there stays as it is. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
        os.chmod(path, mode)

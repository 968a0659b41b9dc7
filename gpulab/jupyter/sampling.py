"""A kernel that holds a lease sees to the sampler also while nobody looks, so that the night has no hole."""

from __future__ import annotations

import time

from gpulab import config
from gpulab.allocation import session
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import record
from gpulab.jupyter.attendant import Attendant
from gpulab.jupyter.pulse import Pulse

__all__ = ["EVERY", "Sampling", "attend_sampling"]

EVERY = 2.0
"""A sampler that was killed is noticed within so many seconds."""
_LONGEST_PAUSE = 60.0


class Sampling:
    """The duty: one stat call while the record changes; what does not stay is started ever more seldom."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._pulse = Pulse()
        self._pause = EVERY
        self._again_at = 0.0

    def __call__(self) -> None:
        settings = self._known() if session.current() is not None else None
        if settings is None:
            return
        if self._pulse.changed((record.record_path(settings),)):
            self._pause, self._again_at = EVERY, 0.0
        elif time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            # Where a sampler runs, a kernel never loads it
            from gpulab.telemetry.sampling.starting import ensure

            ensure(settings)  # starts nothing while a service of the host samples

    def _known(self) -> Settings | None:
        """Read once: which machine and which directory a kernel samples does not change while it lives."""
        if self._settings is None:
            try:
                self._settings = config.load()
            except GpulabError:
                return None  # a file of rules that is being edited; the next look will know
        return self._settings


def attend_sampling(attendant: Attendant) -> None:
    """Have this kernel's attendant do so from now on."""
    attendant.attend(Sampling(), every=EVERY)

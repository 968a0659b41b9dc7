"""A kernel's turn: its ticket is looked after until it is a lease, and that is attached before a cell runs.

The attendant's thread asks for the turn; the environment changes on the main thread only, before a
cell or in `%gpu wait`, so that no running cell sees it change. Once CUDA has started in the kernel a
GPU could not be used any more: then it is kept for a restart, for two minutes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from gpulab import config
from gpulab.allocation import session, waiting
from gpulab.allocation.directory import find
from gpulab.allocation.notes import annotate
from gpulab.allocation.session import Lease
from gpulab.allocation.tickets import HeldTicket
from gpulab.config import Settings
from gpulab.errors import ConfigError, GpulabError, LeaseError, NoGpuError
from gpulab.jupyter.attendant import DONE, Attendant
from gpulab.jupyter.share import attend_share
from gpulab.jupyter.sight import Sight
from gpulab.jupyter.wording import ownership, place, which_gpu

__all__ = ["KEEP_SECONDS", "Turn", "begin", "cuda_has_started", "current", "last_words"]

KEEP_SECONDS = 120.0
"""How long a GPU is kept for a restart."""
_EVERY = 0.2
_CUDA_EVERY = 2.0
_SETTINGS_EVERY = 5.0

_turn: Turn | None = None
_last_words: str | None = None


class Turn:
    """This kernel's place in the queue, and what comes of it."""

    def __init__(
        self, ticket: HeldTicket, settings: Settings, attendant: Attendant, *, outlives_restart: bool
    ) -> None:
        self.id = ticket.id
        self.request = ticket.request()
        self.since = time.time()
        """Seconds since the epoch, of this kernel's life."""
        self.outlives_restart = outlives_restart
        """Whether the provisioner shares the ticket; one taken in a cell ends with this process."""
        self.lease: Lease | None = None
        """What the ticket has become; not yet attached."""
        self.ended = False
        self.news = threading.Event()
        """Set when the turn has come, or the wait has ended otherwise."""
        self.quiet = False
        """While `%gpu wait` shows all this."""
        self.ticket = ticket
        self._settings = settings
        self._attendant = attendant
        self._using = threading.Lock()
        self._kept_until: float | None = None
        self._cuda_due = 0.0
        self._settings_due = time.monotonic() + _SETTINGS_EVERY
        self._greeted = False
        self._sight = Sight(settings, self.request.detail)
        _introduce(ticket, settings)
        attendant.attend(self._look, every=_EVERY)
        attendant.before_cell(self._before_cell)

    @property
    def is_kept(self) -> bool:
        """Whether the GPU can only be used after a restart."""
        return self._kept_until is not None and not self.ended

    def standing(self) -> waiting.Standing:
        """Place and number of those who wait. Raises LeaseError."""
        return waiting.standing(self.ticket, self._settings)

    def tell(self) -> tuple[str, ...]:
        """How it stands, for `%gpu`."""
        lease = self.lease
        if lease is not None and self.is_kept:
            return _sentences(self._kept(lease))
        if lease is not None:
            return (f"Your turn has come: {which_gpu(lease)}, from the next cell on.",)
        try:
            return _sentences(place(self.standing(), self.request))
        except GpulabError as error:
            return (str(error),)

    def give_up(self) -> None:
        """Leave the queue, or give back what has not been attached yet."""
        with self._using:
            self._drop("it has left the queue; `%gpu wait` takes a new place.")

    def settle(self) -> str:
        """On the main thread, when the turn has come: attach what can be attached, and say how it stands.

        May be called again if it was interrupted.
        """
        with self._using:
            lease = self.lease
            if lease is None or self.ended:
                return last_words() or "this kernel waits no longer, and has no GPU; `%gpu wait` asks anew."
            if self.is_kept:
                return self._kept(lease)
            if cuda_has_started():
                return self._keep(lease)
            session.attach(lease)
            attend_share(self._attendant, lease)
            self._end()
        return ownership(lease, find(self._settings).scope)

    def _look(self) -> object:
        """The duty, in the attendant's thread."""
        with self._using:
            if not self.ended:
                self._try() if self.lease is None else self._watch(self.lease)
            return DONE if self.ended else None

    def _try(self) -> None:
        try:
            if time.monotonic() >= self._settings_due:  # a GPU may have been drained since
                self._settings_due = time.monotonic() + _SETTINGS_EVERY
                with contextlib.suppress(ConfigError):  # a file that is being edited
                    self._settings = config.load()
            self.lease = waiting.attempt(self.ticket, self.request, self._settings, self._sight)
        except GpulabError as error:
            if not self.ticket.is_held():
                self._lose("this kernel's place in the queue was given up; `%gpu wait` takes a new one.")
            elif isinstance(error, NoGpuError):
                self._lose(f"this kernel waits no longer: {error}")
            return  # anything else, such as a guard that is held for long, may be over the next time
        if self.lease is not None:
            self._come(self.lease)

    def _come(self, lease: Lease) -> None:
        if _holds_another(lease):
            self._drop("it has taken a GPU otherwise.")
        elif cuda_has_started():
            self._say(self._keep(lease))
        else:
            said = f"your turn has come: {which_gpu(lease)}, from the next cell on."
            self._say(said, later=False)  # with the next cell it would be old news
        self.news.set()

    def _watch(self, lease: Lease) -> None:
        """Until it is attached: whether it still lives, and can still be used here."""
        now = time.monotonic()
        if not lease.is_held():
            self._lose("the GPU that was kept for this kernel was given back; `%gpu wait` takes a new place.")
        elif self._kept_until is not None and now >= self._kept_until:
            self._lose(
                f"{which_gpu(lease)} was kept for {KEEP_SECONDS / 60:.0f} minutes without a restart of this "
                "kernel and was given back; after a restart the kernel asks anew."
            )
        elif self._kept_until is None and now >= self._cuda_due:
            self._cuda_due = now + _CUDA_EVERY
            if cuda_has_started():
                self._say(self._keep(lease))

    def _keep(self, lease: Lease) -> str:
        """CUDA has started here, so the GPU can be used by this kernel's next life only."""
        if not self.outlives_restart:
            return self._drop(
                "the turn of this kernel has come too late: CUDA has started in it and would not use "
                "the GPU, so it was given back; restart the kernel to ask anew."
            )
        self._kept_until = time.monotonic() + KEEP_SECONDS
        return self._kept(lease)

    def _kept(self, lease: Lease) -> str:
        return (
            f"restart the kernel: {which_gpu(lease)} is kept for {KEEP_SECONDS / 60:.0f} minutes.\n"
            "Your turn has come, but CUDA has started in this kernel and would not use it."
        )

    def _lose(self, sentence: str) -> None:
        self._say(self._drop(sentence))

    def _drop(self, why: str) -> str:
        global _last_words  # noqa: PLW0603 - as _turn
        _last_words = why
        if self.lease is not None and self.lease.held is not None:
            self.lease.held.give_up()
        else:
            self.ticket.give_up()
        self._end()
        return why

    def _end(self) -> None:
        global _turn  # noqa: PLW0603 - one for each process, and this module is its home
        self.ended = True
        if _turn is self:
            _turn = None
        self.news.set()

    def _say(self, sentence: str, *, later: bool = True) -> None:
        if not self.quiet:
            self._attendant.say(sentence, later=later)

    def _before_cell(self) -> object:
        """Before a cell runs: attach what has come, or say once where this kernel stands."""
        if self.ended:
            return DONE
        if _holds_another(self.lease):
            self.give_up()
        elif self.lease is not None and not self.is_kept:
            self._greeted = True
            _print(self.settle())
        elif self.lease is None and not self._greeted:
            self._greeted = True
            with contextlib.suppress(GpulabError):
                _print(place(self.standing(), self.request))
        return DONE if self.ended else None


def begin(
    ticket: HeldTicket, settings: Settings, attendant: Attendant, *, outlives_restart: bool = False
) -> Turn:
    """Look after a ticket from now on. Raises OSError, ValueError if it cannot be read."""
    global _turn, _last_words  # noqa: PLW0603
    _last_words = None
    if _object not in session.objections:
        session.objections.append(_object)
    _turn = Turn(ticket, settings, attendant, outlives_restart=outlives_restart)
    return _turn


def current() -> Turn | None:
    """What this kernel waits for, or has got and not attached yet."""
    return _turn


def _object() -> None:
    """Against `gpulab.acquire()` beside the queue, which would wait behind this kernel's own ticket."""
    if _turn is not None:
        raise LeaseError(
            f"{_turn.tell()[0]} `%gpu release` leaves the queue; then `gpulab.acquire()` can ask for another."
        )


def last_words() -> str | None:
    """Why this kernel waits no longer and yet has no GPU, if that is so."""
    return _last_words


def cuda_has_started() -> bool:
    """Whether this process may have started CUDA, after which it ignores a changed environment.

    The driver's library alone counts: whoever has loaded it may have asked it for its devices.
    """
    return bool(session.cuda_started(None)) or session.cuda_loaded()


def _introduce(ticket: HeldTicket, settings: Settings) -> None:
    """Put this kernel's name on it, while nobody can make it a lease yet."""
    with contextlib.suppress(OSError, ValueError):
        ticket.describe(pid=os.getpid())
        annotate(
            ticket.directory,
            ticket.id,
            kernel_id=settings.kernel_id,
            notebook=settings.notebook,
            readable=settings.names == "full",
        )


def _holds_another(lease: Lease | None) -> bool:
    """Whether this process has taken a lease otherwise, as by `gpulab.acquire()`."""
    with contextlib.suppress(GpulabError):
        held = session.current()
        return held is not None and (lease is None or held.id != lease.id)
    return False


def _sentences(text: str) -> tuple[str, ...]:
    return tuple((text[:1].upper() + text[1:]).splitlines())


def _print(sentence: str) -> None:
    print(f"gpulab: {sentence}", flush=True)

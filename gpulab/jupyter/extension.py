"""The IPython extension: it makes the kernel's lease or ticket its own, and tells the user what there is.

The kernelspec loads it before any cell runs. In a kernel without gpulab's provisioner, and in a
plain `%load_ext gpulab`, it only brings the magics.
"""

from __future__ import annotations

from typing import Any

from gpulab import config
from gpulab.allocation import session
from gpulab.allocation.directory import find
from gpulab.allocation.session import Lease
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.jupyter import cells
from gpulab.jupyter.attendant import Attendant, install
from gpulab.jupyter.magics import GpuMagics
from gpulab.jupyter.notices import attend
from gpulab.jupyter.sampling import attend_sampling
from gpulab.jupyter.share import attend_share
from gpulab.jupyter.wording import no_gpu, ownership

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_sentences: list[str | None] = []
"""What there was to say, load by load; a reload is silent."""


def load_ipython_extension(shell: Any) -> None:
    """Adopt what the provisioner took, then register `%gpu` and the kernel's first message. Never raises.

    The message is shown with the first cell, because before it nobody would see it.
    """
    attendant = install(shell)
    try:
        sentence = _adopt(attendant)
    except GpulabError as error:
        sentence = str(error)
    except Exception as error:  # noqa: BLE001 - a kernel must start whatever is wrong with us
        sentence = f"the lease could not be looked at ({type(error).__name__}: {error}); run `gpulab doctor`."
    shell.register_magics(GpuMagics(shell))
    cells.install(shell)
    if sentence is not None and not _sentences:
        attendant.say(sentence, with_next_cell=True)
    _sentences.append(sentence)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again; the lease stays with the kernel."""
    GpuMagics.remove_from(shell)
    cells.remove()


def _adopt(attendant: Attendant) -> str | None:
    """The first act in a kernel: from here on no child keeps the GPU after the kernel's end."""
    settings = config.load()
    lease = session.current()  # adopts, unless this process already holds one, as before a reload
    if not _sentences:
        attend(attendant, settings)
        attend_sampling(attendant)
    if lease is not None:
        if not _sentences:
            _limit(lease, attendant)
        return ownership(lease, find(settings).scope)
    if settings.ticket_id is not None and _waits(settings, attendant):
        return None  # what there is to say depends on when the first cell runs
    if settings.no_gpu_reason is not None:
        return no_gpu(settings.no_gpu_reason)
    if settings.lease_id is not None:
        return f"lease {settings.lease_id} of this kernel has ended; restart the kernel to get a GPU."
    return None


def _limit(lease: Lease, attendant: Attendant) -> None:
    from gpulab import limits

    limits.apply(lease.memory_bytes, lease.total_bytes)
    attend_share(attendant, lease)


def _waits(settings: Settings, attendant: Attendant) -> bool:
    """Whether the provisioner has passed on a ticket, which is then looked after."""
    from gpulab.allocation.waiting import adopt_ticket
    from gpulab.jupyter import turn

    if turn.current() is not None:
        return True
    ticket = adopt_ticket(settings)
    if ticket is None:
        return False
    turn.begin(ticket, settings, attendant, outlives_restart=True)
    return True

"""The IPython extension: it makes the kernel's lease its own, and tells the user what the kernel has.

The kernelspec loads it before any cell runs. In a kernel without gpulab's provisioner, and in a
plain `%load_ext gpulab`, it only brings the magics.
"""

from __future__ import annotations

from typing import Any

from gpulab import config
from gpulab.allocation import session
from gpulab.allocation.directory import find
from gpulab.errors import GpulabError
from gpulab.jupyter.attendant import install
from gpulab.jupyter.magics import GpuMagics
from gpulab.jupyter.wording import no_gpu, ownership

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_sentences: list[str | None] = []
"""What there was to say, load by load; a reload is silent."""


def load_ipython_extension(shell: Any) -> None:
    """Adopt the lease, then register `%gpu` and the kernel's first message. Never raises.

    The message is shown with the first cell, because before it nobody would see it.
    """
    try:
        sentence = _adopt()
    except GpulabError as error:
        sentence = str(error)
    except Exception as error:  # noqa: BLE001 - a kernel must start whatever is wrong with us
        sentence = f"the lease could not be looked at ({type(error).__name__}: {error}); run `gpulab doctor`."
    shell.register_magics(GpuMagics(shell))
    attendant = install(shell)
    if sentence is not None and not _sentences:
        attendant.say(sentence, with_next_cell=True)
    _sentences.append(sentence)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again; the lease stays with the kernel."""
    GpuMagics.remove_from(shell)


def _adopt() -> str | None:
    """The first act in a kernel: from here on no child keeps the GPU after the kernel's end."""
    settings = config.load()
    lease = session.current()  # adopts, unless this process already holds one, as before a reload
    if lease is not None:
        return ownership(lease, find(settings).scope)
    if settings.no_gpu_reason is not None:
        return no_gpu(settings.no_gpu_reason)
    if settings.lease_id is not None:
        return f"lease {settings.lease_id} of this kernel has ended; restart the kernel to get a GPU."
    return None

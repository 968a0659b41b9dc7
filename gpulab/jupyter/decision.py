"""Decide what a starting kernel gets: a lease, or the CPU and one sentence why. Never raises."""

from __future__ import annotations

from typing import NamedTuple

from gpulab import config
from gpulab.allocation.policy import Request
from gpulab.allocation.session import Lease, grant
from gpulab.config import Settings
from gpulab.errors import GpulabError, NoFreeGpuError, RequestError
from gpulab.hardware.observe import observe
from gpulab.units import parse_bytes

__all__ = ["Decision", "Options", "decide", "kernel_environment", "on_cpu"]


class Options(NamedTuple):
    """What the kernelspec and the server's configuration ask for, not yet checked."""

    gpus: int = 1
    memory: str = ""
    """A size such as 8GiB; empty for a whole GPU."""
    exclusive: bool = False
    policy: str = ""
    """Empty for the policy of the settings."""

    def request(self, settings: Settings) -> Request:
        """Check the options. Raises RequestError."""
        try:
            memory = parse_bytes(self.memory) if self.memory else None
        except RequestError as error:
            raise RequestError(f"The memory of this kernel cannot be leased: {error}") from None
        return Request(
            gpus=self.gpus,
            memory_bytes=memory,
            exclusive=self.exclusive,
            policy=self.policy or settings.policy,
        ).checked()


class Decision(NamedTuple):
    """A lease and no reason, or no lease and the reason."""

    lease: Lease | None
    reason: str | None
    variables: dict[str, str]
    """What the kernel's environment gets."""


def kernel_environment(environ: dict[str, str]) -> dict[str, str]:
    """Free a kernel's environment of what the server's own lease left there.

    A caller may pass only a part of the environment. What says where leases lie and which GPUs may
    be used at all is then taken from the server, so that kernel and server see the same machine.
    """
    bounds = {
        name: value
        for name, value in config.inherited().items()
        if name.startswith(("GPULAB_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))
    }
    return config.without_lease({**bounds, **environ})


def decide(options: Options, environ: dict[str, str], *, prefer: tuple[str, ...] = ()) -> Decision:
    """Try once to lease what the options ask for; blocks for some milliseconds, at worst seconds."""
    settings = None
    try:
        settings = config.load(environ)
        lease = _grant(options.request(settings), settings, prefer)
        return Decision(lease, None, lease.environment(settings))
    except GpulabError as error:
        return on_cpu(str(error), settings)
    except Exception as error:  # noqa: BLE001 - whatever it is, the kernel must start
        return on_cpu(
            f"gpulab could not take a GPU ({type(error).__name__}: {error}); `gpulab doctor` may say more.",
            settings,
        )


def _grant(request: Request, settings: Settings, prefer: tuple[str, ...]) -> Lease:
    snapshot = observe(settings=settings)
    try:
        return grant(request, snapshot, settings, prefer=prefer)
    except NoFreeGpuError:
        if snapshot.source != "sampler":
            raise
    # The record may still show the processes of a kernel that has just ended.
    return grant(request, observe(max_age=0, settings=settings), settings, prefer=prefer)


def on_cpu(reason: str, settings: Settings | None = None) -> Decision:
    """The decision for the CPU, with the sentence that the user will read."""
    sentence = " ".join(reason.replace("\0", "").split())
    variables = {"CUDA_VISIBLE_DEVICES": "", "GPULAB_NO_GPU_REASON": sentence}
    if settings is not None:
        variables.update(config.masked("", settings))
    return Decision(None, sentence, variables)

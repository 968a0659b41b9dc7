"""The settings of one process as frozen values; `gpulab.config` reads them."""

import os
from typing import NamedTuple

__all__ = ["Settings", "host_name"]


class Settings(NamedTuple):
    """All settings of one process, frozen."""

    lease_dir: str | None = None
    """Set by GPULAB_LEASE_DIR; None means the host's directory if there is one, else the account's."""
    data_dir: str = ""
    """Where this account's sampler keeps its record and history."""
    simulate: str | None = None
    """A scenario file or NxPROFILE; None on the real machine."""
    policy: str = "idlest"
    on_full: str = "queue"
    prometheus_url: str | None = None
    """Where the Prometheus answers that keeps the metrics of all hosts."""
    metrics: bool = False
    """Whether a Jupyter server offers /gpulab/metrics."""
    history_max_size: int = 512 * 2**20
    """Bytes that the history's file may take; the oldest samples give way."""

    devices: tuple[str, ...] | None = None
    """UUIDs, or their beginnings, that gpulab may hand out; None means all. The rest is a scheduler's."""
    drained: tuple[str, ...] = ()
    """UUIDs, or their beginnings, that the administrator has taken out of service."""
    max_gpus_per_user: int | None = None
    max_memory_per_lease: int | None = None
    """Bytes of one GPU."""
    default_memory: int | None = None
    """Bytes of the share that a request gets which names neither a size nor the whole GPU."""
    who_may_raise_priority: str | None = None
    """The group whose members may ask for priority high; None means everybody."""
    idle_after: float | None = None
    """Seconds after which a kernel that does nothing on its GPU counts as idle; None means never."""
    on_idle: str = "nothing"
    """nothing, notice or stop"""
    max_lease_age: float | None = None
    """Seconds after which a lease may be reclaimed once its kernel does nothing."""
    names: str | None = None
    """What others see of a holder: full (login and notebook), initials, none; None means the login only."""

    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES now; None if it is not set, which is not the same as empty."""
    outer_devices: str | None = None
    """The mask from outside gpulab (Slurm, Docker, the user), which bounds every choice."""
    outer_order: str | None = None
    """The CUDA_DEVICE_ORDER that the numbers of that mask follow."""
    container_devices: str | None = None
    """NVIDIA_VISIBLE_DEVICES: what a container was given, in its runtime's terms."""
    device_order: str | None = None
    lease_id: str | None = None
    memory_limit: int | None = None
    """The share of this process in bytes (GPULAB_MEMORY_LIMIT)."""
    lease_fd: int | None = None
    ticket_id: str | None = None
    """The place in the queue that this kernel's provisioner took for it (GPULAB_TICKET)."""
    ticket_fd: int | None = None
    lease_devices: str | None = None
    """The names of the leased devices, as text for people."""
    lease_reason: str | None = None
    """Why just these devices were chosen."""
    no_gpu_reason: str | None = None
    """Why the provisioner started this kernel without a GPU."""
    notice: str | None = None
    """What the user must know of the kernel before this one, for example why it was stopped."""
    kernel_id: str | None = None
    notebook: str | None = None
    runtime_dir: str = ""
    """Where this account's leases lie if there is no directory of the host."""

    @property
    def machine_dir(self) -> str:
        """The part of `data_dir` that belongs to this machine, real or simulated."""
        name = host_name()
        if self.simulate is not None:
            tag = "".join(c if c.isalnum() else "-" for c in self.simulate)[-60:]
            name = f"{name}-simulated-{tag}"
        return os.path.join(self.data_dir, name)


def host_name() -> str:
    """The name of this machine, without the cost of importing sockets."""
    if hasattr(os, "uname"):
        return os.uname().nodename or "localhost"
    import platform

    return platform.node() or "localhost"

"""Settings: the environment, the user's file and the administrator's, read in this module only.

The environment wins over the user's file. The administrator's file, root-owned, is no default but
a bound: what it says can be tightened by the others and never widened.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpulab.errors import ConfigError

__all__ = [
    "ADMIN_FILE",
    "HOST_LEASE_DIR",
    "LEASE_VARIABLES",
    "ON_FULL",
    "POLICIES",
    "Settings",
    "export",
    "host_name",
    "inherited",
    "load",
    "masked",
    "without_lease",
]

ADMIN_FILE = "/etc/gpulab/config.toml"
HOST_LEASE_DIR = "/run/gpulab"
POLICIES = ("idlest",)
ON_FULL = ("cpu", "error")
LEASE_VARIABLES = (
    "GPULAB_LEASE",
    "GPULAB_LEASE_FD",
    "GPULAB_LEASE_DEVICES",
    "GPULAB_LEASE_REASON",
    "GPULAB_MEMORY_LIMIT",
    "GPULAB_NO_GPU_REASON",
    "GPULAB_NOTICE",
    "GPULAB_TICKET",
    "GPULAB_TICKET_FD",
)
"""What tells a process of its own lease, or why it has none, beside CUDA's variables."""

_OUTER_MASK = "GPULAB_OUTER_MASK"
_WITHIN = ">"


class Settings(NamedTuple):
    """All settings of one process, frozen."""

    lease_dir: str | None = None
    """Set by GPULAB_LEASE_DIR; None means the host's directory if there is one, else the account's."""
    data_dir: str = ""
    """Where this account's sampler keeps its record and history."""
    simulate: str | None = None
    """A scenario file or NxPROFILE; None on the real machine."""
    policy: str = "idlest"
    on_full: str = "cpu"

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


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of this process. Raises ConfigError with the name of what is wrong."""
    env = os.environ if environ is None else environ
    admin = _read_toml(ADMIN_FILE, ("drained",), must_exist=False)
    user = _read_toml(
        env.get("GPULAB_CONFIG") or os.path.join(_config_home(env), "gpulab", "config.toml"),
        ("data_dir", "lease_dir", "on_full", "policy", "simulate"),
        must_exist="GPULAB_CONFIG" in env,
    )

    def text(key: str) -> str | None:
        value = env.get(f"GPULAB_{key.upper()}") or user.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{key} is {value!r}; it must be a text in quotes.")
        return value or None

    def choice(key: str, allowed: tuple[str, ...]) -> str:
        value = text(key) or allowed[0]
        if value not in allowed:
            raise ConfigError(f"{key} is {value!r}; it must be one of {', '.join(allowed)}.")
        return value

    fd, limit = env.get("GPULAB_LEASE_FD", ""), env.get("GPULAB_MEMORY_LIMIT", "")
    ticket_fd = env.get("GPULAB_TICKET_FD", "")
    return Settings(
        lease_dir=text("lease_dir"),
        data_dir=text("data_dir") or _state_home(env),
        simulate=_scenario(text("simulate") or ""),
        policy=choice("policy", POLICIES),
        on_full=choice("on_full", ON_FULL),
        drained=_uuids(admin.get("drained", [])),
        visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
        outer_devices=_outer_mask(env),
        device_order=env.get("CUDA_DEVICE_ORDER"),
        lease_id=env.get("GPULAB_LEASE") or None,
        memory_limit=int(limit) if limit.isdecimal() else None,
        lease_fd=int(fd) if fd.isdecimal() else None,
        lease_devices=env.get("GPULAB_LEASE_DEVICES") or None,
        lease_reason=env.get("GPULAB_LEASE_REASON") or None,
        no_gpu_reason=env.get("GPULAB_NO_GPU_REASON") or None,
        notice=env.get("GPULAB_NOTICE") or None,
        ticket_id=env.get("GPULAB_TICKET") or None,
        ticket_fd=int(ticket_fd) if ticket_fd.isdecimal() else None,
        kernel_id=env.get("GPULAB_KERNEL_ID") or None,
        notebook=env.get("JPY_SESSION_NAME") or None,
        runtime_dir=_runtime_dir(env),
    )


def host_name() -> str:
    """The name of this machine, without the cost of importing sockets."""
    if hasattr(os, "uname"):
        return os.uname().nodename or "localhost"
    import platform

    return platform.node() or "localhost"


def export(variables: Mapping[str, str | None]) -> None:
    """Set variables of this process, and of the children it starts from now on; None removes."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def inherited() -> dict[str, str]:
    """A copy of this process's environment, for a child."""
    return dict(os.environ)


def without_lease(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of the environment, less what tells this process of its own lease and kernel."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in env if name not in (*LEASE_VARIABLES, "GPULAB_KERNEL_ID")}


def masked(devices: str, settings: Settings) -> dict[str, str]:
    """The variables that show a process only `devices`, and still tell it the mask from outside."""
    outer = "" if settings.outer_devices is None else f"{_WITHIN}{settings.outer_devices}"
    return {"CUDA_VISIBLE_DEVICES": devices, _OUTER_MASK: f"{devices}{outer}"}


def _outer_mask(env: Mapping[str, str]) -> str | None:
    """What bounds the choice: the mask in force, unless it is gpulab's own; then the one outside of that.

    A mask that was set since (by Slurm, in a script) is in force and not gpulab's, so it bounds.
    """
    mask = env.get("CUDA_VISIBLE_DEVICES")
    own, within, outer = env.get(_OUTER_MASK, "").partition(_WITHIN)
    if _OUTER_MASK not in env or mask != own:
        return mask
    return outer if within else None


def _scenario(text: str) -> str | None:
    """A file's name made absolute, so that every process of this machine names the same one."""
    return os.path.abspath(text) if os.path.exists(text) else text or None


def _uuids(entries: object) -> tuple[str, ...]:
    """The administrator's list, to the letter: a rule that is misunderstood must not be passed over."""
    if isinstance(entries, list) and all(
        isinstance(entry, str) and entry.upper().startswith(("GPU-", "MIG-")) and len(entry) > len("GPU-")
        for entry in entries
    ):
        return tuple(entries)
    raise ConfigError(
        f'drained in {ADMIN_FILE} is {entries!r}; write a list of UUIDs, such as drained = ["GPU-1a2b3c4d"].'
    )


def _read_toml(path: str, keys: tuple[str, ...], *, must_exist: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        if must_exist:
            raise ConfigError(
                f"GPULAB_CONFIG names {path}, which does not exist; correct or unset it."
            ) from None
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); make it readable.") from error
    import tomllib  # only where there is a file: most machines have none

    try:
        found = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be understood ({error}); correct that file.") from error
    unknown = sorted(set(found).difference(keys))
    if unknown:
        raise ConfigError(f"{path} has a key {unknown[0]!r}; there are {', '.join(keys)}.")
    return found


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")


def _config_home(env: Mapping[str, str]) -> str:
    return env.get("XDG_CONFIG_HOME") or os.path.join(_home(env), ".config")


def _state_home(env: Mapping[str, str]) -> str:
    if sys.platform.startswith("linux"):
        return os.path.join(
            env.get("XDG_STATE_HOME") or os.path.join(_home(env), ".local", "state"), "gpulab"
        )
    import platformdirs  # a third of the time of `gpulab run`, so not where the rule is one line

    return platformdirs.user_state_dir("gpulab")


def _runtime_dir(env: Mapping[str, str]) -> str:
    """Not /tmp: it is private to each service and container, so it would be several silent worlds."""
    candidates = [env.get("XDG_RUNTIME_DIR", "")]
    if hasattr(os, "getuid"):
        candidates.append(f"/run/user/{os.getuid()}")
    for candidate in candidates:
        if candidate and os.path.isdir(candidate) and os.access(candidate, os.W_OK):
            return os.path.join(candidate, "gpulab")
    return os.path.join(_state_home(env), "run")

"""Settings: the environment, the user's file and the administrator's, read in this module only.

The environment wins over the user's file. The administrator's file, root-owned, is no default but
a bound: what it says can be tightened by the others and never widened.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from gpulab.errors import ConfigError, RequestError
from gpulab.settings import Settings, host_name

__all__ = [
    "ADMIN_FILE",
    "HOST_LEASE_DIR",
    "LEASE_VARIABLES",
    "ON_FULL",
    "POLICIES",
    "Settings",
    "drained_file",
    "export",
    "host_name",
    "inherited",
    "is_policy",
    "load",
    "masked",
    "may_raise_priority",
    "overruled",
    "supervision",
    "unruled",
    "without_lease",
]

ADMIN_FILE = "/etc/gpulab/config.toml"
"""The administrator's rules; what `gpulab drain` notes lies beside it."""
HOST_LEASE_DIR = "/run/gpulab"
POLICIES = ("idlest", "pack", "spread", "most-free-memory", "coolest")
"""Beside these, `uuid:…` and `name:…` say which devices to choose from."""
ON_FULL = ("queue", "cpu", "error")
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

_RULES = (
    "devices",
    "drained",
    "max_gpus_per_user",
    "max_memory_per_lease",
    "default_memory",
    "idle_after",
    "on_idle",
    "max_lease_age",
    "names",
)
"""The administrator's rules that an account may tighten for itself."""

_LEAST_HISTORY = 4 * 2**20
_MAX_POLICY = 100
"""A ticket's text tells it to others, and they refuse what is longer, or no plain text."""
_OUTER_MASK, _OUTER_ORDER = "GPULAB_OUTER_MASK", "GPULAB_OUTER_ORDER"
_WITHIN = ">"
_CHOICES = ("GPULAB_HISTORY_MAX_SIZE", "GPULAB_METRICS", "GPULAB_ON_FULL", "GPULAB_POLICY")
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of this process. Raises ConfigError with the name of what is wrong."""
    env = os.environ if environ is None else environ
    user = _user_file(env)
    return _own(env, user)._replace(**_rules(env, user))


def unruled(environ: Mapping[str, str] | None = None) -> Settings:
    """The environment's settings alone, for those who only look where a file is refused. Never raises."""
    env = os.environ if environ is None else environ
    return _own({key: env[key] for key in env if key not in _CHOICES}, {})


def overruled(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each of the account's own rules that has no effect. Raises ConfigError."""
    from gpulab import rules

    env = os.environ if environ is None else environ
    return rules.overruled(rules.of_administrator(ADMIN_FILE, drained_file()), _wanted(env, _user_file(env)))


def drained_file() -> str:
    """Where `gpulab drain` notes the devices that are out of service."""
    return os.path.join(os.path.dirname(ADMIN_FILE), "drained")


def is_policy(name: str) -> bool:
    """Whether a text names a policy."""
    kind, _, which = name.partition(":")
    names = kind in ("uuid", "name") and bool(which.strip())
    return name in POLICIES or (names and name.isprintable() and len(name) <= _MAX_POLICY)


def may_raise_priority(uid: int, settings: Settings) -> bool:
    """Whether priority high is believed of an account, by its groups; root's always is. Never raises."""
    if settings.who_may_raise_priority is None:
        return True
    from gpulab import rules

    return rules.may_raise_priority(uid, settings.who_may_raise_priority)


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


def supervision() -> tuple[str | None, float | None]:
    """Where systemd wants to be told of this process, and within how many seconds again and again.

    None where nobody asked. Children of this process are not told, for they have nothing to report.
    """
    address, micros = os.environ.pop("NOTIFY_SOCKET", None), os.environ.pop("WATCHDOG_USEC", "")
    meant = os.environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return address, int(micros) / 1e6 if meant and micros.isdecimal() and int(micros) else None


def masked(devices: str, settings: Settings) -> dict[str, str]:
    """The variables that show a process only `devices`, and still tell it the mask from outside."""
    outer = "" if settings.outer_devices is None else f"{_WITHIN}{settings.outer_devices}"
    return {
        "CUDA_VISIBLE_DEVICES": devices,
        _OUTER_MASK: f"{devices}{outer}",
        _OUTER_ORDER: settings.outer_order or "",
    }


def _outer_mask(env: Mapping[str, str]) -> str | None:
    """What bounds the choice: the mask in force, unless it is gpulab's own; then the one outside of that.

    A mask that was set since (by Slurm, in a script) is in force and not gpulab's, so it bounds.
    """
    if not _is_own_mask(env):
        return env.get("CUDA_VISIBLE_DEVICES")
    _, within, outer = env[_OUTER_MASK].partition(_WITHIN)
    return outer if within else None


def _is_own_mask(env: Mapping[str, str]) -> bool:
    own = env.get(_OUTER_MASK)
    return own is not None and env.get("CUDA_VISIBLE_DEVICES") == own.partition(_WITHIN)[0]


def _scenario(text: str) -> str | None:
    """A file's name made absolute, so that every process of this machine names the same one."""
    return os.path.abspath(text) if os.path.exists(text) else text or None


def _user_file(env: Mapping[str, str]) -> dict[str, Any]:
    path = env.get("GPULAB_CONFIG") or os.path.join(_config_home(env), "gpulab", "config.toml")
    if not os.path.lexists(path):
        if env.get("GPULAB_CONFIG"):
            raise ConfigError(f"GPULAB_CONFIG names {path}, which does not exist; correct or unset it.")
        return {}
    from gpulab import configfiles, rules

    own = (
        "data_dir",
        "lease_dir",
        "history_max_size",
        "metrics",
        "on_full",
        "policy",
        "prometheus_url",
        "simulate",
        *_RULES,
    )
    found = configfiles.parse(
        configfiles.read(path), path, own, others=f" (who_may_raise_priority only in {ADMIN_FILE})"
    )
    return {**found, **rules.from_file(found, path)}


def _own(env: Mapping[str, str], user: Mapping[str, Any]) -> Settings:
    """What the account says itself, the environment before its file."""

    def text(key: str) -> str | None:
        value = env.get(f"GPULAB_{key.upper()}") or user.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{key} is {value!r}; it must be a text in quotes.")
        return value or None

    def number(variable: str) -> int | None:
        found = env.get(variable, "")
        return int(found) if found.isdecimal() else None

    on_full = text("on_full") or Settings().on_full
    if on_full not in ON_FULL:
        raise ConfigError(f"on_full is {on_full!r}; it must be one of {', '.join(ON_FULL)}.")
    policy = text("policy") or POLICIES[0]
    if not is_policy(policy):
        raise ConfigError(
            f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}, uuid:UUID or name:PART."
        )
    return Settings(
        lease_dir=text("lease_dir"),
        data_dir=text("data_dir") or _state_home(env),
        simulate=_scenario(text("simulate") or ""),
        policy=policy,
        on_full=on_full,
        prometheus_url=text("prometheus_url"),
        history_max_size=_history_size(
            env.get("GPULAB_HISTORY_MAX_SIZE") or user.get("history_max_size") or Settings().history_max_size
        ),
        metrics=_is_on("metrics", env.get("GPULAB_METRICS") or user.get("metrics", False)),
        visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
        outer_devices=_outer_mask(env),
        outer_order=env.get(_OUTER_ORDER) or None if _is_own_mask(env) else env.get("CUDA_DEVICE_ORDER"),
        container_devices=env.get("NVIDIA_VISIBLE_DEVICES"),
        device_order=env.get("CUDA_DEVICE_ORDER"),
        lease_id=env.get("GPULAB_LEASE") or None,
        memory_limit=number("GPULAB_MEMORY_LIMIT"),
        lease_fd=number("GPULAB_LEASE_FD"),
        lease_devices=env.get("GPULAB_LEASE_DEVICES") or None,
        lease_reason=env.get("GPULAB_LEASE_REASON") or None,
        no_gpu_reason=env.get("GPULAB_NO_GPU_REASON") or None,
        notice=env.get("GPULAB_NOTICE") or None,
        ticket_id=env.get("GPULAB_TICKET") or None,
        ticket_fd=number("GPULAB_TICKET_FD"),
        kernel_id=env.get("GPULAB_KERNEL_ID") or None,
        notebook=env.get("JPY_SESSION_NAME") or None,
        runtime_dir=_runtime_dir(env),
    )


def _is_on(key: str, value: object) -> bool:
    """A switch: true or false in a file, 1 or 0 (or such a word) in a variable. Raises ConfigError."""
    word = str(value).lower() if isinstance(value, str | bool) else ""
    if word not in _ON and word not in _OFF:
        raise ConfigError(f"{key} is {value!r}; it must be true or false (in a variable also 1 or 0).")
    return word in _ON


def _history_size(value: object) -> int:
    if value == Settings().history_max_size:
        return Settings().history_max_size
    from gpulab.units import parse_bytes  # only where somebody names one

    try:
        size = parse_bytes(value)  # type: ignore[arg-type]
    except RequestError as error:
        raise ConfigError(f"history_max_size cannot be used: {error}") from error
    if size < _LEAST_HISTORY:
        raise ConfigError(f"history_max_size is {value!r}; a history needs at least 4MiB.")
    return size


def _rules(env: Mapping[str, str], user: Mapping[str, Any]) -> dict[str, Any]:
    """The administrator's rules, tightened by the account's own; empty where nobody has set any."""
    files = [path for path in (ADMIN_FILE, drained_file()) if not _is_missing(path)]
    own = _wanted(env, user)
    if not files and not own:
        return {}
    from gpulab import rules  # only where there are some: most accounts have none

    return rules.tightened(rules.of_administrator(ADMIN_FILE, drained_file()), own)


def _wanted(env: Mapping[str, str], user: Mapping[str, Any]) -> dict[str, Any]:
    texts = {key: text for key in _RULES if (text := env.get(f"GPULAB_{key.upper()}"))}
    own = {key: user[key] for key in _RULES if key in user}
    if not texts:
        return own
    from gpulab import rules

    return {**own, **rules.from_environment(texts)}


def _is_missing(path: str) -> bool:
    """Surely missing: a directory that hides it from us may hide a rule."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


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

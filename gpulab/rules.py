"""The administrator's rules: each key read to the letter; an account's own can only tighten it."""

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpulab.configfiles import parse, read_trusted
from gpulab.errors import ConfigError, RequestError
from gpulab.units import format_bytes, format_duration, parse_bytes, parse_duration

__all__ = [
    "KEYS",
    "NAMES",
    "ON_IDLE",
    "drained_in_file",
    "from_environment",
    "from_file",
    "may_raise_priority",
    "of_administrator",
    "overruled",
    "tightened",
]

ON_IDLE = ("nothing", "notice", "stop")
"""From the loosest to the strictest."""
NAMES = ("full", None, "initials", "none")
"""From the loosest to the strictest; None, the login alone, is what holds where nothing is said."""

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}", re.IGNORECASE)
_LEAST_SHARE = 64 * 2**20
_REMEMBERED_SECONDS = 30.0

_memberships: dict[tuple[int, str], tuple[float, bool]] = {}

Values = dict[str, Any]


def of_administrator(config_file: str, drained_file: str) -> Values:
    """What both files of root's say; empty if there are none. Raises ConfigError for any doubt."""
    values: Values = {}
    content = read_trusted(config_file)
    if content is not None:
        values = from_file(parse(content, config_file, tuple(sorted(KEYS))), config_file)
    noted = drained_in_file(drained_file)
    if noted:
        values["drained"] = _united(values.get("drained"), noted)
    return values


def drained_in_file(path: str) -> tuple[str, ...]:
    """The UUIDs that `gpulab drain` noted, one a line, each with its comment. Raises ConfigError."""
    found = []
    for number, line in enumerate((read_trusted(path) or b"").decode(errors="replace").splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if entry and not _UUID.fullmatch(entry):
            raise ConfigError(
                f"Line {number} of {path} is {line[:80]!r}; write one UUID a line, or remove that line."
            )
        found += [entry] if entry else []
    return tuple(found)


def from_file(found: Mapping[str, object], path: str) -> Values:
    """Check the rules among the keys of a file. Raises ConfigError with key, value, and what to write."""
    return {key: _checked(key, value, f"{key} in {path}") for key, value in found.items() if key in KEYS}


def from_environment(texts: Mapping[str, str]) -> Values:
    """The same from the variables' text: `key` to text, lists with commas. Raises ConfigError."""
    return {key: _checked(key, _typed(key, text), f"GPULAB_{key.upper()}") for key, text in texts.items()}


def tightened(bound: Values, own: Values) -> Values:
    """The bound with an account's own values where they are tighter."""
    return {key: KEYS[key][1](bound.get(key), own.get(key)) for key in {**bound, **own}}


def overruled(bound: Values, own: Values) -> list[str]:
    """One sentence for each value of the account's own that the bound leaves without effect."""
    result = tightened(bound, own)
    found = []
    for key, value in own.items():
        if key in ("devices", "drained"):
            lost = [entry for entry in value if key == "devices" and not _overlaps(entry, bound.get(key))]
            if lost:
                found.append(f"devices: {', '.join(lost)} is not among the administrator's devices")
        elif result[key] != value:
            found.append(
                f"{key}: {_shown(key, value)} has no effect, since {_shown(key, result[key])} is tighter"
            )
    return found


def may_raise_priority(uid: int, group: str | None) -> bool:
    """Whether an account is root or a member of the group; an unknown group has no members."""
    if group is None or uid == 0:
        return True
    at, answer = _memberships.get((uid, group), (-_REMEMBERED_SECONDS, False))
    if time.monotonic() - at >= _REMEMBERED_SECONDS:  # a directory service may take its time to answer
        answer = _is_member(uid, group)
        _memberships[uid, group] = time.monotonic(), answer
    return answer


def _is_member(uid: int, group: str) -> bool:
    import grp
    import pwd

    try:
        account, gid = pwd.getpwuid(uid), grp.getgrnam(group).gr_gid
    except (KeyError, OSError):
        return False
    return gid in os.getgrouplist(account.pw_name, account.pw_gid)


def _typed(key: str, text: str) -> object:
    if key in ("devices", "drained"):
        return [entry.strip() for entry in text.split(",") if entry.strip()]
    return int(text) if text.isdecimal() else text


def _checked(key: str, value: object, where: str) -> Any:
    try:
        return KEYS[key][0](value)
    except RequestError as error:  # from units: a sentence of its own
        raise ConfigError(f"{where}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{where} is {value!r}; write {error}.") from error


def _uuids(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(entry, str) and _UUID.fullmatch(entry) for entry in value):
        return tuple(value)
    raise ValueError('a list of UUIDs or their beginnings, such as ["GPU-1a2b3c4d"]')


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError("a whole number from 1 on")


def _size(value: object) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        size = parse_bytes(value)
        if size >= _LEAST_SHARE:
            return size
    raise ValueError('a size of at least 64 MiB with its unit, such as "16GiB"')


def _duration(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        seconds = parse_duration(value)
        if seconds > 0:
            return seconds
    raise ValueError('a duration longer than 0, such as "45m" or "8h"')


def _group(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ValueError('the name of a group, such as "gpu-leads"')


def _one_of(*allowed: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise ValueError(f"one of {', '.join(allowed)}, in quotes")

    return check


def _overlaps(entry: str, bound: tuple[str, ...] | None) -> bool:
    return bound is None or bool(_within((entry,), bound))


def _within(own: tuple[str, ...], bound: tuple[str, ...]) -> tuple[str, ...]:
    """What both lists name: of two entries of which one begins with the other, the longer."""
    both = [
        max(mine, theirs, key=len)
        for mine in own
        for theirs in bound
        if mine.lower().startswith(theirs.lower()) or theirs.lower().startswith(mine.lower())
    ]
    return tuple(dict.fromkeys(both))


def _intersection(bound: tuple[str, ...] | None, own: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if bound is None or own is None:
        return own if bound is None else bound
    return _within(own, bound)


def _united(bound: tuple[str, ...] | None, own: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*(bound or ()), *(own or ()))))


def _smaller(bound: float | None, own: float | None) -> float | None:
    return min((value for value in (bound, own) if value is not None), default=None)


def _stricter(order: tuple[str | None, ...], unset: str | None) -> Callable[[Any, Any], str | None]:
    def pick(bound: str | None, own: str | None) -> str | None:
        return max((unset if value is None else value for value in (bound, own)), key=order.index)

    return pick


def _names(bound: str | None, own: str | None) -> str | None:
    """Unset is the login alone: an account's own `full` cannot widen that, the administrator's can."""
    return bound if own is None else max((bound, own), key=NAMES.index)


def _bound(bound: str | None, _: str | None) -> str | None:
    return bound


KEYS: dict[str, tuple[Callable[[object], Any], Callable[[Any, Any], Any]]] = {
    "devices": (_uuids, _intersection),
    "drained": (_uuids, _united),
    "max_gpus_per_user": (_count, _smaller),
    "max_memory_per_lease": (_size, _smaller),
    "default_memory": (_size, _smaller),
    "who_may_raise_priority": (_group, _bound),
    "idle_after": (_duration, _smaller),
    "on_idle": (_one_of(*ON_IDLE), _stricter(ON_IDLE, "nothing")),
    "max_lease_age": (_duration, _smaller),
    "names": (_one_of(*filter(None, NAMES)), _names),
}
"""How each value is checked, and what of the administrator's and an account's own value holds."""


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "the login alone" if key == "names" else "nothing"
    if key in ("max_memory_per_lease", "default_memory"):
        return format_bytes(value)
    return format_duration(value) if key in ("idle_after", "max_lease_age") else str(value)

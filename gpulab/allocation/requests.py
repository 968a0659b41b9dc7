"""What is asked for, checked, and brought under the administrator's rules."""

import os
from collections.abc import Iterable
from typing import NamedTuple

from gpulab import config
from gpulab.config import POLICIES, Settings
from gpulab.errors import RequestError
from gpulab.hardware.devices import Device
from gpulab.units import format_bytes

__all__ = ["Request", "asked", "named", "own_uid"]

MIN_SHARE_BYTES = 64 * 2**20
"""CUDA's own context takes more; a smaller number is a unit forgotten."""


class Request(NamedTuple):
    """What is asked for."""

    gpus: int = 1
    memory_bytes: int | None = None
    exclusive: bool = False
    policy: str = "idlest"
    priority: str = "normal"
    visible: frozenset[str] | None = None
    """UUIDs inside the inherited mask; None if there is no mask."""
    prefer: tuple[str, ...] = ()
    """UUIDs to be chosen first if they are free, for a restart."""

    @property
    def mode(self) -> str:
        return "shared" if self.memory_bytes is not None and not self.exclusive else "exclusive"

    @property
    def detail(self) -> str:
        """How much a snapshot must tell to choose by this policy: "choice", or "full" with temperatures."""
        return "full" if self.policy == "coolest" else "choice"

    def checked(self) -> "Request":
        """Return self. Raises RequestError for what no machine could serve."""
        if not isinstance(self.gpus, int) or isinstance(self.gpus, bool) or self.gpus < 1:
            raise RequestError(f"{self.gpus!r} GPUs cannot be handed out; ask for one or more.")
        if not (isinstance(self.policy, str) and config.is_policy(self.policy)):
            known = ", ".join(POLICIES)
            raise RequestError(
                f"There is no policy {self.policy!r}; choose {known}, uuid:PREFIX or name:TEXT."
            )
        if self.memory_bytes is not None and self.memory_bytes < MIN_SHARE_BYTES:
            raise RequestError(
                f"A share of {format_bytes(self.memory_bytes)} is too small to compute with; "
                "write a unit, for example 8GiB."
            )
        if self.gpus > 1 and self.mode == "shared":
            raise RequestError(
                f"A share is of one GPU, and {self.gpus} were asked for; "
                "ask for one, or for whole GPUs with --exclusive (exclusive=True)."
            )
        if self.priority not in ("low", "normal", "high"):
            raise RequestError(f"There is no priority {self.priority!r}; choose low, normal or high.")
        return self

    def applied(self, settings: Settings, *, uid: int | None = None) -> "Request":
        """This request under the administrator's rules. Raises RequestError for what they do not allow.

        A request of one GPU that names neither a size nor the whole becomes a share of `default_memory`.
        """
        self.checked()
        _refuse_out_of_bounds(self, settings, own_uid() if uid is None else uid)
        default, bound = settings.default_memory, settings.max_memory_per_lease
        if default is None or self.gpus > 1 or self.exclusive or self.memory_bytes is not None:
            return self
        return self._replace(memory_bytes=default if bound is None else min(default, bound))

    def within(self, devices: Iterable[Device]) -> tuple[str, ...] | None:
        """The UUIDs that mask and policy leave to choose from, for a ticket; None if that is every device."""
        chosen = named(self.policy, devices)
        if chosen is None or self.visible is None:
            both = self.visible if chosen is None else chosen
        else:
            both = self.visible & chosen
        return None if both is None else tuple(sorted(both))


def asked(gpus: int, size: str = "") -> str:
    """How a sentence about a request begins."""
    return f"1 GPU{size} was asked for" if gpus == 1 else f"{gpus} GPUs{size} were asked for"


def own_uid() -> int | None:
    """This process's account; None where there are none."""
    return os.getuid() if hasattr(os, "getuid") else None


def _refuse_out_of_bounds(request: Request, settings: Settings, uid: int | None) -> None:
    most, bound = settings.max_gpus_per_user, settings.max_memory_per_lease
    if most is not None and request.gpus > most:
        raise RequestError(
            f"{asked(request.gpus)}, and the administrator allows each user {most}; ask for at most {most}."
        )
    if request.mode == "shared" and bound is not None and (request.memory_bytes or 0) > bound:
        raise RequestError(
            f"A share of {format_bytes(request.memory_bytes)} was asked for, and the administrator allows a "
            f"lease {format_bytes(bound)}; ask for at most that."
        )
    if request.priority == "high" and uid is not None and not config.may_raise_priority(uid, settings):
        group = settings.who_may_raise_priority
        raise RequestError(f"Only members of the group {group} may ask for priority high; ask for normal.")


def named(policy: str, devices: Iterable[Device]) -> frozenset[str] | None:
    """The UUIDs that a policy names; None if it names none."""
    kind, colon, text = policy.partition(":")
    if not colon:
        return None
    wanted = text.strip().lower()
    return frozenset(
        device.uuid
        for device in devices
        if device.uuid
        and (
            wanted in (device.name or "").lower()
            if kind == "name"
            else device.uuid.lower().startswith(wanted)
            or device.uuid.lower().partition("-")[2].startswith(wanted)
        )
    )

"""What all frameworks have in common: they follow what is asked, and nothing of it raises."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from gpulab.limits import state
from gpulab.limits.state import Cap

__all__ = ["Framework", "Outcome", "TooLateError", "cuda_started"]

_WORTH_A_WARNING = ("failed", "too late")


class Outcome(NamedTuple):
    """How far a framework has come with what is asked."""

    state: str
    """in force, when CUDA starts, growth only, own limit, not capped, too late or failed"""
    by: str = ""
    """hook, call, variable or RMM; empty if nothing of ours limits it"""
    remedy: str = ""
    """One sentence for people; empty where there is nothing to do."""


class TooLateError(Exception):
    """The framework has started, and no longer takes a limit; never leaves this package."""


class Framework:
    """One framework; `cap` is called after its import, or at once, and whenever what is asked changes."""

    name: ClassVar[str]
    title: ClassVar[str]
    module: ClassVar[str]
    """The module whose import tells that the framework is there."""
    also: ClassVar[tuple[str, ...]] = ()
    """Further modules whose import is a reason to look again."""
    takes_cap: ClassVar[bool] = True
    by_hand: ClassVar[str] = ""
    """What users can do themselves where gpulab cannot; a clause."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self._said: set[str] = set()

    def cap(self, cap: Cap) -> Outcome:
        """Do what is asked, or prepare it. May raise anything."""
        raise NotImplementedError

    def in_force(self) -> int | None:
        """Bytes of the cap as the framework itself reports it; None if it does not, or not yet. May raise."""
        return None

    def imported(self, module: ModuleType) -> None:  # noqa: ARG002 - some look at it
        """Called after the import of each of `module` and `also`."""
        self.follow()

    @property
    def loaded(self) -> Any:
        """The framework's module if it has been imported, else None."""
        return sys.modules.get(self.module)

    def is_installed(self) -> bool:
        """Whether it could be imported, seen without importing it."""
        top = self.module.partition(".")[0]
        with contextlib.suppress(ImportError, ValueError):
            return top in sys.modules or importlib.util.find_spec(top) is not None
        return False

    def follow(self) -> None:
        """Bring the framework to what is asked now. Raises nothing: users' imports and cells go on."""
        self.settle(self.cap)

    def settle(self, step: Callable[[Cap], Outcome]) -> None:
        """Take one step and note how it went, a warning included. Raises nothing."""
        cap = state.asked()
        if cap is None:
            return
        try:
            self.outcome = step(cap)
        except TooLateError as late:
            self.outcome = Outcome("too late", remedy=str(late))
        except Exception as error:  # noqa: BLE001 - the rim: a changed framework must not break a user's import
            self.outcome = Outcome("failed", remedy=self._failure(error))
        self._warn(again=cap.by_user)

    def too_late(self, what: str) -> TooLateError:
        """The sentence of a framework that `what` ("has started its backends") and so takes no limit."""
        return TooLateError(
            f"{self.title} {what}, so its memory can no longer be limited in this process; "
            "restart the kernel, and take the GPU or call gpulab.limit_memory before that."
        )

    def _failure(self, error: Exception) -> str:
        reason = (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
        version = getattr(self.loaded, "__version__", "")
        named = f"{self.title} {version}".rstrip()
        advice = f" or {self.by_hand}" if self.by_hand else ""
        return (
            f"{named} could not be limited ({type(error).__name__}: {reason}) and runs on without; "
            f"look for a newer gpulab{advice}."
        )

    def _warn(self, *, again: bool) -> None:
        outcome = self.outcome
        if outcome is None or outcome.state not in _WORTH_A_WARNING:
            return
        if again or outcome.remedy not in self._said:
            self._said.add(outcome.remedy)
            with contextlib.suppress(
                Warning
            ):  # users may have made warnings errors; an import is not the place
                warnings.warn(outcome.remedy, RuntimeWarning, stacklevel=2)


def cuda_started() -> bool:
    """Whether this process has started CUDA, seen without starting it: its device file is open."""
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) == "/dev/nvidia-uvm":
                    return True
    return False

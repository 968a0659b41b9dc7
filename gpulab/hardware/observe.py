"""A snapshot for programs that live long and may not call NVML: the sampler's record, or a short child's.

A driver that hangs takes the child and not the program: the child is killed after a timeout, and one
that cannot even be killed is left behind, and is the only one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import ConfigError
from gpulab.hardware import record, states
from gpulab.hardware.devices import DriverState, Snapshot

__all__ = ["answer", "observe", "snapshot"]

_START_SECONDS = 1.0
"""What the child needs besides NVML, so that its own timeout ends first where it can."""
_REAP_SECONDS = 0.2
_CHILD = "import sys; sys.path.append(sys.argv[1]); from gpulab.hardware.observe import answer; answer()"
_SURPRISES = ("PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONPROFILEIMPORTTIME")

_turn = threading.Lock()
_abandoned: list[subprocess.Popen[bytes]] = []


def snapshot(*, max_age: float = 2.0, timeout: float = 5.0) -> Snapshot:
    """Every GPU of this machine, or the reason why there is none; the public `gpulab.snapshot()`.

    Safe in a kernel, however the driver behaves: NVML is never called in this process. No state of
    the hardware raises, and what cannot be known is None.

    Parameters
    ----------
    max_age
        Seconds up to which the sampler's record is new enough; 0 always asks a child process.
    timeout
        Seconds after which the driver counts as unresponsive.
    """
    return observe(max_age=max_age, timeout=timeout, detail="full")


def observe(
    *,
    max_age: float = 2.0,
    timeout: float = 4.0,
    settings: Settings | None = None,
    detail: str = "choice",
) -> Snapshot:
    """Look at the GPUs without calling NVML in this process; from any thread, and raises nothing.

    Parameters
    ----------
    max_age
        Seconds up to which the sampler's record is new enough.
    timeout
        Seconds after which a child process that asks NVML is given up.
    settings
        Default: those of this process.
    detail
        What the child asks: "choice" (what choosing a GPU needs) or "full".

    Returns
    -------
    Snapshot
        From the record with `source` "sampler", else from the child.
    """
    try:
        settings = config.load() if settings is None else settings
    except ConfigError as error:
        return _off(DriverState("error", message=str(error)))
    fresh = record.latest(settings, max_age=max_age)
    return fresh if fresh is not None else _ask_child(settings, timeout, detail)


def answer() -> None:
    """What the child does: one snapshot as JSON on standard output, then an end that no thread delays."""
    from gpulab.hardware import nvml

    # The rules are its caller's affair: a file of theirs that is being edited is no failing driver.
    settings = config.unruled()
    found = nvml.snapshot(detail=sys.argv[3], timeout=float(sys.argv[2]), settings=settings)
    sys.stdout.write("\n" + json.dumps(found.to_dict(), separators=(",", ":")))
    sys.stdout.flush()
    os._exit(0)


def _ask_child(settings: Settings, timeout: float, detail: str) -> Snapshot:
    deadline = time.monotonic() + timeout
    if not _turn.acquire(timeout=timeout):
        return _off(states.unresponsive(timeout), settings)
    try:
        _abandoned[:] = [child for child in _abandoned if child.poll() is None]
        if _abandoned:  # the driver still holds it: a second one would only join it
            return _off(states.unresponsive(timeout), settings)
        output = _run_child(settings, deadline, detail)
    except subprocess.TimeoutExpired:
        return _off(states.unresponsive(timeout), settings)
    except OSError as error:
        reason = f"No process can be started to ask for the GPUs ({error}); see the limits of this account."
        return _off(DriverState("error", message=reason), settings)
    finally:
        _turn.release()
    return _read(output, settings)


def _read(output: bytes, settings: Settings) -> Snapshot:
    try:
        return Snapshot.from_dict(json.loads(output.rpartition(b"\n")[2]))
    except (ValueError, KeyError, TypeError):
        reason = "The process that asks for the GPUs ended without an answer; run `gpulab doctor` to see why."
        return _off(DriverState("error", message=reason), settings)


def _run_child(settings: Settings, deadline: float, detail: str) -> bytes:
    """The child's output. Raises OSError, or TimeoutExpired once the child is killed (perhaps not gone)."""
    left = max(0.1, deadline - time.monotonic())
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    child = subprocess.Popen(
        # -P: a json.py in the notebook's folder is not the child's business
        [sys.executable, "-P", "-c", _CHILD, root, f"{max(left - _START_SECONDS, left / 2):.3f}", detail],
        env=_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return child.communicate(timeout=left)[0]
    except subprocess.TimeoutExpired:
        _abandon(child)
        raise


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill it without waiting: in an uninterruptible call it dies only when the driver answers."""
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_SECONDS)
        return
    _abandoned.append(child)


def _environment(settings: Settings) -> dict[str, str]:
    environment = {name: value for name, value in config.inherited().items() if name not in _SURPRISES}
    environment.pop("GPULAB_SIMULATE", None)
    if settings.simulate is not None:
        environment["GPULAB_SIMULATE"] = settings.simulate
    return environment


def _off(state: DriverState, settings: Settings | None = None) -> Snapshot:
    simulated = settings is not None and settings.simulate is not None
    return Snapshot(time.time(), state, simulated=simulated)

"""24 processes of 3 accounts on 4 GPUs for a minute, with random kill -9: no GPU is given out twice.

The checker knows nothing of leases. Whoever is given a GPU locks a witness file of its own beside it, and
then looks at everybody else's: two that cannot stand together are a violation, seen by the later of the
two. The operating system drops the lock of one that is killed, so kill -9 can neither hide nor feign one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpulab import config
from gpulab.allocation import leases, tickets, waiting
from gpulab.allocation.directory import LeaseDirectory, find, set_up_host
from gpulab.allocation.grants import Lease
from gpulab.allocation.policy import Request
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Snapshot

__all__ = ["run", "stress"]

_GIB = 2**30
_EXITING = 0x4
"""PF_EXITING of Linux, in /proc/PID/stat: such a process is past its end, and its locks are about to go."""


class _World(NamedTuple):
    directory: LeaseDirectory
    settings: Settings
    snapshot: Snapshot
    witnesses: Path
    uids: tuple[int, ...]
    events: int
    """Where the processes write what happened to them, a line each."""


def run(seconds: float = 60.0, processes: int = 24) -> bool:
    """Print what happened, and whether no GPU was given out twice and nothing is left behind."""
    counts, left = stress(seconds, processes)
    errors = [name for name in counts if name.startswith("error")]
    kept = not counts["violation"] and not errors and not left and counts["granted"] and counts["queued"]
    told = ", ".join(f"{counts[name]} {name}" for name in sorted({*counts, "violation"}))
    print(
        f"{'ok  ' if kept else 'OVER'}  stress, {processes} processes for {seconds:.0f} s: {told}", flush=True
    )
    if left:
        print(f"      left behind: {left}", flush=True)
    return bool(kept)


def stress(seconds: float, processes: int) -> tuple[Counter[str], list[str]]:
    """Events by name, and what is left in the directory after a last call of root or of the account."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        reading, writing = os.pipe()
        world = _prepare(Path(folder), writing)
        pids = [_start(world, number) for number in range(processes)]
        counts = _disturb(world, pids, reading, seconds)
        return counts, _left(world)


def _prepare(folder: Path, events: int) -> _World:
    is_root = os.geteuid() == 0
    path = str(folder / "leases")
    if is_root:
        set_up_host(path)
    settings = config.load()._replace(lease_dir=path, simulate="4xh100", outer_devices=None)
    witnesses = folder / "witnesses"
    witnesses.mkdir()
    witnesses.chmod(0o1777)
    uids = (54321, 54322, 54323) if is_root else (os.getuid(),)
    snapshot = nvml.snapshot(detail="choice", settings=settings)
    return _World(find(settings), settings, snapshot, witnesses, uids, events)


def _start(world: _World, number: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _work(world, number)
        finally:  # whatever it was: a child must not go on as its parent
            _tell(world, f"error {sys.exc_info()[1]!r}")
            os._exit(1)
    return pid


def _work(world: _World, number: int) -> NoReturn:
    """Take, hold and give back for ever, as one account."""
    uid = world.uids[number % len(world.uids)]
    os.umask(0o077)
    if uid != os.getuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    dice = random.Random(os.urandom(8))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            lease = _ask(world, dice)
        except GpulabError as error:
            _tell(world, "refused" if error.exit_code == 75 else f"error {error}")
            continue
        with _witness(world, lease):
            time.sleep(dice.uniform(0.002, 0.04))
        assert lease.held is not None
        lease.held.give_up()


def _ask(world: _World, dice: random.Random) -> Lease:
    exclusive = dice.random() < 0.4
    memory = None if exclusive else dice.randrange(8, 40) * _GIB
    priority = dice.choice(("low", "normal", "normal", "high"))
    request = Request(memory_bytes=memory, exclusive=exclusive, priority=priority)
    seconds = dice.choice((0.0, 0.2, 2.0))
    told: list[object] = []
    lease = waiting.wait_for_grant(
        request, world.settings, lambda: world.snapshot, seconds, lambda *place: told.append(place)
    )
    _tell(world, "queued" if told else "granted")
    return lease


@contextlib.contextmanager
def _witness(world: _World, lease: Lease) -> Iterator[None]:
    """Bear witness while the lease is held, and look at who else does."""
    size = 0 if lease.memory_bytes is None else lease.memory_bytes
    path = world.witnesses / f"{lease.gpus[0]}:{os.getpid()}:{size}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.fchmod(fd, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        _check(world, lease, size)
        yield
        _check(world, lease, size)
    finally:
        os.unlink(path)  # before the lease ends, so that nobody who comes after sees it
        os.close(fd)


def _check(world: _World, lease: Lease, size: int) -> None:
    device = world.snapshot.device(lease.gpus[0])
    assert device is not None
    others = [_bears(path) for path in world.witnesses.glob(f"{lease.gpus[0]}:*")]
    sizes = [other for other in others if other is not None]
    total = device.memory.total_bytes or 0
    if (size == 0 and sizes) or 0 in sizes or size + sum(sizes) > total:
        _tell(world, "violation")


def _bears(path: Path) -> int | None:
    """The size that another process holds, 0 for all of the GPU; None if it does not hold it (any more)."""
    _, pid, size = path.name.split(":")
    if int(pid) == os.getpid():
        return None
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(size) if _is_running(int(pid)) and path.exists() else None
    finally:
        os.close(fd)
    return None


def _is_running(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & _EXITING


def _tell(world: _World, event: str) -> None:
    os.write(world.events, f"{event[:200]}\n".encode())


def _disturb(world: _World, pids: list[int], reading: int, seconds: float) -> Counter[str]:
    """Kill and replace processes at random, and count what they tell."""
    os.set_blocking(reading, False)
    counts: Counter[str] = Counter()
    rest, end = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(random.uniform(0.02, 0.25))
            victim = random.randrange(len(pids))
            _end(pids[victim])
            counts["killed"] += 1
            pids[victim] = _start(world, victim)
            rest = _count(counts, rest, reading)
    finally:
        for pid in pids:
            _end(pid)
    _count(counts, rest, reading)
    return counts


def _count(counts: Counter[str], rest: bytes, reading: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reading, 65536):
            rest += part
    *lines, rest = rest.split(b"\n")
    counts.update(line.decode() for line in lines)
    return rest


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _left(world: _World) -> list[str]:
    """What still lives, and what a last call does not sweep."""
    alive = [record.id for record in leases.live(world.directory)]
    alive += [record.id for record in tickets.live_tickets(world.directory)]
    with leases.guard(world.directory):
        leases.sweep(world.directory)
    return alive + [name for name in world.directory.names("") if name != "guard"]


if __name__ == "__main__":
    raise SystemExit(0 if run(*map(float, sys.argv[1:2])) else 1)

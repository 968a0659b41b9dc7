"""`%gpu acquire`, `wait` and `explain`: a kernel asks for a GPU, waits for it in sight, or asks why which."""

from __future__ import annotations

import argparse
import time

from gpulab import config
from gpulab.allocation import session, waiting
from gpulab.allocation.directory import find
from gpulab.allocation.policy import Request
from gpulab.config import Settings
from gpulab.errors import LeaseError, NoFreeGpuError
from gpulab.hardware.observe import observe
from gpulab.jupyter import turn
from gpulab.jupyter.attendant import Attendant
from gpulab.jupyter.share import attend_share
from gpulab.jupyter.turn import Turn
from gpulab.jupyter.wording import asked, ownership
from gpulab.units import format_duration, parse_bytes, parse_duration

__all__ = ["acquire", "add_options", "explain", "wait"]

_EVERY = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a request can say."""
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--memory")
    parser.add_argument("--exclusive", action="store_true", default=None)
    parser.add_argument("--policy")
    parser.add_argument("--priority", choices=("low", "normal", "high"))


def acquire(options: argparse.Namespace, attendant: Attendant) -> None:
    """Take a GPU now, or within `options.wait`; whoever interrupts the wait leaves the queue.

    Raises RequestError, NoGpuError, NoFreeGpuError, LeaseError.
    """
    seconds = parse_duration(options.wait)
    standing = _standing_turn(options)
    entered = standing or _enter(options, attendant, queue=seconds > 0)
    if entered is None:
        return
    if _watch(entered, seconds):
        _settle(entered)
        return
    if entered is not standing:
        entered.give_up()
    raise NoFreeGpuError(
        f"After {format_duration(seconds)} of waiting there is no GPU for this kernel; "
        "`%gpu` shows who has them, and `%gpu wait` waits on."
    )


def wait(options: argparse.Namespace, attendant: Attendant) -> None:
    """Wait in sight until the turn has come; whoever interrupts goes on without, and keeps the place.

    Raises RequestError, NoGpuError, LeaseError.
    """
    held = session.current()
    if held is not None:
        _say(f"this kernel waits for nothing: it has lease {held.id}, which `%gpu` shows.")
        return
    entered = _standing_turn(options) or _enter(options, attendant, queue=True)
    if entered is None:
        return
    if _watch(entered, None):
        _settle(entered)
    else:
        _say("this kernel goes on without a GPU; its place is kept, and `%gpu release` gives it up.")


def explain(options: argparse.Namespace) -> None:
    """Each device, best first, with its reason, for this kernel's own request or the one given."""
    from gpulab.allocation.leases import live_leases
    from gpulab.allocation.policy import explain as lines_of

    settings = config.load()
    request = _own_request(options, settings)
    snapshot = observe(settings=settings, detail=request.detail)
    standing = turn.current()
    ticket = None if standing is None or _is_given(options) else standing.ticket
    candidates = session.ranking(request, snapshot, live_leases(settings), settings, ticket=ticket)
    print(f"For {asked(request.gpus, request.mode, request.memory_bytes)}, as things stand now:")
    print("\n".join(lines_of(candidates)))


def _own_request(options: argparse.Namespace, settings: Settings) -> Request:
    if _is_given(options):
        return _request(options, settings)
    standing, held = turn.current(), session.current()
    if standing is not None:
        return standing.request
    if held is not None:
        return Request(len(held.gpus), held.memory_bytes, held.mode == "exclusive", settings.policy)
    return _request(options, settings)


def _is_given(options: argparse.Namespace) -> bool:
    names = "gpus", "memory", "exclusive", "policy", "priority"
    return any(getattr(options, name) is not None for name in names)


def _request(options: argparse.Namespace, settings: Settings) -> Request:
    """Raises RequestError."""
    return Request(
        gpus=1 if options.gpus is None else options.gpus,
        memory_bytes=None if options.memory is None else parse_bytes(options.memory),
        exclusive=bool(options.exclusive),
        policy=options.policy or settings.policy,
        priority=options.priority or "normal",
    ).applied(settings)


def _standing_turn(options: argparse.Namespace) -> Turn | None:
    """The turn that this kernel already waits for; another request beside it would be a second GPU."""
    standing = turn.current()
    if standing is not None and _is_given(options):
        request = standing.request
        what = asked(request.gpus, request.mode, request.memory_bytes)
        raise LeaseError(
            f"This kernel already waits for {what}; `%gpu wait` waits for that, "
            "`%gpu release` leaves the queue so that you can ask for something else."
        )
    return standing


def _enter(options: argparse.Namespace, attendant: Attendant, *, queue: bool) -> Turn | None:
    """Take a GPU that is free, and return None; otherwise take a place in the queue, if `queue`."""
    settings = config.load()
    request = _request(options, settings)
    if session.current() is None and turn.cuda_has_started():
        raise LeaseError(
            "CUDA has started in this kernel, so a GPU taken now would not be used; "
            "restart the kernel, and it asks for one again."
        )
    try:
        lease = session.acquire(
            request.gpus,
            memory=request.memory_bytes,
            exclusive=request.exclusive,
            policy=request.policy,
            priority=request.priority,
        )
    except NoFreeGpuError:
        if not queue:
            raise
    else:
        attend_share(attendant, lease)
        _say(ownership(lease, find(settings).scope))
        return None
    snapshot = observe(settings=settings, detail=request.detail)
    return turn.begin(waiting.enqueue(request, settings, snapshot), settings, attendant)


def _watch(entered: Turn, seconds: float | None) -> bool:
    """Show how the wait stands, until there is news (True), `seconds` have passed or it is interrupted."""
    from IPython.display import display

    from gpulab.jupyter.waiting_view import WaitingView

    view = WaitingView(entered)
    began, entered.quiet = time.monotonic(), True
    handle = None
    try:
        handle = display(view.now(0), display_id=True)  # type: ignore[no-untyped-call]
        while not entered.news.wait(_pause(began, seconds)):
            passed = time.monotonic() - began
            if seconds is not None and passed >= seconds:
                break
            handle.update(view.now(passed))
    except KeyboardInterrupt:
        pass
    finally:
        entered.quiet = False
    if handle is not None:
        handle.update(view.ended(time.monotonic() - began))
    return entered.news.is_set()


def _pause(began: float, seconds: float | None) -> float:
    if seconds is None:
        return _EVERY
    return max(0.0, min(_EVERY, began + seconds - time.monotonic()))


def _settle(entered: Turn) -> None:
    _say(entered.settle())


def _say(sentence: str) -> None:
    print(f"gpulab: {sentence}", flush=True)

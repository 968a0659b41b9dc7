"""GpuProvisioner: a kernel gets its GPU before it exists, or a ticket for one, and gives it back in the end.

jupyter_client calls the hooks below in the kernel's parent process (a Jupyter server, nbclient, any
KernelManager). One provisioner lives as long as its KernelManager, over all restarts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, Enum, Int, TraitError, Unicode, default
from traitlets.config import Config

from gpulab import config
from gpulab.allocation import leases
from gpulab.allocation.claims import HeldClaim
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.session import Lease
from gpulab.allocation.tickets import HeldTicket
from gpulab.errors import GpulabError
from gpulab.jupyter.decision import (
    Decision,
    Options,
    decide,
    ended,
    granted,
    kernel_environment,
    on_cpu,
    renewed,
    resume,
)
from gpulab.jupyter.interpreter import EXTENSION
from gpulab.jupyter.reclaimed import notice_for
from gpulab.jupyter.threads import in_thread

__all__ = ["GpuProvisioner"]

_OPTIONS = ("gpus", "memory", "exclusive", "policy", "on_full")


class GpuProvisioner(LocalProvisioner):
    """Starts a local kernel, in any language, with GPUs that nobody else has leased."""

    gpus = Int(1, config=True, help="How many GPUs each kernel gets.")
    memory = Unicode(
        "", config=True, help="A share of a GPU, for example 8GiB; empty (the default) for the whole GPU."
    )
    exclusive = Bool(False, config=True, help="The whole GPU, also where `memory` is given.")
    policy = Unicode("", config=True, help="How GPUs are chosen; empty for the policy of gpulab's settings.")
    on_full = Enum(
        config.ON_FULL,
        config=True,
        help="What to do if no GPU is free: queue starts the kernel at once with a place in the queue, "
        "and its GPU is attached when its turn comes (kernels that load gpulab's extension; for all "
        "others it is cpu); cpu starts it without a GPU and says so in its first message; error does "
        "not start it. The default is that of gpulab's settings.",
    )

    @default("on_full")
    def _on_full_of_settings(self) -> str:
        try:
            return config.load().on_full
        except GpulabError:
            return "cpu"  # the same error becomes the reason when the kernel starts

    def __init__(self, **kwargs: Any) -> None:
        self._decision: Decision | None = None
        self._resuming = False
        self._previous: tuple[str, ...] = ()
        self._started = False
        self._watched = False
        self._problem: str | None = None
        unknown = [name for name in kwargs if name not in self.class_trait_names()]
        known = {name: value for name, value in kwargs.items() if name not in unknown}
        if unknown:
            self._problem = _wrong_options(f"there is no option {unknown[0]!r}")
        try:
            super().__init__(**known)
        except TraitError as error:
            # Raised here, it would leave the user without a kernel and the server unable to end.
            self._problem = _wrong_options(str(error).rstrip("."))
            plain = {name: value for name, value in known.items() if name not in _OPTIONS}
            if known.get("on_full") in config.ON_FULL:
                plain["on_full"] = known["on_full"]
            super().__init__(config=Config(), **plain)

    @property
    def lease(self) -> Lease | None:
        """What this kernel holds, also where its own process has turned the ticket into it."""
        decision = self._decision
        if decision is None:
            return None
        ticket = decision.ticket
        if ticket is not None and not self._resuming and not ticket.is_held():
            found = granted(ticket)
            if found is not None:
                self._decision = decision = Decision(found, None, {})
        return decision.lease

    @property
    def ticket(self) -> HeldTicket | None:
        """The place in the queue that this kernel holds."""
        return self._decision.ticket if self._decision is not None else None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Take a lease or a ticket, or keep that of the kernel's last life, and put it into the environment.

        Never waits for a GPU. Raises KernelRefusedError at a first start with `on_full = error`.
        """
        kwargs = await super().pre_launch(**kwargs)
        environ = kernel_environment(kwargs["env"])
        decision = await self._decide(environ)
        # JupyterLab shows no error of a restart, so a restart always brings a kernel.
        if decision.reason is not None and self.on_full == "error" and not self._started:
            raise self._refusal(decision.reason)
        self._decision = decision
        kernel_id = {"GPULAB_KERNEL_ID": self.kernel_id} if self.kernel_id else {}
        try:
            notice = await in_thread(lambda: self._notice(environ))
        except BaseException:  # cancelled: nobody will hold what was taken
            self._let_go()
            raise
        kwargs["env"] = {**environ, **decision.variables, **kernel_id, **notice}
        if decision.reason is not None:
            how = "waits for a GPU" if decision.ticket is not None else "starts without a GPU"
            self.log.info("gpulab: kernel %s %s: %s", self.kernel_id, how, decision.reason)
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel with the claim's descriptor; give the claim back if that fails."""
        try:
            with self._handed_over(kwargs):
                return await super().launch_kernel(cmd, **kwargs)
        except BaseException:
            self._let_go()
            self._forget_pending()
            raise

    async def post_launch(self, **kwargs: Any) -> None:
        """Tell the lease whom it serves, once that is known."""
        await super().post_launch(**kwargs)
        self._started = True
        if not self._watched and self.parent is not None:
            # After too many deaths the server forgets the kernel without any other call.
            self.parent.add_restart_callback(self._let_go, "dead")
            self._watched = True
        held = self.lease.held if self.lease is not None else None
        if held is not None:
            notebook = (kwargs.get("env") or {}).get("JPY_SESSION_NAME") or None
            await in_thread(lambda: self._describe(held, notebook))

    async def cleanup(self, restart: bool = False) -> None:
        """Let go of lease or ticket unless the kernel is about to be restarted. Twice is fine."""
        try:
            await super().cleanup(restart=restart)
        finally:
            if not restart:
                self._let_go()

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What LocalProvisioner keeps, and the ids of lease and ticket."""
        info: dict[str, Any] = await super().get_provisioner_info()
        lease, ticket = (None if claim is None else claim.id for claim in (self.lease, self.ticket))
        return {**info, "gpulab_lease": lease, "gpulab_ticket": ticket}

    async def _decide(self, environ: dict[str, str]) -> Decision:
        lease, kept = self.lease, self._decision
        if kept is not None and lease is not None and lease.is_held():
            without = await in_thread(lambda: ended(lease, environ))
            if without is not None:
                if lease.held is not None:
                    lease.held.give_up()
                self._let_go()
                return without
            if kept.variables:
                return kept
            return await in_thread(lambda: renewed(lease, environ))
        if kept is not None and kept.ticket is not None:
            resumed = await self._resume(kept.ticket, environ)
            if resumed is not None:
                return resumed
        self._let_go()  # the kernel gave it up from inside: only the descriptor is left
        if self._problem is not None:
            return on_cpu(self._problem)
        options = Options(self.gpus, self.memory, self.exclusive, self.policy)
        queue = self.on_full == "queue" and self._loads_extension()
        return await in_thread(
            lambda: decide(options, environ, prefer=self._previous, queue=queue), late=_abandon
        )

    async def _resume(self, ticket: HeldTicket, environ: dict[str, str]) -> Decision | None:
        self._resuming = True  # meanwhile only that thread turns the ticket into a lease
        try:
            return await in_thread(lambda: resume(ticket, environ), late=_abandon_resumed)
        finally:
            self._resuming = False

    def _notice(self, environ: dict[str, str]) -> dict[str, str]:
        """Why the last kernel of the same notebook was stopped, if it was for being idle."""
        try:
            settings = config.load(environ)
        except GpulabError:
            return {}
        sentence = notice_for(environ.get("JPY_SESSION_NAME"), self.kernel_id, settings)
        return {} if sentence is None else {"GPULAB_NOTICE": sentence}

    def _loads_extension(self) -> bool:
        """Without it nobody in the kernel would hold the ticket, so it would only stand in the way."""
        return EXTENSION in getattr(self.kernel_spec, "argv", ())

    def _refusal(self, reason: str) -> Exception:
        from gpulab.jupyter.refusal import KernelRefusedError  # imports tornado's web server

        self._forget_pending()
        return KernelRefusedError(reason)

    @contextlib.contextmanager
    def _handed_over(self, kwargs: dict[str, Any]) -> Iterator[None]:
        """Pass a copy of the claim's descriptor to the kernel: the same open file, so the same lock.

        A copy, because with a caller's `preexec_fn` Python's fork hooks run in the child, and ours
        closes the original there.
        """
        claim = self._claim()
        if claim is None:
            yield
            return
        fd = os.dup(claim.fd)
        try:
            kwargs["pass_fds"] = (*kwargs.get("pass_fds", ()), fd)
            kwargs["env"] = {**kwargs["env"], f"GPULAB_{claim.kind.upper()}_FD": str(fd)}
            yield
        finally:
            os.close(fd)

    def _claim(self) -> HeldClaim | None:
        """The lease or the ticket of this kernel."""
        lease = self.lease
        return self.ticket if lease is None else lease.held

    def _describe(self, held: leases.HeldLease, notebook: str | None) -> None:
        try:
            if self.pid is not None:
                held.describe(pid=self.pid)
            readable = config.load().names == "full"
            held.annotate(kernel_id=self.kernel_id or None, notebook=notebook, readable=readable)
        except (OSError, ValueError):
            self.log.warning("gpulab: lease %s could not be described", held.id, exc_info=True)

    def _let_go(self) -> None:
        """Close our descriptor; the claim ends when the kernel's is closed too."""
        claim, lease = self._claim(), self.lease
        self._decision = None
        if lease is not None:
            self._previous = lease.gpus
        if claim is None:
            return
        directory = claim.directory
        claim.close()
        threading.Thread(target=self._sweep, args=(directory,), name="gpulab", daemon=True).start()

    def _sweep(self, directory: LeaseDirectory) -> None:
        """Tidy only: dead files count for nothing."""
        try:
            with leases.guard(directory):
                leases.sweep(directory)
        except (GpulabError, OSError):
            self.log.debug("gpulab: %s could not be swept", directory.path, exc_info=True)

    def _forget_pending(self) -> None:
        """Before a start fails: jupyter_client keeps the id as pending, and its shutdown trips over it."""
        pending = getattr(getattr(self.parent, "parent", None), "_pending_kernels", None)
        if isinstance(pending, dict):
            pending.pop(self.kernel_id, None)


def _wrong_options(what: str) -> str:
    return f"The GPU options of this kernel are wrong ({what}); correct them in its kernel.json."


def _abandon(decision: Decision) -> None:
    """The start was cancelled while a claim was taken: nobody will hold it."""
    claim = decision.ticket if decision.lease is None else decision.lease.held
    if claim is not None:
        claim.give_up()


def _abandon_resumed(decision: Decision | None) -> None:
    if decision is not None:
        _abandon(decision)

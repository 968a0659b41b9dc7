"""Kernelspecs that start their kernels through gpulab's provisioner: written, removed and listed.

A value in kernel.json beats the server's configuration, so only what was asked for is written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from typing import Any, NamedTuple

from gpulab.config import ON_FULL
from gpulab.errors import GpulabError, RequestError
from gpulab.jupyter.interpreter import EXTENSION, Interpreter, ask
from gpulab.units import format_bytes, parse_bytes

__all__ = [
    "NAME",
    "PROVISIONER",
    "SERVER_DEFAULTS",
    "Found",
    "Installed",
    "Options",
    "install",
    "listed",
    "remove",
]

NAME = "gpulab"
PROVISIONER = "gpulab-provisioner"
_LOCAL = (None, "local-provisioner", PROVISIONER)
_VALID_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_REMARK = re.compile(r" \((?:ipykernel|GPU|[0-9]+ GPUs)(?:, [^()]*)?\)$")
"""What stands behind a language's name in a display name: ipykernel's remark, or one of ours."""


class Options(NamedTuple):
    """What the provisioner is told; None and False are left to the server's configuration."""

    gpus: int | None = None
    memory: str | None = None
    exclusive: bool = False
    on_full: str | None = None

    def checked(self) -> dict[str, Any]:
        """The part of kernel.json. Raises RequestError."""
        if self.gpus is not None and self.gpus < 1:
            raise RequestError(f"{self.gpus} GPUs cannot be handed out; ask for one or more.")
        if self.memory is not None:
            parse_bytes(self.memory)
        if self.on_full not in (None, *ON_FULL):
            raise RequestError(f"on-full is {self.on_full!r}; it must be one of {', '.join(ON_FULL)}.")
        return {name: value for name, value in self._asdict().items() if value not in (None, False)}


SERVER_DEFAULTS = Options()
"""Nothing asked for, so the server's configuration decides."""


class Installed(NamedTuple):
    """Where a kernelspec now lies, and what its user should know."""

    name: str
    path: str
    notes: tuple[str, ...]


class Found(NamedTuple):
    """A kernelspec of ours that Jupyter finds."""

    name: str
    path: str
    display_name: str
    command: str
    """What it starts: a Python, or the program of another language's kernel."""
    options: dict[str, Any]


class _Draft(NamedTuple):
    spec: dict[str, Any]
    resources: str | None
    notes: tuple[str, ...] = ()
    config: dict[str, Any] = {}  # noqa: RUF012 - of a tuple, and never changed
    """What a kernelspec of ours already asks for."""


def install(
    *,
    name: str | None = None,
    display_name: str | None = None,
    options: Options = SERVER_DEFAULTS,
    source: str | None = None,
    python: str | None = None,
    user: bool = False,
    prefix: str | None = None,
) -> Installed:
    """Write a kernelspec, replacing only one of our own.

    `source` names the kernelspec to copy, in any language; `python` the interpreter of another
    environment; without either it is this Python. What a `source` of ours asks for is taken over where
    `options` say nothing. Without `user` or `prefix` it goes into this environment, or if this is the
    system's Python to the user's directory.

    Raises RequestError for what cannot be installed, GpulabError where nothing can be written.
    """
    name = _checked_name(name or (NAME if source is None else f"{NAME}-{source}"))
    asked = options.checked()
    draft = _of_python(python) if source is None else _of_kernelspec(source)
    config = {**draft.config, **asked}
    spec = {**draft.spec, "display_name": display_name or _title(draft.spec["display_name"], name, config)}
    provisioner = {"provisioner_name": PROVISIONER, **({"config": config} if config else {})}
    spec["metadata"] = {**spec.get("metadata", {}), "kernel_provisioner": provisioner}
    directory = _directory(user, prefix)
    path = _write(directory, name, spec, draft.resources)
    return Installed(name, path, (*draft.notes, *_unseen(directory)))


def remove(name: str = NAME, *, user: bool = False, prefix: str | None = None) -> str:
    """Remove a kernelspec of ours and return where it was. Raises RequestError, GpulabError."""
    path = os.path.join(_directory(user, prefix), name) if user or prefix else _all_paths().get(name)
    if path is None or not os.path.isfile(os.path.join(path, "kernel.json")):
        raise RequestError(f"There is no kernelspec {name!r} to remove; `gpulab kernel list` shows ours.")
    if not _is_ours(_read(path)):
        raise RequestError(
            f"The kernelspec {name!r} in {path} is not gpulab's; remove it with `jupyter kernelspec remove`."
        )
    try:
        _delete(path)
    except OSError as error:
        raise GpulabError(f"{path} cannot be removed ({error.strerror}); do it as its owner.") from error
    return path


def listed() -> tuple[Found, ...]:
    """Our kernelspecs that Jupyter finds, in the order of their names."""
    found = []
    for name, path in sorted(_all_paths().items()):
        spec = _read(path)
        if _is_ours(spec):
            options = spec["metadata"]["kernel_provisioner"].get("config") or {}
            command = (spec.get("argv") or [""])[0]
            found.append(Found(name, path, spec.get("display_name", name), command, options))
    return tuple(found)


def _checked_name(name: str) -> str:
    if not _VALID_NAME.fullmatch(name.lower()):
        raise RequestError(f"{name!r} cannot name a kernelspec; use letters, digits, '-', '.' and '_'.")
    return name.lower()


def _title(language: str, name: str, config: dict[str, Any]) -> str:
    """`Python 3 (GPU, 8 GiB)`: what its kernels get, and where that is another's title too, its name."""
    gpus = config.get("gpus", 1)
    parts = ["GPU" if gpus == 1 else f"{gpus} GPUs"]
    if config.get("memory"):
        parts.append(format_bytes(parse_bytes(config["memory"])).replace(".0 ", " "))
    if config.get("exclusive"):
        parts.append("exclusive")
    base = _REMARK.sub("", language)
    title = f"{base} ({', '.join(parts)})"
    others = {_read(path).get("display_name") for other, path in _all_paths().items() if other != name}
    return f"{base} ({', '.join([*parts, name])})" if title in others and name != NAME else title


def _of_python(python: str | None) -> _Draft:
    """A kernelspec for an interpreter, as its own ipykernel would write it."""
    command = sys.executable if python is None else os.path.abspath(os.path.expanduser(python))
    found = ask([command])
    if found.kernel is None:
        raise RequestError(f"{command} has no ipykernel ({found.why}); install ipykernel there first.")
    argv = [command, "-Xfrozen_modules=off", *found.kernel["argv"][1:]]
    spec = {**found.kernel, "argv": argv, "display_name": "Python 3"}
    return _with_extension(_Draft(spec, found.resources), found)


def _of_kernelspec(source: str) -> _Draft:
    """A copy of an existing kernelspec, with its resources."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        original = KernelSpecManager().get_kernel_spec(source)
    except NoSuchKernel:
        known = ", ".join(sorted(_all_paths())) or "none"
        raise RequestError(f"There is no kernelspec {source!r}; Jupyter finds {known}.") from None
    spec = _read(original.resource_dir) or original.to_dict()
    starter = (spec.get("metadata") or {}).get("kernel_provisioner", {}).get("provisioner_name")
    if starter not in _LOCAL:
        raise RequestError(
            f"Kernels of {source!r} are started by {starter!r}; gpulab can give GPUs to local kernels only."
        )
    spec.setdefault("display_name", source)
    config = spec["metadata"]["kernel_provisioner"].get("config") or {} if starter == PROVISIONER else {}
    draft = _Draft(spec, original.resource_dir, config=config)
    launcher = _launcher(spec["argv"])
    return draft if launcher is None else _with_extension(draft, ask(launcher))


def _launcher(argv: list[str]) -> list[str] | None:
    """The part of an IPython kernel's command that starts its Python; None for other kernels."""
    for place, word in enumerate(argv[1:], start=1):
        if word == "-m" and argv[place + 1 : place + 2] in (["ipykernel_launcher"], ["ipykernel"]):
            named = re.fullmatch(r"python(3(\.\d+)?)?", argv[0])  # which Jupyter takes as its own Python
            return [sys.executable if named else argv[0], *argv[1:place]]
    return None


def _with_extension(draft: _Draft, found: Interpreter) -> _Draft:
    argv = [word for word in draft.spec["argv"] if word != EXTENSION]
    if found.has_gpulab:
        return draft._replace(spec={**draft.spec, "argv": [*argv, EXTENSION]})
    note = (
        f"{argv[0]} cannot load gpulab ({found.why}), so its kernels get their GPU but no %gpu and no "
        "message; install gpulab there and install this kernelspec again."
    )
    return draft._replace(spec={**draft.spec, "argv": argv}, notes=(*draft.notes, note))


def _directory(user: bool, prefix: str | None) -> str:
    if prefix is not None:
        return os.path.join(os.path.abspath(os.path.expanduser(prefix)), "share", "jupyter", "kernels")
    conda = os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
    if user or (sys.prefix == sys.base_prefix and not conda):
        from jupyter_core.paths import jupyter_data_dir

        return os.path.join(jupyter_data_dir(), "kernels")
    return os.path.join(sys.prefix, "share", "jupyter", "kernels")


def _unseen(directory: str) -> tuple[str, ...]:
    from jupyter_core.paths import jupyter_path

    if os.path.realpath(directory) in map(os.path.realpath, jupyter_path("kernels")):
        return ()
    share = os.path.dirname(directory)
    return (f"Jupyter does not look in {share} yet; start it with JUPYTER_PATH={share}.",)


def _write(directory: str, name: str, spec: dict[str, Any], resources: str | None) -> str:
    """Put the whole kernelspec in place by a rename, so that nobody reads half of one."""
    path = os.path.join(directory, name)
    if os.path.lexists(path) and not _is_ours(_read(path)):
        raise RequestError(f"{path} is a kernelspec that is not gpulab's; choose another --name.")
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".gpulab-", dir=directory) as work:
            new = os.path.join(work, name)
            _copy(resources, new)
            with open(os.path.join(new, "kernel.json"), "w", encoding="utf-8") as file:
                json.dump(spec, file, indent=1)
            if os.path.lexists(path):
                os.rename(path, os.path.join(work, "old"))
            os.rename(new, path)
    except OSError as error:
        raise GpulabError(
            f"The kernelspec cannot be written to {path} ({error.strerror}); "
            "try --user, or --prefix with a directory of your own."
        ) from error
    return path


def _copy(resources: str | None, new: str) -> None:
    if resources is None:
        os.mkdir(new)
        return
    shutil.copytree(resources, new, ignore=shutil.ignore_patterns("kernel.json"))
    os.chmod(new, 0o755)  # noqa: S103 - the original may be read-only, and everybody's kernels read it


def _all_paths() -> dict[str, str]:
    from jupyter_client.kernelspec import KernelSpecManager

    return KernelSpecManager().find_kernel_specs()


def _read(path: str) -> dict[str, Any]:
    """A kernel.json; empty if there is none that can be read."""
    try:
        with open(os.path.join(path, "kernel.json"), encoding="utf-8") as file:
            spec = json.load(file)
    except (OSError, ValueError):
        return {}
    return spec if isinstance(spec, dict) else {}


def _is_ours(spec: dict[str, Any]) -> bool:
    provisioner = (spec.get("metadata") or {}).get("kernel_provisioner") or {}
    return bool(provisioner.get("provisioner_name") == PROVISIONER)


def _delete(path: str) -> None:
    os.unlink(path) if os.path.islink(path) else shutil.rmtree(path)

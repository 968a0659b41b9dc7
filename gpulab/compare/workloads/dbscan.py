"""DBSCAN on two noisy circles: scikit-learn's trees against cuML's brute force.

The radius shrinks with the number of points, so that a point has about the same number of
neighbours at every size. With a fixed radius that number grows with the size, and a sweep would
show how scikit-learn stores neighbours, not how the two compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpulab.compare.backend import Backend, CupyBackend, Parameters
from gpulab.compare.workload import Workload
from gpulab.limits import dbscan_batch_mbytes

if TYPE_CHECKING:
    from gpulab.compare.arrays import Arrays
    from gpulab.compare.results.records import Parity

__all__ = ["WORKLOADS", "CumlDbscan", "Dbscan", "SklearnDbscan"]

MIN_SAMPLES = 5
INNER_RADIUS, NOISE = 0.55, 0.04
"""Of circles around an outer radius of 1: far enough apart that noise never joins them."""
AREA_PER_NEIGHBOUR = 7.5
"""eps = sqrt(this / n): 15 to 20 neighbours a point, so that each circle holds together as one cluster."""
SAMPLED_POINTS = 2_000
STORED_BYTES = 8 * 1.5
"""scikit-learn keeps an 8-byte index for every neighbour of every point, and more while it joins them."""


class SklearnDbscan(Backend):
    """scikit-learn with one of its trees, on one thread or on all."""

    library = interface = "scikit-learn"
    remedy = "install it with: pip install scikit-learn"
    modules = ("sklearn.cluster",)

    def __init__(self, name: str, algorithm: str, jobs: int | None) -> None:
        self.name = name
        self.algorithm = algorithm
        self.jobs = jobs
        self.title = f"scikit-learn {algorithm}"

    def threads(self) -> int | None:
        import joblib

        return int(joblib.effective_n_jobs(self.jobs))

    def compute(self, inputs: Any, parameters: Parameters) -> Any:
        from sklearn.cluster import DBSCAN

        model = DBSCAN(
            eps=parameters["eps"],
            min_samples=int(parameters["min_samples"]),
            algorithm=self.algorithm,
            n_jobs=self.jobs,
        ).fit(inputs["points"])
        return {"labels": model.labels_, "core": model.core_sample_indices_}


class CumlDbscan(CupyBackend):
    """cuML's brute force: every distance, in batches."""

    name = "cuml"
    title = "cuML brute"
    library = "cuML"
    interface = "scikit-learn"
    modules = ("cupy", "cuml.cluster")

    def transfer_in(self, prepared: Any) -> Any:
        import cupy

        return cupy.asarray(prepared["points"])

    def compute(self, inputs: Any, parameters: Parameters) -> Any:
        from cuml.cluster import DBSCAN

        model = DBSCAN(
            eps=parameters["eps"],
            min_samples=int(parameters["min_samples"]),
            algorithm="brute",
            output_type="cupy",
            max_mbytes_per_batch=dbscan_batch_mbytes(),
        ).fit(inputs, out_dtype="int32")
        return {"labels": model.labels_, "core": model.core_sample_indices_}


class Dbscan(Workload):
    """The workload."""

    name = "dbscan"
    title = "DBSCAN clustering of two circles"
    teaches = (
        "A GPU that computes every distance meets trees that compute few: below some size the trees win, "
        "and one parameter, eps, decides how much work there is at all."
    )
    unit = "points"
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    pilot_size = 500
    backends: tuple[Backend, ...] = (
        SklearnDbscan("sklearn-auto", "auto", None),
        SklearnDbscan("sklearn-ball-tree", "ball_tree", None),
        SklearnDbscan("sklearn-ball-tree-threads", "ball_tree", -1),
        CumlDbscan(),
    )

    def data_bytes(self, size: int) -> int:
        """Both circles in float64, shuffled, with noise, and the float32 copy."""
        return size * 100

    def make_data(self, size: int, seed: int) -> Arrays:
        """`points` of shape (size, 2), float32: every backend gets the very same numbers."""
        import numpy as np
        from sklearn.datasets import make_circles

        points, _ = make_circles(n_samples=size, factor=INNER_RADIUS, noise=NOISE, random_state=seed)
        return {"points": np.ascontiguousarray(points, dtype=np.float32)}

    def parameters(self, size: int) -> dict[str, float]:
        """`eps` is a float32 number, for cuML rounds it to one."""
        import numpy as np

        return {"eps": float(np.float32((AREA_PER_NEIGHBOUR / size) ** 0.5)), "min_samples": MIN_SAMPLES}

    def facts(self, data: Arrays, parameters: Parameters) -> dict[str, float]:
        """The mean number of neighbours within eps, the point itself included, from a sample."""
        import numpy as np
        from sklearn.neighbors import KDTree

        points = data["points"]
        chosen = np.random.default_rng(0).choice(len(points), min(SAMPLED_POINTS, len(points)), replace=False)
        counts = KDTree(points).query_radius(points[chosen], parameters["eps"], count_only=True)
        return {"neighbours_per_point": float(counts.mean())}

    def memory_bytes(self, size: int, facts: Mapping[str, float]) -> int:
        """The stored neighbours, and the points with their tree."""
        return int(size * (facts["neighbours_per_point"] * STORED_BYTES + 100))

    def check(self, data: Arrays, parameters: Parameters, reference: Arrays, candidate: Arrays) -> Parity:
        """See `gpulab.compare.parity.clusters.compare_clusterings`."""
        from gpulab.compare.parity.clusters import Clustering, compare_clusterings

        return compare_clusterings(
            data["points"],
            parameters["eps"],
            Clustering.from_indices(reference["labels"], reference["core"]),
            Clustering.from_indices(candidate["labels"], candidate["core"]),
        )


WORKLOADS = {"dbscan": Dbscan()}

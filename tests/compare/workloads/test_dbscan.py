"""The workload's data, radius, estimates and check, on real data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import DBSCAN

from gpulab.compare.workloads.dbscan import INNER_RADIUS, WORKLOADS

WORKLOAD = WORKLOADS["dbscan"]


def test_the_same_seed_gives_the_same_float32_data_and_another_seed_others() -> None:
    first, again, other = (WORKLOAD.make_data(1000, seed)["points"] for seed in (1, 1, 2))
    assert (first.shape, first.dtype) == ((1000, 2), np.float32)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_eps_is_a_float32_number_so_that_no_side_rounds_it() -> None:
    for size in (1000, 12_345, 10**6):
        eps = WORKLOAD.parameters(size)["eps"]
        assert eps == float(np.float32(eps))


def test_neighbours_per_point_stay_nearly_constant_over_the_sizes() -> None:
    means = []
    for size in (1_000, 10_000, 40_000, 160_000):
        data, parameters = WORKLOAD.make_data(size, 0), WORKLOAD.parameters(size)
        means.append(WORKLOAD.facts(data, parameters)["neighbours_per_point"])
    assert 10 <= min(means) <= max(means) <= 20
    assert max(means[1:]) / min(means[1:]) < 1.1


@pytest.mark.parametrize("size", [1_000, 4_000, 10_000, 100_000])
def test_each_circle_is_one_cluster_and_little_is_noise(size: int) -> None:
    points, parameters = (
        WORKLOAD.make_data(size, 0)["points"],
        WORKLOAD.parameters(size),
    )
    labels = DBSCAN(eps=parameters["eps"], min_samples=5).fit_predict(points)
    first, second = np.argsort(np.bincount(labels[labels >= 0]))[::-1][:2]
    outside = np.linalg.norm(points, axis=1) > (1 + INNER_RADIUS) / 2
    counts = [int((labels == label).sum()) for label in (first, second)]
    assert counts == pytest.approx([size / 2, size / 2], rel=0.1)
    assert sum(counts) > 0.9 * size
    sides = [set(outside[labels == label]) for label in (first, second)]
    assert sorted(map(sorted, sides)) == [[False], [True]], "one cluster a circle, none across the gap"


def test_the_sampled_number_of_neighbours_is_that_of_all_points() -> None:
    data, parameters = WORKLOAD.make_data(1500, 0), WORKLOAD.parameters(1500)
    points = data["points"].astype(float)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    expected = (distances <= parameters["eps"]).sum() / 1500
    assert WORKLOAD.facts(data, parameters)["neighbours_per_point"] == pytest.approx(expected)


def test_the_articles_own_example_is_estimated_near_the_memory_it_was_seen_to_need() -> None:
    estimate = WORKLOAD.memory_bytes(100_000, {"neighbours_per_point": 5763.0})
    assert 6e9 < estimate < 8e9


def test_the_check_takes_labels_and_core_indices_as_the_libraries_give_them() -> None:
    data, parameters = WORKLOAD.make_data(1200, 0), WORKLOAD.parameters(1200)
    model = DBSCAN(eps=parameters["eps"], min_samples=5).fit(data["points"])
    result = {"labels": model.labels_, "core": model.core_sample_indices_}
    padded = np.full(1200, -1, dtype=np.int32)
    padded[: len(result["core"])] = result["core"]
    gpu_like = {"labels": model.labels_.astype(np.int32), "core": padded}
    assert WORKLOAD.check(data, parameters, result, gpu_like).state == "same"

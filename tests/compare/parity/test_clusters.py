"""The check of DBSCAN, on scikit-learn's own results and on results that were tampered with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import DBSCAN

from gpulab.compare.parity.clusters import Clustering, compare_clusterings
from gpulab.compare.workloads.dbscan import WORKLOADS

SIZE = 3000
POINTS = WORKLOADS["dbscan"].make_data(SIZE, seed=3)["points"]
EPS = WORKLOADS["dbscan"].parameters(SIZE)["eps"] * 0.6


def clustered(points: Any = POINTS, eps: float = EPS, algorithm: str = "auto") -> Clustering:
    model = DBSCAN(eps=eps, min_samples=5, algorithm=algorithm).fit(points)
    return Clustering.from_indices(model.labels_, model.core_sample_indices_)


REFERENCE = clustered()


def tampered(**changes: Any) -> Clustering:
    """A copy with {index: value} put into labels or core."""
    copy = Clustering(REFERENCE.labels.copy(), REFERENCE.core.copy())
    for name, values in changes.items():
        for index, value in values.items():
            getattr(copy, name)[index] = value
    return copy


def first(mask: Any) -> int:
    return int(np.flatnonzero(mask)[0])


def test_the_data_hold_every_kind_of_point() -> None:
    border = ~REFERENCE.core & (REFERENCE.labels >= 0)
    assert border.sum() > 50
    assert (REFERENCE.labels == -1).sum() > 20
    assert len(set(REFERENCE.labels.tolist())) > 5


@pytest.mark.parametrize("algorithm", ["kd_tree", "ball_tree", "brute"])
def test_scikit_learns_algorithms_agree(algorithm: str) -> None:
    found = compare_clusterings(POINTS, EPS, REFERENCE, clustered(algorithm=algorithm))
    assert (found.state, found.score) == ("same", 1.0)


def test_other_numbers_for_the_same_clusters_are_the_same_result() -> None:
    labels = REFERENCE.labels
    renamed = np.where(labels >= 0, labels.max() - labels, -1)
    assert compare_clusterings(POINTS, EPS, REFERENCE, Clustering(renamed, REFERENCE.core)).state == "same"


def test_a_border_point_may_go_to_either_of_two_clusters_within_reach() -> None:
    line = np.array([[x, 0.0] for x in (0, 0.1, 0.2, 0.3, 1.2, 2.1, 2.2, 2.3, 2.4)], dtype=np.float32)
    model = DBSCAN(eps=0.95, min_samples=4).fit(line)
    reference = Clustering.from_indices(model.labels_, model.core_sample_indices_)
    assert reference.labels.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert not reference.core[4]
    other = Clustering(reference.labels.copy(), reference.core)
    other.labels[4] = 1
    assert compare_clusterings(line, 0.95, reference, other).state == "same"


def test_a_swapped_border_label_is_caught() -> None:
    index = first(~REFERENCE.core & (REFERENCE.labels >= 0))
    elsewhere = (REFERENCE.labels[index] + 1) % (REFERENCE.labels.max() + 1)
    found = compare_clusterings(POINTS, EPS, REFERENCE, tampered(labels={index: elsewhere}))
    assert found.state == "different"
    assert f"1 (first index {index})" in found.message


def test_a_core_point_too_few_is_caught() -> None:
    index = first(REFERENCE.core)
    found = compare_clusterings(POINTS, EPS, REFERENCE, tampered(core={index: False}))
    assert (found.state, found.message) == ("different", f"core points that differ: 1 (first index {index})")


def test_noise_called_a_border_point_is_caught_and_so_is_the_reverse() -> None:
    noise, border = first(REFERENCE.labels == -1), first(~REFERENCE.core & (REFERENCE.labels >= 0))
    for change in ({noise: 0}, {border: -1}):
        found = compare_clusterings(POINTS, EPS, REFERENCE, tampered(labels=change))
        assert found.state == "different"
        assert "noise points that differ: 1" in found.message


def test_two_clusters_made_one_are_caught_and_so_is_a_core_point_in_another_cluster() -> None:
    merged = np.where(REFERENCE.labels == 1, 0, REFERENCE.labels)
    moved = first(REFERENCE.core & (REFERENCE.labels == 0))
    for candidate in (Clustering(merged, REFERENCE.core), tampered(labels={moved: 1})):
        found = compare_clusterings(POINTS, EPS, REFERENCE, candidate)
        assert found.state == "different"
        assert "grouped differently" in found.message
        assert found.score is not None
        assert found.score < 1.0


def test_a_wrong_eps_is_caught() -> None:
    assert compare_clusterings(POINTS, EPS, REFERENCE, clustered(eps=EPS * 1.01)).state == "different"


def test_labels_of_another_length_and_no_clusters_at_all_are_no_crash() -> None:
    short = Clustering(REFERENCE.labels[:-1], REFERENCE.core[:-1])
    assert compare_clusterings(POINTS, EPS, REFERENCE, short).state == "different"
    nothing = Clustering(np.full(SIZE, -1), np.zeros(SIZE, dtype=bool))
    assert compare_clusterings(POINTS, EPS, REFERENCE, nothing).state == "different"
    assert compare_clusterings(POINTS, EPS, nothing, nothing).state == "same"


def two_groups(gap: float) -> tuple[Any, Clustering, Clustering]:
    """Two groups whose nearest points lie `gap` apart, read as one cluster and as two (eps is 1)."""
    left = np.array([[-x, 0.0] for x in (0, 0.1, 0.2, 0.3, 0.4)])
    points = np.concatenate([left, np.array([gap, 0.0]) - left])
    core = np.ones(10, dtype=bool)
    return points, Clustering(np.zeros(10, dtype=int), core), Clustering(np.repeat([0, 1], 5), core)


def test_a_distance_equal_to_eps_but_for_rounding_is_a_tie() -> None:
    points, joined, apart = two_groups(1.0 + 2e-7)
    found = compare_clusterings(points, 1.0, joined, apart)
    assert found.state == "tie"
    assert "rounding" in found.message


def test_a_distance_clearly_off_eps_is_no_tie() -> None:
    points, joined, apart = two_groups(1.0 + 1e-4)
    assert compare_clusterings(points, 1.0, joined, apart).state == "different"


def test_a_tie_elsewhere_excuses_no_other_difference() -> None:
    points, joined, apart = two_groups(1.0 + 2e-7)
    far = points + np.array([100.0, 0.0])
    labels = np.concatenate([joined.labels, np.repeat([1, 2], 5)])
    wrong = np.concatenate([apart.labels, np.array([2, 2, 2, 2, 3, 3, 3, 3, 3, 3])])
    core = np.ones(20, dtype=bool)
    both = np.concatenate([points, far])
    found = compare_clusterings(both, 1.0, Clustering(labels, core), Clustering(wrong, core))
    assert found.state == "different"


def test_padding_of_the_core_indices_is_left_out() -> None:
    found = Clustering.from_indices(np.zeros(4, dtype=int), np.array([0, 2, -1, -1]))
    assert found.core.tolist() == [True, False, True, False]

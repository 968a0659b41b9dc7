"""Exceptions: one base, and the exit status of each."""

from __future__ import annotations

import pytest

from gpulab import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_gpulab_error_with_an_exit_status(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.GpulabError)
    assert kind.exit_code in (64, 69, 75, 125)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.RequestError, ValueError),
        (errors.ConfigError, ValueError),
        (errors.ScenarioError, ValueError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_errors_that_python_has_a_word_for_can_be_caught_by_it(
    kind: type[Exception], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin):
        raise kind("what happened; what to do next.")


def test_the_exit_statuses_are_those_of_the_contract() -> None:
    assert errors.NoFreeGpuError.exit_code == 75
    assert errors.NoGpuError.exit_code == 69
    assert errors.RequestError.exit_code == 64
    assert errors.LeaseError.exit_code == 125

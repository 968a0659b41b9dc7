"""Why a kernel was stopped: kept for the next kernel of its notebook, given out once, gone after a week."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from gpulab.jupyter import reclaimed
from gpulab.jupyter.reclaimed import Reclaimed, notice_for, reclaimed_path, remember
from gpulab.settings import Settings


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=str(tmp_path / "data"))


def entry(name: str, *, age: float = 0.0, kernel_id: str | None = None) -> Reclaimed:
    return Reclaimed(time.time() - age, f"{name} was stopped.", f"/home/ann/{name}.ipynb", kernel_id)


def another_process() -> None:
    """It knows only what lies in the file."""
    reclaimed._here.clear()


def test_the_next_kernel_of_the_notebook_is_told_and_the_one_after_it_is_not(settings):
    remember(entry("a"), settings)
    remember(entry("b"), settings)
    another_process()
    assert notice_for("/home/ann/a.ipynb", "new", settings) == "a was stopped."
    assert notice_for("/home/ann/a.ipynb", "newer", settings) is None
    assert notice_for("/home/ann/b.ipynb", None, settings) == "b was stopped."


def test_a_kernel_that_comes_back_under_its_own_id_is_told_without_a_notebook(settings):
    remember(Reclaimed(time.time(), "k was stopped.", None, "k"), settings)
    assert notice_for(None, "other", settings) is None
    assert notice_for(None, "k", settings) == "k was stopped."


def test_of_two_stops_of_one_notebook_the_last_one_counts(settings):
    remember(entry("a", age=60, kernel_id="k"), settings)
    remember(entry("a")._replace(sentence="again."), settings)
    assert notice_for("/home/ann/a.ipynb", None, settings) == "again."
    assert notice_for("/home/ann/a.ipynb", "k", settings) is None


def test_a_stop_that_did_not_happen_is_forgotten(settings):
    happened, other = entry("a"), entry("b")
    remember(happened, settings)
    remember(other, settings)
    reclaimed.forget(other, settings)
    another_process()
    assert notice_for("/home/ann/b.ipynb", None, settings) is None
    assert notice_for("/home/ann/a.ipynb", None, settings) == "a was stopped."


def test_after_a_week_nobody_wants_to_know(settings):
    remember(entry("old", age=8 * 86400), settings)
    remember(entry("new", age=6 * 86400), settings)
    assert notice_for("/home/ann/old.ipynb", None, settings) is None
    assert notice_for("/home/ann/new.ipynb", None, settings) == "new was stopped."


def test_the_file_stays_small_and_is_the_accounts_own(settings):
    for number in range(130):
        remember(entry(str(number), age=130 - number), settings)
    kept = json.loads(Path(reclaimed_path(settings)).read_text())
    assert len(kept) == 100
    assert kept[-1]["notebook"] == "/home/ann/129.ipynb"
    assert stat.S_IMODE(os.stat(reclaimed_path(settings)).st_mode) == 0o600


@pytest.mark.parametrize(
    "content", ["{", '"x"', '[1, {"time": "soon"}, null]', "[" * 5000, '[{"time": 1e400}]']
)
def test_a_damaged_file_says_nothing_and_is_written_anew(settings, content):
    os.makedirs(settings.machine_dir)
    with open(reclaimed_path(settings), "w") as file:
        file.write(content)
    assert notice_for("/home/ann/a.ipynb", "k", settings) is None
    remember(entry("a"), settings)
    another_process()
    assert notice_for("/home/ann/a.ipynb", None, settings) == "a was stopped."


def test_where_nothing_can_be_written_the_server_itself_still_knows(settings, tmp_path):
    (tmp_path / "data").write_text("a file where a directory should be")
    remember(entry("a"), settings)
    assert notice_for("/home/ann/a.ipynb", None, settings) == "a was stopped."
    assert notice_for("/home/ann/a.ipynb", None, settings) is None

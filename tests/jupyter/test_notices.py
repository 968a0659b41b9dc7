"""What a kernel's user is told, and that each thing is told once."""

from __future__ import annotations

import os
import re
import time

import pytest

import gpulab
from gpulab.allocation import stopping
from gpulab.jupyter.notices import Notices, attend, idle_notice, stopped_for_idleness
from gpulab.settings import Settings

HOUR = 3600.0


class Page:
    """The attendant's part: what would stand under the cells."""

    def __init__(self):
        self.shown: list[str] = []
        self.duties: list[object] = []

    def say(self, sentence, **_):
        self.shown.append(sentence)

    def attend(self, duty, _):
        self.duties.append(duty)


@pytest.fixture
def lease(monkeypatch):
    monkeypatch.setenv("GPULAB_SIMULATE", "1xt4")
    with gpulab.acquire(wait=0) as held:
        yield held


@pytest.fixture
def rules(monkeypatch):
    def tighten(on_idle):
        monkeypatch.setenv("GPULAB_IDLE_AFTER", "1h")
        monkeypatch.setenv("GPULAB_ON_IDLE", on_idle)

    return tighten


def minutes_ago(minutes):
    return time.time() - 60 * minutes


def test_an_idle_kernel_is_told_once_for_each_rest(lease, rules):
    rules("stop")
    page = Page()
    notices = Notices(page)
    notices()
    assert page.shown == []
    lease.held.describe(idle_since=minutes_ago(61))
    notices()
    notices()
    assert len(page.shown) == 1
    lease.held.describe()  # at work
    notices()
    assert len(page.shown) == 1
    lease.held.describe(idle_since=minutes_ago(60))
    notices()
    assert len(page.shown) == 2


def test_it_is_told_when_it_will_be_stopped_and_what_to_do(lease, rules):
    rules("stop")
    page = Page()
    lease.held.describe(idle_since=minutes_ago(60))
    before = time.time()
    Notices(page)()
    (sentence,) = page.shown
    stop_at = re.search(r"stop it at (?:[0-9-]+ )?([0-9:]{8});", sentence)[1]
    due = {time.strftime("%H:%M:%S", time.localtime(before + 600 + late)) for late in range(-1, 30)}
    assert stop_at in due, "ten minutes from the notice"
    assert "run a cell to keep it" in sentence
    assert "save what you need" in sentence


def test_where_idle_kernels_are_not_stopped_it_says_so_by_not_threatening(lease, rules):
    rules("notice")
    page = Page()
    lease.held.describe(idle_since=minutes_ago(60))
    Notices(page)()
    assert "give it back with `%gpu release`" in page.shown[0]
    assert "stop" not in page.shown[0]


def test_where_nothing_is_to_happen_nothing_is_said(lease, rules):
    rules("nothing")
    page = Page()
    lease.held.describe(idle_since=minutes_ago(60))
    Notices(page)()
    assert page.shown == []


def test_a_request_to_stop_is_shown_once_in_its_own_words(lease):
    page = Page()
    notices = Notices(page)
    stopping.request_stop(lease.held.directory, lease.id, "The administrator ends it; save what you need.")
    notices()
    notices()
    assert page.shown == ["The administrator ends it; save what you need."]
    stopping.withdraw(lease.held.directory, lease.id)
    notices()
    assert len(page.shown) == 1


def test_after_a_release_nothing_is_said_any_more(lease, rules):
    rules("stop")
    page = Page()
    lease.held.describe(idle_since=minutes_ago(60))
    lease.release()
    Notices(page)()
    assert page.shown == []


def test_what_became_of_the_last_kernel_is_said_with_the_first_cell():
    page = Page()
    attend(page, Settings(notice="it was stopped."))
    attend(page, Settings())
    assert page.shown == ["it was stopped."]
    assert len(page.duties) == 2


@pytest.fixture
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_of_another_day_have_their_date(utc):
    noon = 1_800_014_400.0  # 2027-01-15 12:00 UTC
    assert "since 11:00:00, and" in idle_notice(noon - HOUR, noon + 600, noon)
    assert "at 12:10:00;" in idle_notice(noon - HOUR, noon + 600, noon)
    assert "since 2027-01-14 11:00:00" in idle_notice(noon - 25 * HOUR, None, noon)
    sentence = stopped_for_idleness(noon, noon - HOUR, 70 * 60)
    assert "stopped at 2027-01-15 12:00:00: it had not used its GPU since 11:00:00" in sentence
    assert "after 1 h 10 min" in sentence


def test_a_forked_child_has_nothing_to_say(lease, rules):
    rules("stop")
    page = Page()
    lease.held.describe(idle_since=minutes_ago(60))
    child = os.fork()
    if child == 0:
        Notices(page)()
        os._exit(len(page.shown))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""A watch lasts as long as whoever keeps it, whatever becomes of that process, and nobody can misuse it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.telemetry.sampling import watches
from gpulab.telemetry.sampling.watches import Watches, watch, watches_path

WATCH = """
from gpulab import config
from gpulab.telemetry.sampler import watch
kept = watch(config.load())
print(kept.active, flush=True)
input()
"""
NOBODY = watches.Watched(active=False, links=False)


@pytest.fixture
def seen(settings: Settings) -> Watches:
    return Watches(watches_path(settings))


def test_it_lasts_until_it_is_closed_and_says_whether_links_are_wanted(
    settings: Settings, seen: Watches
) -> None:
    assert seen.look() == NOBODY
    with watch(settings) as plain:
        assert plain.active
        assert seen.look() == (True, False)
        with watch(settings, links=True):
            assert seen.look() == (True, True)
        assert seen.look() == (True, False)
    assert seen.look() == NOBODY
    assert not plain.active
    plain.close()
    assert os.listdir(seen.directory) == []


def test_the_first_watch_makes_its_place(settings: Settings) -> None:
    os.rmdir(settings.machine_dir)
    with watch(settings) as first:
        assert first.active
        assert Watches(watches_path(settings)).look().active


def test_where_it_cannot_be_it_is_told_and_nothing_raises(
    own_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_machine / "file").write_text("")
    monkeypatch.setenv("GPULAB_DATA_DIR", str(own_machine / "file" / "below"))
    with watch(config.load()) as nothing:
        assert not nothing.active


def test_one_that_cannot_look_sees_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Watches(str(tmp_path / "file")).look() == NOBODY


def test_whoever_is_killed_watches_no_longer(settings: Settings, seen: Watches) -> None:
    watcher = subprocess.Popen([sys.executable, "-c", WATCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == b"True\n"
    assert seen.look().active
    watcher.send_signal(signal.SIGKILL)
    watcher.communicate()
    assert seen.look() == NOBODY
    assert os.listdir(seen.directory) == []  # it is tidied up


def test_a_forked_child_neither_keeps_it_nor_ends_it(
    settings: Settings, seen: Watches, until: Callable[..., None]
) -> None:
    kept = watch(settings)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept.close()
            os.write(ready[1], b"1" if kept.active else b"0")
            os.read(go[0], 1)
        finally:
            os._exit(0)
    assert os.read(ready[0], 1) == b"0"
    assert seen.look().active  # the child's close was none of ours
    kept.close()
    assert seen.look() == NOBODY
    os.write(go[1], b".")
    os.waitpid(child, 0)
    for descriptor in (*ready, *go):
        os.close(descriptor)


def test_a_program_that_is_started_meanwhile_keeps_nothing(settings: Settings, seen: Watches) -> None:
    with watch(settings):
        program = subprocess.Popen(["sleep", "60"], close_fds=False)
    assert seen.look() == NOBODY
    program.kill()
    program.wait()


def test_only_locked_plain_files_count(
    seen: Watches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(seen.directory)
    outside = tmp_path / "outside"
    outside.write_text("links\n")
    (place / "watch-1").write_text("links\n")
    (place / "watch-2").symlink_to(outside)
    os.mkfifo(place / "watch-3")
    (place / "watch-4").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        with monkeypatch.context() as patch:
            patch.chdir(place)  # a socket's path may not be long
            listener.bind("watch-5")
        assert seen.look() == NOBODY
    assert outside.read_text() == "links\n"
    assert "watch-1" not in os.listdir(place)


def test_one_that_is_just_being_made_is_not_tidied_up(seen: Watches) -> None:
    young, old = Path(seen.directory, ".new-1"), Path(seen.directory, ".new-2")
    young.touch()
    old.touch()
    os.utime(old, (0, 0))
    assert seen.look() == NOBODY
    assert os.listdir(seen.directory) == [young.name]


def test_a_flood_of_files_is_cleared_away_and_hides_no_watch_for_long(
    settings: Settings, seen: Watches, until: Callable[..., None]
) -> None:
    for number in range(3000):
        Path(seen.directory, f"watch-{number}").touch()
    with watch(settings, links=True):
        seen.look()
        assert len(os.listdir(seen.directory)) > 2700  # one look costs no more than that
        until(lambda: seen.look() == (True, True), "the watch in the flood")
        until(lambda: seen.look().links and len(os.listdir(seen.directory)) == 1, "the end of the flood")


def test_a_flood_of_what_is_no_file_is_cleared_away_too(settings: Settings, seen: Watches) -> None:
    place = Path(seen.directory)
    for number in range(300):
        (place / f"directory-{number}").mkdir()
        os.mkfifo(place / f"fifo-{number}")
        (place / f"link-{number}").symlink_to("/dev/zero")
    with watch(settings):
        for _ in range(4):
            assert seen.look().active
        assert len(os.listdir(place)) == 1


def test_watches_beyond_an_owners_share_are_removed_though_they_are_locked(
    settings: Settings, seen: Watches
) -> None:
    many = [watch(settings) for _ in range(40)]
    assert seen.look().active
    assert len(os.listdir(seen.directory)) == 32
    for kept in many:
        kept.close()
    assert seen.look() == NOBODY

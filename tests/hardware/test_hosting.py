"""Which record of a host is believed: one that only its publishers, this account or root can have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware import hosting, record
from gpulab.hardware.devices import Device, DriverState, Snapshot

ALICE, BOB, SERVICE = 54321, 54322, 64321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")


@pytest.fixture
def settings() -> Settings:
    return config.load()


@pytest.fixture
def served(settings: Settings) -> Iterator[Path]:
    """The directory of a service that publishes, in this account's lease directory."""
    machine = Path(hosting.machine_path(settings))
    machine.parent.mkdir(mode=0o700)
    machine.mkdir(mode=0o755)
    os.mkfifo(machine / "wake")
    listening = os.open(machine / "wake", os.O_RDWR)
    record.publish(snapshot("host"), settings, host=True, history="/somewhere/history.sqlite")
    yield machine
    os.close(listening)


def snapshot(name: str, age: float = 0.0) -> Snapshot:
    return Snapshot(time.time() - age, DriverState(), (Device(0, "GPU-a", name),))


def name_of(settings: Settings, max_age: float | None = None) -> str | None:
    found = record.latest(settings, max_age=max_age)
    return None if found is None else found.devices[0].name


def is_believed(settings: Settings) -> bool:
    """All three questions have one answer."""
    answers = {
        hosting.serving(settings),
        hosting.history_path(settings) == "/somewhere/history.sqlite",
        name_of(settings) == "host",
    }
    assert len(answers) == 1, answers
    return answers.pop()


def test_the_hosts_record_comes_before_the_accounts_own(settings: Settings, served: Path) -> None:
    os.makedirs(settings.machine_dir)
    record.publish(snapshot("own"), settings)
    assert is_believed(settings)
    assert name_of(settings, max_age=3) == "host"
    found = record.latest(settings)
    assert found is not None
    assert found.source == "sampler"
    assert served / "latest.json" == Path(record.paths(settings)[0])


def test_without_a_service_nothing_is_served(settings: Settings) -> None:
    assert not hosting.serving(settings)
    assert hosting.history_path(settings) is None
    assert hosting.trusted(settings) is None


def test_a_service_that_has_just_died_is_known_at_once(settings: Settings, served: Path) -> None:
    os.unlink(served / "wake")
    os.mkfifo(served / "wake")  # nobody reads there any more
    assert not hosting.serving(settings)
    assert hosting.history_path(settings) is None
    assert name_of(settings, max_age=3) == "host"  # its last word is still the newest
    os.makedirs(settings.machine_dir)
    record.publish(snapshot("own"), settings)
    assert name_of(settings, max_age=3) == "own"


@pytest.mark.parametrize("age", [3.5, 3600.0, -3600.0])
def test_a_service_that_publishes_no_longer_is_none(settings: Settings, served: Path, age: float) -> None:
    record.publish(snapshot("host", age), settings, host=True)
    os.utime(served / "latest.json", (time.time() - age, time.time() - age))
    os.makedirs(settings.machine_dir)
    record.publish(snapshot("own", 60), settings)
    assert not hosting.serving(settings)
    assert name_of(settings) == "own"
    assert record.latest(settings, max_age=3) is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "null", '{"time": "x"}', "[" * 100_000, "é", '{"history": "x"}']
)
def test_a_record_that_cannot_be_read_is_none(settings: Settings, served: Path, content: str) -> None:
    (served / "latest.json").write_text(content)
    assert record.latest(settings) is None
    assert hosting.history_path(settings) is None


@pytest.mark.parametrize("history", [None, 3, "", "relative/path", ["/x"]])
def test_a_history_without_an_absolute_path_is_none(
    settings: Settings, served: Path, history: object
) -> None:
    (served / "latest.json").write_text(json.dumps({**snapshot("host").to_dict(), "history": history}))
    assert hosting.history_path(settings) is None
    assert name_of(settings) == "host"


def test_links_are_not_followed(settings: Settings, served: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    for path in (served / "latest.json", served, served.parent):
        path.rename(target)
        path.symlink_to(target)
        assert not is_believed(settings)
        path.unlink()
        target.rename(path)
        assert is_believed(settings)


def test_a_record_that_is_no_plain_file_is_none(settings: Settings, served: Path) -> None:
    (served / "latest.json").unlink()
    os.mkfifo(served / "latest.json")
    assert not is_believed(settings)  # and nobody waits for a writer
    (served / "latest.json").unlink()
    (served / "latest.json").mkdir()
    assert not is_believed(settings)


def test_where_others_could_write_nothing_is_believed(settings: Settings, served: Path) -> None:
    for path, mode in ((served, 0o757), (served.parent, 0o702), (served.parent, 0o720)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert is_believed(settings) is (os.geteuid() == 0 and mode == 0o720)  # root may choose a group
        path.chmod(before)
    leases = Path(settings.lease_dir or "")
    leases.chmod(0o770)
    assert not is_believed(settings)
    leases.chmod(0o1777)
    assert is_believed(settings) is (os.geteuid() == 0)


def test_a_simulated_machine_does_not_read_the_real_ones(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xt4")
    simulated = config.load()
    assert not hosting.serving(simulated)
    assert Path(hosting.machine_path(simulated)).parent == served.parent


def test_leases_lie_where_they_are_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert hosting.lease_root(settings) == str(tmp_path / "leases")
    monkeypatch.setattr(config, "HOST_LEASE_DIR", str(tmp_path / "run"))
    unset = settings._replace(lease_dir=None)
    assert hosting.lease_root(unset) == os.path.join(settings.runtime_dir, "leases")
    (tmp_path / "run").mkdir()
    assert hosting.lease_root(unset) == str(tmp_path / "run")


AS_ANOTHER = """
import json, os, sys
from gpulab import config
from gpulab.hardware import devices, hosting, record
settings = config.load()
uid = int(sys.argv[1])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
found = record.latest(settings)
name = found and found.devices[0].name
print(json.dumps([hosting.serving(settings), name, hosting.history_path(settings)]))
"""


def seen_by(uid: int) -> list[object]:
    shown = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, str(uid)], capture_output=True, text=True, check=True, timeout=60
    )
    answer: list[object] = json.loads(shown.stdout)
    return answer


@pytest.fixture
def host(passable: Path, settings: Settings) -> Iterator[Path]:
    """A host's directory as root makes it, for a service of its own account, which publishes."""
    leases = Path(settings.lease_dir or "")
    leases.chmod(0o1777)
    leases.joinpath("host").mkdir()
    os.chown(leases / "host", 0, SERVICE)
    leases.joinpath("host").chmod(0o775)
    machine = Path(hosting.machine_path(settings))
    machine.mkdir()
    machine.chmod(0o755)
    os.mkfifo(machine / "wake")
    (machine / "wake").chmod(0o622)
    listening = os.open(machine / "wake", os.O_RDWR)
    record.publish(snapshot("host"), settings, host=True, history="/somewhere/history.sqlite")
    for path in (machine, machine / "wake", machine / "latest.json"):
        os.chown(path, SERVICE, SERVICE)
    yield machine
    os.close(listening)


@needs_root
def test_every_account_believes_the_service_that_root_chose(host: Path) -> None:
    for uid in (ALICE, BOB, SERVICE, 0):
        assert seen_by(uid) == [True, "host", "/somewhere/history.sqlite"]
    assert (host / "latest.json").stat().st_mode & 0o777 == 0o644


@needs_root
def test_a_host_directory_that_a_user_made_is_believed_by_nobody_else(host: Path) -> None:
    """Everybody can make a name in the host's lease directory."""
    for path in (host.parent, host, host / "latest.json", host / "wake"):
        os.chown(path, ALICE, ALICE)
    host.parent.chmod(0o755)
    assert seen_by(BOB) == [False, None, None]
    assert seen_by(0) == [False, None, None]
    assert seen_by(ALICE) == [False, None, None]


@needs_root
def test_a_record_that_another_account_wrote_is_not_believed(host: Path) -> None:
    os.chown(host / "latest.json", ALICE, ALICE)
    assert seen_by(BOB) == [False, None, None]


@needs_root
def test_an_account_does_not_believe_what_lies_in_anothers_lease_directory(host: Path) -> None:
    leases = host.parent.parent
    for path in (leases, host.parent, host, host / "latest.json"):
        os.chown(path, ALICE, ALICE)
    leases.chmod(0o755)
    host.parent.chmod(0o755)
    assert seen_by(BOB) == [False, None, None]
    assert seen_by(ALICE)[:2] == [True, "host"]

"""One sampler for all accounts: they read it, wake it, watch it, and do without it as soon as it is gone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import LeaseDirectoryError
from gpulab.hardware import hosting, record
from gpulab.hardware.devices import Snapshot
from gpulab.telemetry import sampler, series
from gpulab.telemetry.sampler import AlreadyServingError, HostSampler

Until = Callable[..., None]
Serve = Callable[..., subprocess.Popen[str]]
BOB = 54322
SERVE = """
import signal
from gpulab import config
from gpulab.telemetry.sampler import HostSampler
with HostSampler(config.load()) as sampler:
    signal.signal(signal.SIGTERM, lambda *_: sampler.stop.set())
    print(sampler.scope, flush=True)
    sampler.run()
"""


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a service; it serves when this returns."""
    started: list[subprocess.Popen[str]] = []

    def begin(umask: int = 0o022) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=umask,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() in ("host\n", "account\n")
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def newest(settings: Settings) -> Snapshot:
    found = record.latest(settings)
    assert found is not None
    return found


def test_readers_need_no_sampler_of_their_own_while_one_serves(
    settings: Settings, serve: Serve, until: Until
) -> None:
    service = serve()
    until(lambda: hosting.serving(settings), "the service")
    assert sampler.ensure(settings)
    assert sampler.running_pid(settings) is None
    assert not os.path.exists(sampler.lock_path(settings))
    # On a full machine the library's start can outlast the first sample, which then says so
    until(lambda: newest(settings).driver.ok, "the driver's first answer")
    assert [device.state for device in newest(settings).devices] == ["ok", "ok"]
    uuid = newest(settings).devices[0].uuid or ""
    until(lambda: len(series.recent(settings, 60).get(uuid, ())) >= 2, "its history")
    assert series.history_path(settings) == json.loads(Path(record.paths(settings)[0]).read_text())["history"]
    service.terminate()
    assert (service.wait(timeout=15), service.communicate()[1]) == (0, "")
    assert not hosting.serving(settings)


def test_an_accounts_own_ends_once_one_serves_and_is_back_as_soon_as_that_is_killed(
    settings: Settings, serve: Serve, start: Serve, until: Until
) -> None:
    own = start()
    until(lambda: record.latest(settings, max_age=3), "a record")
    service = serve()
    assert own.wait(timeout=15) == 0
    assert own.communicate()[1] == ""
    until(lambda: hosting.serving(settings), "the service")
    service.send_signal(signal.SIGKILL)
    service.wait()
    last = newest(settings).time

    def read() -> bool:
        """As a monitor does."""
        sampler.ensure(settings)
        return newest(settings).time > last

    until(read, "a sample of the account's own")
    assert newest(settings).time - last < 4
    assert sampler.running_pid(settings) is not None
    assert not hosting.serving(settings)


def test_a_service_after_a_killed_one_takes_its_place(settings: Settings, serve: Serve, until: Until) -> None:
    first = serve()
    until(lambda: hosting.serving(settings), "the service")
    first.kill()
    first.wait()
    Path(f"{record.paths(settings)[0]}.123").write_text("half a rec")
    assert not hosting.serving(settings)
    serve()
    until(lambda: hosting.serving(settings), "the next service")
    assert sorted(os.listdir(hosting.machine_path(settings))) == [
        "latest.json",
        "serve.lock",
        "wake",
        "watches",
    ]


def test_only_one_serves(settings: Settings, serve: Serve) -> None:
    first = serve()
    with pytest.raises(AlreadyServingError, match=f"process {first.pid} already"), HostSampler(settings):
        pass
    assert AlreadyServingError.exit_code == 1
    first.kill()
    first.wait()
    with HostSampler(settings) as second:
        assert second.scope == "account"


def test_it_ends_with_a_reason_when_nobody_can_find_it_any_more(
    settings: Settings, serve: Serve, until: Until
) -> None:
    service = serve()
    until(lambda: hosting.serving(settings), "the service")
    os.unlink(hosting.lock_path(settings))
    assert service.wait(timeout=15) != 0
    assert "is gone, so nobody finds this service; start it again" in service.communicate()[1]


def test_a_place_for_the_history_that_cannot_be_made_is_named_with_the_remedy(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    elsewhere = settings._replace(data_dir=str(tmp_path / "a file"))
    with pytest.raises(LeaseDirectoryError, match=r"a file.*set GPULAB_DATA_DIR"), HostSampler(elsewhere):
        pass


def test_a_directory_that_nobody_would_believe_is_refused_with_the_remedy(settings: Settings) -> None:
    Path(hosting.host_dir(settings)).mkdir()
    os.chmod(hosting.host_dir(settings), 0o777)
    with pytest.raises(LeaseDirectoryError, match="sudo gpulab setup"), HostSampler(settings):
        pass
    os.rmdir(hosting.host_dir(settings))
    os.symlink(settings.data_dir, hosting.host_dir(settings))
    with pytest.raises(LeaseDirectoryError, match="sudo gpulab setup"), HostSampler(settings):
        pass


AS_BOB = """
import json, os, sqlite3, sys, time
from gpulab import config
from gpulab.hardware import hosting, record
from gpulab.telemetry import sampler, series
import gpulab.telemetry.reading.bills
os.environ["GPULAB_DATA_DIR"] = sys.argv[2]
settings = config.load()
list(map(str, series.recent(settings, 60)))
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
found = {
    "served": hosting.serving(settings),
    "ensured": sampler.ensure(settings),
    "own": sampler.running_pid(settings),
    "history": {uuid: len(found) for uuid, found in series.recent(settings, 60).items()},
}
try:
    os.close(os.open(hosting.lock_path(settings), os.O_RDONLY))
    found["locks"] = True
except OSError:
    found["locks"] = False
sampler.look(settings)
watch = sampler.watch(settings, links=True)
found["watches"] = watch.active
print(json.dumps(found), flush=True)
sys.stdin.readline()
watch.close()
print(flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")
def test_another_account_reads_wakes_and_watches_it(
    settings: Settings, serve: Serve, until: Until, passable: Path
) -> None:
    leases, data, home = Path(settings.lease_dir or ""), Path(settings.data_dir), passable / "home"
    leases.chmod(0o1777)
    data.chmod(0o755)
    home.mkdir()
    os.chown(home, BOB, BOB)
    serve(umask=0o077)
    until(lambda: hosting.serving(settings), "the service")
    until(lambda: sum(map(len, series.recent(settings, 60).values())) >= 4, "its history")
    bob = subprocess.Popen(
        [sys.executable, "-c", AS_BOB, str(BOB), str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bob.stdin is not None
    assert bob.stdout is not None
    found = json.loads(bob.stdout.readline())
    assert len(found.pop("history")) == 2
    assert found == {"served": True, "ensured": True, "own": None, "locks": False, "watches": True}
    until(lambda: shortest_gap(settings) < 0.5, "samples close together")
    bob.stdin.write("\n")
    bob.stdin.flush()
    assert bob.stdout.readline() == "\n"
    assert os.listdir(hosting.watches_path(settings)) == []
    bob.communicate("\n", timeout=15)
    machine = Path(hosting.machine_path(settings))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (machine, *machine.iterdir())}
    assert modes == {
        machine.name: 0o755,
        "latest.json": 0o644,
        "serve.lock": 0o600,
        "wake": 0o622,
        "watches": 0o1777,
    }
    assert stat.S_IMODE(machine.parent.stat().st_mode) == 0o755


def shortest_gap(settings: Settings) -> float:
    found = series.recent(settings, 60).get(newest(settings).devices[0].uuid or "", ())
    return min((after.time - before.time for before, after in itertools.pairwise(found)), default=9.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")
def test_whom_root_did_not_choose_cannot_serve_a_host(
    settings: Settings, passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(settings.lease_dir or "").chmod(0o1777)
    pid = os.fork()
    if pid == 0:
        os.setgid(BOB)
        os.setuid(BOB)
        try:
            HostSampler(settings).__enter__()
        except LeaseDirectoryError as error:
            os._exit(7 if "sudo gpulab setup" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not os.path.exists(hosting.host_dir(config.load()))


@pytest.mark.skipif(os.geteuid() != 0, reason="a host's lease directory is root's")
def test_a_history_that_others_cannot_reach_is_told_with_the_remedy(
    settings: Settings, passable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(settings.lease_dir or "").chmod(0o1777)
    data = Path(settings.data_dir)
    data.chmod(0o755)
    with HostSampler(settings) as service:
        assert service.scope == "host"
    assert caplog.messages == []
    data.chmod(0o750)
    with HostSampler(settings):
        pass
    (message,) = caplog.messages
    assert f"because {data} bars them; set GPULAB_DATA_DIR to" in message

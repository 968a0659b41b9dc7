"""Two accounts on one machine: both take, both see each other, neither can end or disguise the other's."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import administered
from .administered import first_line

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")

ALICE, BOB = pwd.getpwnam("daemon").pw_uid, 54322
"""One with a login, one without."""
HOLD = "echo $GPULAB_LEASE $CUDA_VISIBLE_DEVICES; exec sleep 60"
StartAs = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine that was set up, where every account may go."""
    folder = Path(tempfile.mkdtemp(prefix="gpulab-host-"))
    folder.chmod(0o755)
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(folder / "run" / "gpulab"))
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    assert administered.run(None, "setup", "--root", str(folder)).returncode == 0
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start_as(host: Path) -> Iterator[StartAs]:
    started: list[subprocess.Popen[str]] = []

    def begin(uid: int, *words: str, rules: Path | None = None) -> subprocess.Popen[str]:
        command = administered.command_as(uid, *words, home=host / f"home-{uid}", rules=rules)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def rules_of(host: Path, text: str) -> Path:
    rules = host / "etc" / "gpulab" / "config.toml"
    rules.write_text(text)
    return rules


def as_account(
    host: Path, uid: int, *words: str, rules: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return administered.run_as(uid, *words, home=host / f"home-{uid}", rules=rules)


def test_both_get_a_gpu_of_their_own_and_see_each_other(host: Path, start_as: StartAs) -> None:
    lease, first = first_line(start_as(ALICE, "run", "--", "sh", "-c", HOLD)).split()
    other, second = first_line(start_as(BOB, "run", "--", "sh", "-c", HOLD)).split()
    assert first != second
    for uid in (ALICE, BOB, 0):
        seen = (
            as_account(host, uid, "status", "--json") if uid else administered.run(None, "status", "--json")
        )
        report = json.loads(seen.stdout)
        assert report["lease_scope"] == "host"
        entries = {entry["id"]: entry for entry in report["leases"]}
        assert entries[lease]["uid"] == ALICE
        assert entries[lease]["user"] == "daemon"
        assert entries[other]["uid"] == BOB
        assert entries[lease]["gpus"] == [first]
    full = as_account(host, BOB, "run", "--no-wait", "--", "true")
    assert full.returncode == 75, full.stderr


def test_nobody_but_root_ends_anothers_lease(host: Path, start_as: StartAs) -> None:
    holder = start_as(ALICE, "run", "--", "sh", "-c", HOLD)
    lease, _ = first_line(holder).split()
    refused = as_account(host, BOB, "stop", lease)
    assert refused.returncode == 64
    assert f"Lease {lease} belongs to daemon; ask them, or root" in refused.stderr
    assert holder.poll() is None
    done = administered.run(None, "stop", lease)
    assert (done.returncode, done.stderr) == (0, "")
    assert holder.wait(10) != 0
    assert [name for name in os.listdir(host / "run/gpulab") if lease in name] == []


def test_only_root_takes_gpus_out_of_service_and_sets_up_the_host(host: Path) -> None:
    for words in (("drain", "0"), ("undrain", "0"), ("setup",)):
        refused = as_account(host, BOB, *words)
        assert refused.returncode == 125
        assert "Only root can" in refused.stderr


def test_an_account_ends_its_own(host: Path, start_as: StartAs) -> None:
    lease, _ = first_line(start_as(BOB, "run", "--", "sh", "-c", HOLD)).split()
    done = as_account(host, BOB, "stop", lease)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lease_that_names_a_process_of_anothers_gets_it_no_signal_from_root(
    host: Path, start_as: StartAs
) -> None:
    """The owner may write what he likes into his lease's text: root signals only his processes."""
    mine = start_as(BOB, "run", "--", "sh", "-c", HOLD)
    lease, _ = first_line(mine).split()
    victim = start_as(ALICE, "run", "--", "sh", "-c", HOLD)
    first_line(victim)
    path = host / "run/gpulab" / f"lease-{lease}"
    text = json.loads(path.read_text())
    text.update(pid=victim.pid, pid_started=None)
    with path.open("r+") as file:
        file.write(json.dumps(text))
    assert administered.run(None, "stop", lease).returncode == 0
    assert victim.poll() is None
    assert mine.wait(10) != 0


@pytest.mark.parametrize(
    ("rule", "login"),
    [("", "daemon"), ('names = "initials"', "d."), ('names = "none"', "another account")],
)
def test_the_administrator_says_what_accounts_see_of_each_other(
    host: Path, start_as: StartAs, rule: str, login: str
) -> None:
    rules = rules_of(host, rule)
    first_line(start_as(ALICE, "run", "--", "sh", "-c", HOLD, rules=rules))
    (entry,) = json.loads(as_account(host, BOB, "leases", "--json", rules=rules).stdout)["leases"]
    assert entry["user"] == (None if login == "another account" else login)
    assert entry["notebook"] is None
    assert login in as_account(host, BOB, "leases", rules=rules).stdout


@pytest.mark.parametrize("rule", ['names = "full"', ""])
def test_what_an_account_writes_of_itself_is_harmless_in_anothers_terminal(
    host: Path, start_as: StartAs, rule: str
) -> None:
    rules = rules_of(host, rule)
    lease, _ = first_line(start_as(ALICE, "run", "--", "sh", "-c", HOLD, rules=rules)).split()
    note = host / "run/gpulab" / f"note-{lease}"
    note.write_text(
        json.dumps({"kernel_id": "\x1b[2J", "notebook": "<img src=x onerror=alert(1)>\x1b]0;\x07.ipynb"})
    )
    note.chmod(0o644)
    os.chown(note, ALICE, ALICE)
    for words in (("leases",), ("status",), ("leases", "--json")):
        shown = as_account(host, BOB, *words, rules=rules)
        assert shown.returncode == 0, shown.stderr
        assert "\x1b" not in shown.stdout
        assert "\x07" not in shown.stdout
        assert "onerror" not in shown.stdout or rule


def test_rules_bind_every_account(host: Path, start_as: StartAs) -> None:
    rules = rules_of(host, 'max_gpus_per_user = 1\nmax_memory_per_lease = "16GiB"\ndefault_memory = "8GiB"\n')
    command = ("run", "--no-wait", "--", "sh", "-c", "echo $GPULAB_MEMORY_LIMIT; exec sleep 60")
    assert first_line(start_as(ALICE, *command, rules=rules)) == str(8 * 2**30)
    second = as_account(host, ALICE, "run", "--no-wait", "--", "true", rules=rules)
    assert second.returncode == 75, second.stderr
    assert as_account(host, BOB, "run", "--no-wait", "--", "true", rules=rules).returncode == 0
    large = as_account(host, BOB, "run", "--no-wait", "--memory", "32GiB", "--", "true", rules=rules)
    assert large.returncode == 64
    assert "16.0 GiB" in large.stderr


def test_a_file_of_rules_that_a_user_could_write_stops_everybody_with_its_remedy(host: Path) -> None:
    rules = rules_of(host, "max_gpus_per_user = 1\n")
    rules.chmod(0o666)
    refused = as_account(host, BOB, "run", "--no-wait", "--", "true", rules=rules)
    assert refused.returncode == 64
    assert f"sudo chmod go-w {rules}" in refused.stderr


def test_a_kernel_starts_on_the_cpu_with_that_sentence(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpulab import config
    from gpulab.jupyter.decision import Options, decide

    rules = rules_of(host, "max_gpus_per_user = 1\n")
    rules.chmod(0o666)
    monkeypatch.setattr(config, "ADMIN_FILE", str(rules))
    decision = decide(Options(), config.inherited())
    assert decision.lease is None
    assert decision.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert "is refused, because it can be written by others" in decision.variables["GPULAB_NO_GPU_REASON"]

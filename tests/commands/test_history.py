"""`gpulab history`: a rehearsed night read back, for people and for programs, and what cannot be told."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gpulab import cli, config
from gpulab.commands import history_tables
from gpulab.settings import Settings
from gpulab.telemetry import prometheus, rehearsal
from gpulab.telemetry.reading import hosts
from gpulab.telemetry.reading.resolutions import Row
from gpulab.telemetry.reading.summary import Summary, UserSummary
from gpulab.telemetry.series import store_path

HOUR = 3600
BEGIN = time.time() // HOUR * HOUR - 14 * HOUR
ROOT, BOB = 0, 54322
"""One with a login, one without."""


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


NIGHT = ("--since", iso(BEGIN), "--until", iso(BEGIN + 10 * HOUR))


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """`gpulab history WORDS` in this process: its exit code, and what it printed."""
    capsys.readouterr()
    code = cli.main(["history", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten hours: root holds the first GPU for eight and works in four of them; Bob works without a break."""
    folder = tmp_path_factory.mktemp("night")
    busy = {"utilization": {"steps": [[0, 0], [1 * HOUR, 80], [5 * HOUR, 0]]}, "power": 300}
    scenario = {
        "epoch": BEGIN,
        "devices": [
            {"profile": "a100", "timeline": {**busy, "memory_used": "30GiB"}},
            {"profile": "a100", "timeline": {"utilization": 50, "power": 200}},
        ],
        "leases": [
            {"gpu": 0, "uid": ROOT, "from": HOUR, "until": 9 * HOUR},
            {"gpu": 1, "uid": BOB, "from": 0, "until": 11 * HOUR, "memory": "20GiB"},
        ],
    }
    (folder / "night.json").write_text(json.dumps(scenario))
    settings = Settings(data_dir=str(folder / "data"), simulate=str(folder / "night.json"))
    assert rehearsal.rehearse(settings, BEGIN, 10 * HOUR, 60.0) == 601
    return folder


@pytest.fixture
def read_night(night: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPULAB_SIMULATE", str(night / "night.json"))
    monkeypatch.setenv("GPULAB_DATA_DIR", str(night / "data"))
    return night


def test_people_read_who_held_and_used_what(read_night: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gpulab", "history", *NIGHT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "simulated machine" in lines[0]
    assert "Sampled: all of these 10 h 00 min." in lines
    users = [re.split(r"  +", line) for line in lines if re.match(r"(root|uid 54322) ", line)]
    assert [user[0] for user in users] == ["uid 54322", "root"]  # whoever held most comes first
    for user, hours in zip(users, ((10.0, 5.0), (8.0, 3.2)), strict=True):
        assert [float(value) for value in user[2:4]] == pytest.approx(hours, abs=0.02)
    assert [user[4:] for user in users] == [["0 %", "2.0 kWh"], ["50 %", "2.4 kWh"]]
    first, second = (line for line in lines if "A100-SXM4-80GB" in line)
    assert re.search(r"100 % +80 % +32 % +30\.0 GiB +3\.0 kWh$", first)
    assert re.search(r"100 % +100 % +50 % +0\.0 GiB +2\.0 kWh$", second)


def test_a_gap_is_no_idleness(read_night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = call(capsys, "--since", iso(BEGIN - 10 * HOUR), "--until", iso(BEGIN + 10 * HOUR))
    assert "Sampled: 50 % of these 20 h 00 min; the rest is unknown" in text
    assert re.search(r"^root +1 +(7\.98|8\.00) +3\.\d\d +50 %", text, re.MULTILINE)
    code, text, _ = call(capsys, "--since", "1h", "--until", "10m")
    assert code == 0
    assert "Nothing was sampled in these 50 min, so nothing is known of them." in text


def test_programs_get_one_object(read_night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, errors = call(capsys, *NIGHT, "--json")
    found = json.loads(text)
    assert (code, errors, found["schema"], found["simulated"]) == (0, "", "gpulab.history/1", True)
    assert found["coverage"] == pytest.approx(1, abs=1e-3)
    bob, root = found["users"][:2]
    assert (bob["uid"], bob["user"], root["uid"], root["user"]) == (BOB, None, ROOT, "root")
    assert root["held_seconds"] == pytest.approx(8 * HOUR, abs=61)
    assert root["used_seconds"] == pytest.approx(4 * HOUR * 0.8, abs=61)
    assert root["idle_seconds"] == pytest.approx(4 * HOUR, abs=61)
    assert root["energy_joules"] == pytest.approx(8 * HOUR * 300, rel=0.01)
    assert [device["gpu_percent"] for device in found["devices"]] == pytest.approx([32, 50], abs=0.2)
    assert len(found["samples"]) == 2 * 601
    assert set(found["samples"][0]) == set(Row._fields)
    assert found["samples"][0]["time"] == iso(BEGIN).replace("+00:00", ".000Z")
    assert found["samples"][0]["seconds"] is None  # null where unknown
    assert found["samples"][0]["throttle_reasons"] is None or isinstance(
        found["samples"][0]["throttle_reasons"], list
    )


def test_csv_json_and_parquet_hold_the_same_rows(
    read_night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = call(capsys, *NIGHT, "--csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    for option, name in (("--csv", "a.csv"), ("--json", "a.json"), ("--parquet", "a.parquet")):
        assert call(capsys, *NIGHT, option, str(tmp_path / name)) == (0, "", "")
    assert (tmp_path / "a.csv").read_text() == text
    (tmp_path / "a.csv").write_text("older")
    (tmp_path / "link").symlink_to("a.csv")
    assert call(capsys, *NIGHT, "--csv", str(tmp_path / "link")) == (0, "", "")
    assert (tmp_path / "a.csv").read_text() == text  # what the link leads to
    samples = json.loads((tmp_path / "a.json").read_text())["samples"]
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert len(lines) == len(samples) == len(table) == 2 * 601
    assert [line["uuid"] for line in lines] == [sample["uuid"] for sample in samples] == list(table["uuid"])
    assert [line["time"] for line in lines] == [sample["time"] for sample in samples]
    assert str(table["time"].dt.tz) == "UTC"
    for name in ("gpu_percent", "memory_used_bytes", "power_watts", "seconds"):
        read = [None if line[name] == "" else float(line[name]) for line in lines]
        assert read == [sample[name] for sample in samples]
        assert table[name].isna().sum() == read.count(None)
        assert table[name].sum() == pytest.approx(sum(value or 0 for value in read))
    assert sorted(os.listdir(tmp_path)) == [
        "a.csv",
        "a.json",
        "a.parquet",
        "leases",
        "link",
    ]  # nothing half done


def test_a_coarser_resolution_is_there_for_the_asking(
    read_night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = call(capsys, *NIGHT, "--csv", "--resolution", "hour")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {line["resolution"] for line in lines} == {"hour"}
    assert len(lines) in (18, 20)  # the last hour is summed up once it is over
    assert float(lines[0]["seconds"]) == pytest.approx(HOUR, abs=61)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--since", "foo"), 64, "'foo' is no time"),
        (("--since", "1h", "--until", "2h"), 64, "let it begin before it ends"),
        (("--since", "9999-01-01"), 64, "has yet to come"),
        (("--csv", "/nonexistent/a.csv"), 125, "cannot be written (No such file or directory)"),
        (("--json", "/"), 125, "cannot be written (Is a directory)"),
        (("--csv", "/dev/full"), 125, "cannot be written (No space left on device)"),
        (("--parquet", "-"), 64, "name a file after --parquet"),
        (("--csv", "--parquet", "a"), 64, "not allowed with"),
        (("--resolution", "week"), 64, "invalid choice"),
        (("--prometheus",), 64, "write --prometheus http://HOST:9090"),
        (("--prometheus", "nowhere"), 64, "is no address of a Prometheus"),
        (("--prometheus", "http://127.0.0.1:1"), 125, "cannot be reached"),
        (("--prometheus", "http://127.0.0.1:1", "--csv"), 64, "leave out --csv or --parquet"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    read_night: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str
) -> None:
    found, text, error = call(capsys, *words)
    assert (found, text) == (code, "")
    assert told.lower() in error.lower()
    assert len(error.splitlines()) == 1


def test_a_history_that_is_not_there_or_from_the_future_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "8xh100")
    for words in ((), ("--json",), ("--csv",)):
        code, text, error = call(capsys, *words)
        assert (code, text) == (125, "")
        assert "There is no history yet" in error
        assert len(error.splitlines()) == 1
    path = Path(store_path(config.load()))
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("PRAGMA user_version = 99")
    code, text, error = call(capsys)
    assert (code, text) == (125, "")
    assert "written by a newer gpulab" in error


def test_without_pyarrow_the_remedy_is_named_and_csv_needs_neither_it_nor_pandas(
    read_night: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "a").write_text("as it was")
    code, text, error = call(capsys, "--parquet", str(tmp_path / "a"))
    assert (code, text) == (125, "")
    assert "pip install 'gpulab[history]'" in error
    assert (tmp_path / "a").read_text() == "as it was"
    assert call(capsys, *NIGHT, "--csv")[0] == 0


def test_a_range_over_a_change_of_the_clocks_names_both_zones(
    read_night: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        _, output, _ = call(capsys, "--since", "2025-03-29T12:00", "--until", "2025-03-31T12:00")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "2025-03-29 12:00 CET to 2025-03-31 12:00 CEST" in output
    assert "of these 47 h" in output or "in these 47 h" in output


@pytest.mark.parametrize(
    ("names", "shown"), [("full", "ada"), ("initials", "a."), ("none", "another account")]
)
def test_others_are_called_as_the_administrator_says(
    names: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)  # root is told all
    found = UserSummary("host", 4711, "ada", 1, 3600.0, 1800.0, 0.0, 10.0)
    hostile = found._replace(user=None, uid=None, host="h\x1b[31m\u202e")
    summed = Summary(0.0, 3600.0, ("host",), 3600.0, (), (found, hostile))
    history_tables.show(summed, Settings(names=names), url="http://u:secret@h")
    text = capsys.readouterr().out
    assert re.search(rf"host +{re.escape(shown)} +1 +1\.00 +0\.50 +0 %", text)
    assert ("ada" in text) == (names == "full")
    assert "\x1b[31m" not in text
    assert "\u202e" not in text
    assert "secret" not in text


def lines_of_two_hosts(begin: float, hours: int) -> Iterator[str]:
    """OpenMetrics: alpha's GPU at 80 % in every other hour, held by ada throughout and by bob half of it."""
    minutes = [begin + 60 * minute for minute in range(hours * 60 + 1)]

    def metric(name: str, labels: str, value_of: Any) -> Iterator[str]:
        yield f"# TYPE {name.removesuffix('_total')} {'counter' if name.endswith('_total') else 'gauge'}"
        for at in minutes:
            value = value_of(at - begin)
            if value is not None:
                yield f"{name}{{{labels}}} {value} {at:.0f}"

    def always(value: float) -> Callable[[float], float]:
        return lambda _at: value

    for host, share in (("alpha", lambda at: 0.8 if at // HOUR % 2 else 0.0), ("beta", always(0.5))):
        one = f'host="{host}",gpu="3",uuid="GPU-{host}",name="NVIDIA T4"'
        half = hours * HOUR / 2
        for name, labels, value_of in (
            ("gpulab_up", f'host="{host}"', always(1)),
            ("gpulab_device_utilization_ratio", one, share),
            ("gpulab_device_power_watts", one, always(100)),
            ("gpulab_device_memory_used_bytes", one, lambda at: 2**30 * (1 + at // HOUR)),
            ("gpulab_device_memory_size_bytes", one, always(16 * 2**30)),
            ("gpulab_device_energy_joules_total", one, lambda at: 100 * at),
            ("gpulab_device_leases", f'{one},user="ada",mode="shared",state="active"', always(2)),
            (
                "gpulab_device_leases",
                f'{one},user="bob",mode="shared",state="active"',
                lambda at, half=half: 1 if at > half else None,
            ),
        ):
            yield from metric(name, labels, value_of)
    yield "# EOF"


@contextmanager
def prometheus_of(text: str, folder: Path) -> Iterator[str]:
    """Debian's Prometheus with a past of its own and nothing to scrape."""
    (folder / "past").write_text(text + "\n")
    create = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(folder / "past"),
        str(folder / "tsdb"),
    ]
    subprocess.run(create, check=True, capture_output=True, timeout=60)
    (folder / "prometheus.yml").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [
            *("prometheus", f"--config.file={folder / 'prometheus.yml'}", "--log.level=error"),
            *(f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={place}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{place}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="there is no prometheus; apt install prometheus",
)
def test_a_real_prometheus_tells_of_all_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], until: Any
) -> None:
    begin = time.time() // HOUR * HOUR - 8 * HOUR
    metrics: dict[str, list[str]] = {}
    for line in lines_of_two_hosts(begin, 4):  # each name in one piece, as the format wants it
        name = line.split()[2] if line.startswith("# TYPE") else re.split(r"[{ ]", line)[0]
        key = name.removesuffix("_total")
        if line not in metrics.setdefault(key, []):
            metrics[key].append(line)
    end = metrics.pop("#")
    text = "\n".join([line for lines in metrics.values() for line in lines] + end)

    def answers(url: str) -> bool:
        try:
            return bool(prometheus.read_range(url, "gpulab_up", begin, begin + HOUR))
        except prometheus.PrometheusError:
            return False

    with prometheus_of(text, tmp_path) as url:
        until(lambda: answers(url), "Prometheus", timeout=30)
        found = hosts.of_all_hosts(url, begin, begin + 4 * HOUR)
        span = ("--since", iso(begin), "--until", iso(begin + 4 * HOUR))
        code, text, error = call(capsys, "--prometheus", url, *span)
    assert found.hosts == ("alpha", "beta")
    assert found.coverage == pytest.approx(1, abs=0.02)
    alpha, beta = found.devices
    assert (alpha.host, alpha.index, alpha.uuid, alpha.name) == ("alpha", 3, "GPU-alpha", "NVIDIA T4")
    assert (alpha.gpu_percent, beta.gpu_percent) == pytest.approx((40, 50), abs=1)
    assert alpha.gpu_max_percent == pytest.approx(80)
    assert alpha.memory_max_bytes == pytest.approx(5 * 2**30)
    assert alpha.energy_joules == pytest.approx(100 * 4 * HOUR, rel=0.02)
    assert alpha.held_seconds == pytest.approx(4 * HOUR, rel=0.02)
    users = {(user.host, user.user): user for user in found.users}
    ada, bob = users["alpha", "ada"], users["alpha", "bob"]
    assert (ada.held_seconds, bob.held_seconds) == pytest.approx((4 * HOUR, 2 * HOUR), rel=0.05)
    assert ada.used_seconds == pytest.approx((0.8 + 0.4) * HOUR, rel=0.05)  # alone, then in equal parts
    assert bob.used_seconds == pytest.approx(0.4 * HOUR, rel=0.05)
    assert (ada.idle_seconds, bob.idle_seconds) == pytest.approx((2 * HOUR, HOUR), rel=0.05)
    assert ada.energy_joules == pytest.approx(100 * 3 * HOUR, rel=0.05)
    assert (code, error) == (0, "")
    assert "2 hosts" in text
    assert re.search(r"^alpha +ada +1 +4\.\d\d +1\.\d\d +50 %", text, re.MULTILINE)

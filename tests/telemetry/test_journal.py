from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpulab.telemetry.storing import journal

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/ann\\040lee rw - tmpfs tmpfs rw
32 22 0:42 / /mnt/sshfs rw - fuse.sshfs ann@server:/ rw
33 22 0:43 / /over rw - nfs server:/over rw
34 33 8:2 / /over rw - xfs /dev/sdb1 rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    return str(tmp_path / "mountinfo")


@pytest.mark.parametrize(
    ("path", "kind", "remote"),
    [
        ("/var/lib/x", "ext4", False),
        ("/home/bob/x", "nfs4", True),
        ("/homes/x", "ext4", False),
        ("/home/ann lee/x", "tmpfs", False),
        ("/mnt/sshfs/x", "fuse.sshfs", True),
        ("/over/x", "xfs", False),
    ],
)
def test_the_file_system_of_the_innermost_and_last_mount_counts(
    mounts: str, path: str, kind: str, remote: bool
) -> None:
    assert journal.file_system(path, mounts) == kind
    assert journal.is_remote(kind) is remote


def test_where_the_system_does_not_tell_the_trial_decides(tmp_path: Path) -> None:
    assert journal.file_system("/x", str(tmp_path / "missing")) is None
    assert not journal.is_remote(None)


def test_a_log_on_a_local_disk_and_a_rollback_journal_on_another_machine_s(tmp_path: Path) -> None:
    far = tmp_path / "mountinfo"
    far.write_text(f"22 1 0:40 / {os.path.realpath(tmp_path)} rw - nfs4 server:/ rw\n")
    path = str(tmp_path / "history.sqlite")
    for mounts, mode in (
        ("/proc/self/mountinfo", "wal"),
        (str(far), "truncate"),
        ("/proc/self/mountinfo", "wal"),
    ):
        with closing(sqlite3.connect(path)) as connection, connection:
            assert journal.choose(connection, path, mounts) == mode
            connection.execute("CREATE TABLE IF NOT EXISTS kept (x)")

"""The administrator's rules: read to the letter, trusted only from root, and tightened, never widened."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpulab import config, configfiles, rules
from gpulab.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the administrator's file lies; this account stands for root."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(config, "ADMIN_FILE", str(folder / "config.toml"))
    monkeypatch.setattr(configfiles, "ROOT", os.getuid())
    return folder / "config.toml"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


EVERY_KEY = """
devices = ["GPU-aa", "MIG-bb"]
drained = ["GPU-cc"]
max_gpus_per_user = 3
max_memory_per_lease = "40GiB"
default_memory = "16 GiB"
who_may_raise_priority = "leads"
idle_after = "45m"
on_idle = "notice"
max_lease_age = "2d"
names = "initials"
"""


def test_every_key_of_the_administrators_file_is_read(admin: Path) -> None:
    write(admin, EVERY_KEY)
    found = config.load()
    assert (found.devices, found.drained) == (("GPU-aa", "MIG-bb"), ("GPU-cc",))
    assert (found.max_gpus_per_user, found.max_memory_per_lease) == (3, 40 * 2**30)
    assert (found.default_memory, found.who_may_raise_priority) == (16 * 2**30, "leads")
    assert (found.idle_after, found.on_idle, found.max_lease_age) == (2700.0, "notice", 172800.0)
    assert found.names == "initials"


def test_setup_writes_an_example_of_every_key_that_can_be_read(admin: Path) -> None:
    from gpulab.commands.setup import _CONFIG

    lines = [
        line.removeprefix("# ") for line in _CONFIG.splitlines() if " = " in line and line.startswith("# ")
    ]
    write(admin, "\n".join(lines))
    assert {line.split(" = ")[0] for line in lines} == set(rules.KEYS)
    assert config.load().names == "initials"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("devices", '"GPU-aa"', "write a list of UUIDs"),
        ("devices", "[0]", "write a list of UUIDs"),
        ("drained", '["H100"]', "write a list of UUIDs"),
        ("max_gpus_per_user", "0", "a whole number from 1 on"),
        ("max_gpus_per_user", "true", "a whole number from 1 on"),
        ("max_gpus_per_user", '"two"', "a whole number from 1 on"),
        ("max_memory_per_lease", '"80%"', "is not a size; write for example 8GiB"),
        ("max_memory_per_lease", "-1", "must be positive"),
        ("max_memory_per_lease", '"1e30"', "more memory than any machine has"),
        ("default_memory", "16", "at least 64 MiB with its unit"),
        ("default_memory", "true", "at least 64 MiB with its unit"),
        ("who_may_raise_priority", '""', "the name of a group"),
        ("idle_after", '"soon"', "is not a duration; write for example"),
        ("idle_after", "0", "a duration longer than 0"),
        ("on_idle", '"kill"', "one of nothing, notice, stop"),
        ("max_lease_age", "-5", "cannot be negative"),
        ("names", '"all"', "one of full, initials, none"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_its_file_and_what_to_write(
    admin: Path, key: str, value: str, what: str
) -> None:
    write(admin, f"{key} = {value}\n")
    with pytest.raises(ConfigError, match=what) as refused:
        config.load()
    assert f"{key} in {admin}" in str(refused.value)


@pytest.mark.parametrize(
    ("bound", "own", "holds"),
    [
        ('devices = ["GPU-aa", "GPU-bb"]', "GPULAB_DEVICES=GPU-bb12,GPU-dd", ("GPU-bb12",)),
        ('devices = ["GPU-aa1"]', "GPULAB_DEVICES=GPU-aa", ("GPU-aa1",)),
        ('devices = ["GPU-aa"]', "GPULAB_DEVICES=GPU-dd", ()),
        ("", "GPULAB_DEVICES=GPU-dd", ("GPU-dd",)),
        ('drained = ["GPU-aa"]', "GPULAB_DRAINED=GPU-bb", ("GPU-aa", "GPU-bb")),
        ("max_gpus_per_user = 2", "GPULAB_MAX_GPUS_PER_USER=4", 2),
        ("max_gpus_per_user = 2", "GPULAB_MAX_GPUS_PER_USER=1", 1),
        ("", "GPULAB_MAX_GPUS_PER_USER=1", 1),
        ('max_memory_per_lease = "8GiB"', "GPULAB_MAX_MEMORY_PER_LEASE=1TiB", 8 * 2**30),
        ('max_memory_per_lease = "8GiB"', "GPULAB_MAX_MEMORY_PER_LEASE=4GiB", 4 * 2**30),
        ('default_memory = "8GiB"', "GPULAB_DEFAULT_MEMORY=16GiB", 8 * 2**30),
        ('idle_after = "1h"', "GPULAB_IDLE_AFTER=30m", 1800.0),
        ('idle_after = "1h"', "GPULAB_IDLE_AFTER=2h", 3600.0),
        ('max_lease_age = "1d"', "GPULAB_MAX_LEASE_AGE=2d", 86400.0),
        ('on_idle = "notice"', "GPULAB_ON_IDLE=nothing", "notice"),
        ('on_idle = "notice"', "GPULAB_ON_IDLE=stop", "stop"),
        ('names = "initials"', "GPULAB_NAMES=full", "initials"),
        ('names = "initials"', "GPULAB_NAMES=none", "none"),
        ('names = "full"', "GPULAB_NAMES=initials", "initials"),
        ("", "GPULAB_NAMES=full", None),
        ('who_may_raise_priority = "leads"', "GPULAB_WHO_MAY_RAISE_PRIORITY=all", "leads"),
    ],
)
def test_the_environment_tightens_a_rule_and_never_widens_it(
    admin: Path, monkeypatch: pytest.MonkeyPatch, bound: str, own: str, holds: object
) -> None:
    write(admin, bound)
    name, _, value = own.partition("=")
    monkeypatch.setenv(name, value)
    assert getattr(config.load(), name.removeprefix("GPULAB_").lower()) == holds


def test_the_users_file_tightens_too_and_the_environment_goes_before_it(
    admin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(admin, 'max_gpus_per_user = 4\non_idle = "notice"\n')
    mine = tmp_path / "mine.toml"
    mine.write_text('max_gpus_per_user = 2\non_idle = "nothing"\nidle_after = "1h"\n')
    monkeypatch.setenv("GPULAB_CONFIG", str(mine))
    found = config.load()
    assert (found.max_gpus_per_user, found.on_idle, found.idle_after) == (2, "notice", 3600.0)
    monkeypatch.setenv("GPULAB_MAX_GPUS_PER_USER", "3")
    assert config.load().max_gpus_per_user == 3
    (sentence,) = config.overruled()
    assert sentence == "on_idle: nothing has no effect, since notice is tighter"


def test_who_may_raise_priority_is_not_for_users_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('who_may_raise_priority = "everybody"\n')
    monkeypatch.setenv("GPULAB_CONFIG", str(mine))
    with pytest.raises(ConfigError, match=r"who_may_raise_priority only in .*config\.toml"):
        config.load()


def test_a_file_that_others_may_write_is_refused_with_the_remedy(admin: Path) -> None:
    write(admin, "max_gpus_per_user = 1\n")
    for mode in (0o664, 0o646):
        admin.chmod(mode)
        with pytest.raises(
            ConfigError, match=rf"is refused, because it can be written .* chmod go-w {admin}"
        ):
            config.load()
    admin.chmod(0o644)
    assert config.load().max_gpus_per_user == 1


def test_a_file_in_a_directory_that_others_may_write_is_refused(admin: Path) -> None:
    write(admin, "max_gpus_per_user = 1\n")
    admin.parent.chmod(0o775)
    with pytest.raises(ConfigError, match=f"because {admin.parent} can be written by others"):
        config.load()


def test_a_link_on_the_way_leads_through_trusted_directories_only(admin: Path, tmp_path: Path) -> None:
    loose, safe = tmp_path / "loose", tmp_path / "safe"
    for folder in (loose, safe):
        folder.mkdir(mode=0o755)
    write(safe / "real.toml", "max_gpus_per_user = 1\n")
    (loose / "hop").symlink_to(safe / "real.toml")
    admin.symlink_to(loose / "hop")
    assert config.load().max_gpus_per_user == 1
    loose.chmod(0o777)
    with pytest.raises(ConfigError, match=f"because {loose} can be written by others"):
        config.load()


@needs_root
def test_a_file_of_another_account_is_refused(admin: Path) -> None:
    write(admin, "max_gpus_per_user = 1\n")
    os.chown(admin, 54321, 54321)
    with pytest.raises(ConfigError, match="belongs to user 54321; look through the file and run `sudo chown"):
        config.load()


def test_what_cannot_be_read_or_understood_binds_nobody_to_nothing(admin: Path) -> None:
    write(admin, "max_gpus_per_user = \n")
    with pytest.raises(ConfigError, match=r"config\.toml cannot be understood .*correct that file"):
        config.load()
    admin.unlink()
    admin.symlink_to(admin.parent / "nowhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load()
    admin.unlink()
    os.mkfifo(admin)
    with pytest.raises(ConfigError, match="no plain file"):
        config.load()


def test_devices_that_were_drained_by_command_are_drained_like_those_of_the_file(admin: Path) -> None:
    write(admin, 'drained = ["GPU-aa"]\n')
    write(admin.parent / "drained", "# by hand\nGPU-bb  # GPU 1, by root\n\n")
    assert config.load().drained == ("GPU-aa", "GPU-bb")
    write(admin.parent / "drained", "GPU-bb\nGPU 2\n")
    with pytest.raises(ConfigError, match=r"Line 2 of .*drained is 'GPU 2'; write one UUID a line"):
        config.load()
    (admin.parent / "drained").chmod(0o666)
    with pytest.raises(ConfigError, match="is refused"):
        config.load()


def test_priority_is_for_roots_and_members_of_the_group() -> None:
    everybody, nobody = config.Settings(), config.Settings(who_may_raise_priority="no-such-group-here")
    assert config.may_raise_priority(54321, everybody)
    assert not config.may_raise_priority(54321, nobody)
    assert config.may_raise_priority(0, nobody)
    own = grp.getgrgid(os.getgid()).gr_name
    assert config.may_raise_priority(os.getuid(), config.Settings(who_may_raise_priority=own))
    assert not config.may_raise_priority(54321, config.Settings(who_may_raise_priority=own))


def test_members_by_a_list_and_by_their_primary_group_both_count() -> None:
    import pwd

    groups = [(entry.gr_name, member) for entry in grp.getgrall() for member in entry.gr_mem]
    known = {account.pw_name: account for account in pwd.getpwall() if account.pw_uid != 0}
    listed = [(group, known[member].pw_uid) for group, member in groups if member in known]
    primary = []
    for account in known.values():
        try:
            primary.append((grp.getgrgid(account.pw_gid).gr_name, account.pw_uid))
        except KeyError:
            continue
    assert primary
    for group, uid in listed[:3] + primary[:3]:
        assert config.may_raise_priority(uid, config.Settings(who_may_raise_priority=group))


def test_where_there_is_no_file_nothing_more_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from gpulab import config\n"
        f"config.ADMIN_FILE = {str(tmp_path / 'none' / 'config.toml')!r}\n"
        "config.load()\n"
        "print({'tomllib', 'gpulab.rules', 'gpulab.configfiles', 'grp'}.intersection(sys.modules))\n"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert found.stdout.strip() == "set()", found.stderr

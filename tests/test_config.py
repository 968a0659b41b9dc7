"""Settings from the environment and the user's file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulab import config
from gpulab.errors import ConfigError


def load(tmp_path: Path, **env: str) -> config.Settings:
    return config.load({"HOME": str(tmp_path), **env})


def test_an_empty_environment_has_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert (settings.policy, settings.on_full, settings.simulate) == ("idlest", "queue", None)
    assert (settings.visible_devices, settings.lease_fd, settings.lease_dir) == (None, None, None)
    assert settings.data_dir.startswith(str(tmp_path))


def test_an_empty_mask_is_not_a_missing_one(tmp_path: Path) -> None:
    assert load(tmp_path, CUDA_VISIBLE_DEVICES="").visible_devices == ""
    assert load(tmp_path).visible_devices is None


def test_the_environment_wins_over_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('on_full = "error"\nsimulate = "1xt4"\ndata_dir = "/data"\n')
    settings = load(tmp_path, GPULAB_CONFIG=str(file))
    assert (settings.on_full, settings.simulate, settings.data_dir) == ("error", "1xt4", "/data")
    settings = load(
        tmp_path,
        GPULAB_CONFIG=str(file),
        GPULAB_ON_FULL="cpu",
        GPULAB_SIMULATE="2xt4",
        GPULAB_DATA_DIR="/d",
    )
    assert (settings.on_full, settings.simulate, settings.data_dir) == ("cpu", "2xt4", "/d")


def test_the_users_file_lies_where_xdg_says(tmp_path: Path) -> None:
    folder = tmp_path / "xdg" / "gpulab"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('on_full = "error"\n')
    assert load(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "xdg")).on_full == "error"
    assert load(tmp_path).on_full == "queue"


@pytest.mark.parametrize(("variable", "value"), [("GPULAB_POLICY", "fastest"), ("GPULAB_ON_FULL", "wait")])
def test_a_value_that_is_not_known_is_refused_with_the_known_ones(
    tmp_path: Path, variable: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=f"{value!r}; it must be one of"):
        load(tmp_path, **{variable: value})


def test_a_file_that_is_named_must_exist_and_be_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path, GPULAB_CONFIG=str(tmp_path / "nowhere.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("on_full = \n")
    with pytest.raises(ConfigError, match=r"broken\.toml cannot be understood"):
        load(tmp_path, GPULAB_CONFIG=str(broken))


@pytest.mark.parametrize(("text", "fd"), [("7", 7), ("", None), ("x", None), ("-1", None)])
def test_a_lease_descriptor_is_a_number_or_none(tmp_path: Path, text: str, fd: int | None) -> None:
    assert load(tmp_path, GPULAB_LEASE_FD=text).lease_fd == fd


def test_each_machine_and_each_simulated_one_has_its_own_data(tmp_path: Path) -> None:
    real, eight, four = (load(tmp_path, GPULAB_SIMULATE=s).machine_dir for s in ("", "8xh100", "a/b/4.json"))
    assert len({real, eight, four}) == 3
    assert os.path.dirname(real) == os.path.dirname(eight) == os.path.dirname(four)
    assert "simulated" in eight
    assert "simulated" not in os.path.basename(real)


def masking(settings: config.Settings) -> dict[str, str]:
    return config.masked("GPU-x", settings)


def test_a_mask_from_outside_is_remembered_through_our_own(tmp_path: Path) -> None:
    outside = load(tmp_path, CUDA_VISIBLE_DEVICES="2,3")
    assert outside.outer_devices == "2,3"
    inside = load(tmp_path, **masking(outside))
    assert (inside.visible_devices, inside.outer_devices) == ("GPU-x", "2,3")
    free = load(tmp_path, **masking(load(tmp_path)))
    assert free.outer_devices is None


def test_the_numbers_of_the_mask_from_outside_keep_their_order_inside_of_ours(tmp_path: Path) -> None:
    outside = load(tmp_path, CUDA_VISIBLE_DEVICES="0")
    inside = load(tmp_path, **masking(outside), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert (inside.outer_devices, inside.outer_order) == ("0", None)
    ordered = load(tmp_path, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert load(tmp_path, **masking(ordered)).outer_order == "PCI_BUS_ID"


@pytest.mark.parametrize("later", ["5", "", "all"])
def test_a_mask_that_is_set_inside_of_ours_bounds_too(tmp_path: Path, later: str) -> None:
    inside = {**masking(load(tmp_path)), "CUDA_VISIBLE_DEVICES": later}
    assert load(tmp_path, **inside).outer_devices == later


def test_what_is_exported_is_seen_by_children_and_none_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_KERNEL_ID", "old")
    config.export({"GPULAB_KERNEL_ID": "new"})
    assert config.inherited()["GPULAB_KERNEL_ID"] == "new"
    config.export({"GPULAB_KERNEL_ID": None})
    assert "GPULAB_KERNEL_ID" not in config.inherited()


def test_a_child_without_our_lease_keeps_the_rest(tmp_path: Path) -> None:
    env = {
        "PATH": "/bin",
        "GPULAB_LEASE": "a",
        "GPULAB_LEASE_FD": "5",
        "GPULAB_KERNEL_ID": "k",
        "GPULAB_SIMULATE": "1xt4",
    }
    assert config.without_lease(env) == {"PATH": "/bin", "GPULAB_SIMULATE": "1xt4"}


@pytest.mark.parametrize("value", ['"GPU-1a2b"', "0", "[0]", '[["GPU-1a2b"]]', '["H100"]', '["GPU-"]'])
def test_an_administrators_rule_that_is_misunderstood_is_an_error_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f"drained = {value}\n")
    monkeypatch.setattr(config, "ADMIN_FILE", str(rules))
    with pytest.raises(ConfigError, match="write a list of UUIDs"):
        load(tmp_path)


def test_an_administrators_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.toml").mkdir()
    monkeypatch.setattr(config, "ADMIN_FILE", str(tmp_path / "rules.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_a_key_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('polcy = "idlest"\n')
    with pytest.raises(ConfigError, match="has a key 'polcy'; there are data_dir, lease_dir"):
        load(tmp_path, GPULAB_CONFIG=str(file))


def test_every_key_of_the_users_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('lease_dir = "/l"\nsimulate = "2xt4"\ndata_dir = "/d"\non_full = "error"\n')
    found = load(tmp_path, GPULAB_CONFIG=str(file))
    assert (found.lease_dir, found.simulate, found.data_dir, found.on_full) == ("/l", "2xt4", "/d", "error")


def test_metrics_are_off_until_a_variable_or_the_file_turns_them_on(tmp_path: Path) -> None:
    assert load(tmp_path).metrics is False
    assert load(tmp_path, GPULAB_METRICS="1").metrics is True
    file = tmp_path / "mine.toml"
    file.write_text('metrics = true\nprometheus_url = "http://prometheus:9090"\n')
    found = load(tmp_path, GPULAB_CONFIG=str(file))
    assert (found.metrics, found.prometheus_url) == (True, "http://prometheus:9090")
    assert load(tmp_path, GPULAB_CONFIG=str(file), GPULAB_METRICS="off").metrics is False
    with pytest.raises(ConfigError, match="metrics is 'maybe'; it must be true or false"):
        load(tmp_path, GPULAB_METRICS="maybe")


def test_the_history_s_size_is_a_size_and_one_that_is_too_small_or_none_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path).history_max_size == 512 * 2**20
    assert load(tmp_path, GPULAB_HISTORY_MAX_SIZE="1GiB").history_max_size == 2**30
    file = tmp_path / "mine.toml"
    file.write_text('history_max_size = "64MiB"\n')
    assert load(tmp_path, GPULAB_CONFIG=str(file)).history_max_size == 64 * 2**20
    with pytest.raises(ConfigError, match="a history needs at least 4MiB"):
        load(tmp_path, GPULAB_HISTORY_MAX_SIZE="1k")
    with pytest.raises(ConfigError, match="history_max_size cannot be used: 'much' is not a size"):
        load(tmp_path, GPULAB_HISTORY_MAX_SIZE="much")
    assert config.unruled({"GPULAB_HISTORY_MAX_SIZE": "much"}).history_max_size == 512 * 2**20

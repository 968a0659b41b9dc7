"""`gpulab compare` as people type it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gpulab.commands.compare import add_arguments, run
from gpulab.compare.result import Result
from gpulab.errors import RequestError

SMALL = ["--sizes", "3e2", "--backends", "sklearn-auto,cuml", "--budget", "6"]


def compare(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_one_run_prints_json_alone_and_writes_page_and_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, saved = tmp_path / "r.html", tmp_path / "r.json"
    assert compare("dbscan", *SMALL, "--json", "--html", str(page), "--save", str(saved)) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "gpulab.compare/2"
    assert record == json.loads(saved.read_text())
    assert Result.load(saved).sizes == (300,)
    assert "data:image/png;base64," in page.read_text()


def test_all_prints_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("all", *SMALL) == 0
    output = capsys.readouterr()
    assert "DBSCAN clustering of two circles (measured" in output.out
    assert "cuML brute" in output.out
    assert output.err == ""


def test_the_list_names_workloads_lessons_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("--list") == 0
    text = capsys.readouterr().out
    assert text.startswith("dbscan: A GPU that computes every distance")
    assert "sklearn-auto, " in text
    assert compare("--list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["workloads"][0]["name"] == "dbscan"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a workload or all; there are: dbscan"),
        (["kmeans"], "no workload 'kmeans'"),
        (["dbscan", "--sizes", "big"], "'big' is not a size"),
        (["dbscan", "--backends", "cpu"], "no backend 'cpu'"),
        (["all", "--save", "r.json"], "--save keeps one result"),
        (["dbscan", "--html", "/no/such/folder/r.html"], "cannot be written"),
        (["dbscan", "--budget", "-1"], "above 0"),
    ],
)
def test_wrong_requests_are_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        compare(*arguments)

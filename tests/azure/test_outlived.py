"""Runs outlive their compute: the service keeps them, and so do lists, outputs and handles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure.conftest import Azure
from tests.azure.desk import Desk, desk_of

pytestmark = pytest.mark.thorough


@pytest.fixture
def desk(azure: Azure, tmp_path: Path) -> Iterator[Desk]:
    with desk_of(azure, tmp_path) as made:
        assert made.connect().error is None
        made.cluster()
        yield made
        made.no_secret()


def test_a_run_is_there_when_its_cluster_is_not(desk: Desk) -> None:
    desk.good("%%aml_submit --name kept --out answer --wait\nprint('one line')\nanswer = 42")
    handle = desk.good("import jupyter_amltrain as aml; print(aml.attach('last').handle)").text.strip()
    assert handle.startswith("cpu/kept-")
    desk.good("%aml_compute delete cpu --yes --wait")
    assert "cpu" not in desk.good("%aml_compute list").text
    assert handle in desk.good("%aml_runs").text
    assert "one line" in desk.good(f"%aml_runs logs {handle}").text
    assert "'cpu' was deleted; its runs can still be read." in desk.bad("%%aml_submit --target cpu\nprint(1)")
    assert desk.good("print(aml.attach('last').result('answer'))").text.strip() == "42"
    desk.good("%aml_compute disconnect lab --yes")
    assert handle not in desk.good("%aml_runs").text


def test_a_run_that_its_cluster_takes_along_ends_as_the_service_says(desk: Desk) -> None:
    desk.good("%%aml_submit --name cut\nimport time\nprint('begun', flush=True)\ntime.sleep(600)")
    desk.good("import jupyter_amltrain as aml; run = aml.attach('last')")
    desk.good("%aml_compute delete cpu --yes --wait")
    desk.cell("run.wait(100)")  # an error, when the service calls it one
    assert desk.good("print(run.state)").text.strip() in ("canceled", "failed")
    assert "cut-" in desk.good("%aml_runs").text


def test_made_again_under_its_name_it_has_its_old_runs(desk: Desk) -> None:
    desk.good("%%aml_submit --name before --wait\nprint('of the first')")
    desk.good("%aml_compute delete cpu --yes --wait")
    desk.cluster(more="--idle-minutes 7")
    desk.good("%%aml_submit --name after --wait\nprint('of the second')")
    listed = desk.good("%aml_runs").text
    assert "before-" in listed and "after-" in listed

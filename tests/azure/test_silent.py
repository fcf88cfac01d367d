"""Azure that is slow, down or refuses: what is known here is shown at once, in this kernel and in a new one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.followed_runs import start_run
from tests.azure.notebook_session import NotebookSession, cluster_of, until

#: As users have it: a request may take long, and is repeated.
USUAL = {"AMLTRAIN_AZURE_READ_TIMEOUT": "30", "AMLTRAIN_AZURE_UNREACHABLE": "30", "AMLTRAIN_AZURE_BACKOFF": "1"}


@pytest.fixture(scope="module")
def desk(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookSession]:
    with cluster_of(azure, tmp_path_factory.mktemp("silent"), **USUAL, AMLTRAIN_READ_LIMIT="0.5") as made:
        yield made


def silence(azure: Azure, manner: str) -> None:
    """Let Azure answer late, not at all, or with errors."""
    if manner == "down":
        azure.control("/network", up=False)
    else:
        azure.control("/fault", match=".*", times=10**6, **({"delay": 25} if manner == "slow" else {"status": 503}))


def seconds_of(desk: NotebookSession, line: str, *words: str) -> float:
    """Seconds of a line that must say `words`."""
    began = time.monotonic()
    seen = desk.cell(line)
    assert all(word in seen.text for word in words), (line, seen.text)
    return time.monotonic() - began


@pytest.mark.thorough
@pytest.mark.parametrize(
    "manner",
    ["slow", pytest.param("down", marks=pytest.mark.thorough), pytest.param("503", marks=pytest.mark.thorough)],
)
def test_silent_service_holds_up_no_list_record_or_log(desk: NotebookSession, manner: str) -> None:
    from jupyter_amltrain import api

    ended = start_run(desk, f"ended-{manner}", lines=3).wait(60)
    until(lambda: "line 2" in ended.logs(), "its whole log")
    run = start_run(desk, f"silent-{manner}", lines=9000)
    until(lambda: run.record().state == "running" and "line" in run.logs(), "what this kernel knows of it")
    silence(desk.azure, manner)
    lines: dict[str, tuple[str, ...]] = {
        "%aml_runs list": (run.run_id, ended.run_id, "running"),
        f"%aml_runs show {run.run_id}": ("running",),
        f"%aml_runs show {run.handle}": ("running",),
        f"%aml_runs logs {run.run_id} --tail 3": ("line",),
        f"%aml_runs logs {ended.run_id} --tail 3": ("line 2",),
        "%aml_compute list": ("cpu",),
        "%aml_compute show cpu": ("not reachable",),  # no answer yet, or a refused connection
        f"%aml_runs files {run.run_id}": ("TargetUnreachable", "answer"),
        "%aml_runs show nothing": ("UnknownRun", "nothing", "answer"),
    }
    try:
        for kernel in ("this", "new"):
            if kernel == "new":
                api.close()
            for line, words in lines.items():
                took = seconds_of(desk, line, *words)
                assert took < 15, f"{line} took {took:.1f} s in {kernel} kernel"  # a second on an idle machine; was 60
        until(lambda: "not responding" in desk.good(f"%aml_runs show {run.handle}").text, "the note")
    finally:
        desk.steady()
    again: Any = api.attach(run.handle)
    until(lambda: again.record().reachable and again.state == "running", "an answer")
    again.cancel()
    until(lambda: again.state == "canceled", "the end")

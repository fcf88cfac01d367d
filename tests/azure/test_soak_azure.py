"""Half a day on Azure at a hundred times its pace, with all that happens in one; and twenty deaths.

``AMLTRAIN_SOAK_SECONDS`` (default 432, twelve hours at 100x) shortens the first for a try. The emulated service
runs at 100x; the agent samples ten times a second, which its sampler holds to be the most.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import NotebookSession, cluster_of
from tests.helpers import until

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("AMLTRAIN_SOAK_SECONDS") or 432)
SEED = int(os.environ.get("AMLTRAIN_SOAK_SEED") or 20261121)
SPEED = 100.0
PERIOD = 0.1
#: What a process may gain from a tenth of the time to its end (bytes): caches and what Python keeps.
FLAT = 24 << 20

CODE = """
import mlflow, time
end, i = time.time() + {seconds}, 0
while time.time() < end:
    print("line", i, "x" * (i % 60), flush=True)
    if i % 20 == 0:
        mlflow.log_metric("loss", 1 / (i + 1), step=i)
    i += 1
    time.sleep(0.05)
print("lines", i)
"""


@pytest.fixture
def desk(azure: Azure, tmp_path: Path) -> Iterator[NotebookSession]:
    more = {"AMLTRAIN_AZURE_POLL": "0.2", "AMLTRAIN_SAMPLE_PERIOD": str(PERIOD)}
    with cluster_of(azure, tmp_path, **more) as made:
        azure.control("/speed", factor=SPEED)
        azure.control("/switch", upload_seconds=30.0)
        yield made


def trouble(azure: Azure, chance: random.Random) -> str:
    """One of the things that happen in half a day; it is over when this returns."""
    kinds = ["token", "revoked", "429", "429", "network", "network", "503", "cut", "connections", "blob"]
    kind = chance.choice([*kinds, "signatures", "signatures", "404"])
    data = r"eastus\.api\.azureml\.ms\S*/history/"
    if kind in ("token", "revoked"):
        azure.control("/expire-tokens", revoked=kind == "revoked")
    elif kind == "signatures":
        azure.control("/expire-signatures")
    elif kind == "404":
        azure.control("/fault", match=data, times=chance.randint(1, 10), status=404)
    elif kind == "network":
        azure.control("/network", up=False)
        time.sleep(chance.uniform(0.5, 6.0))
        azure.control("/network", up=True)
    elif kind == "connections":
        azure.control("/break-connections")
    elif kind == "429":
        azure.control("/fault", match=data, times=chance.randint(1, 20), status=429, headers={"Retry-After": "1"})
    elif kind == "503":
        azure.control("/fault", match=data, times=chance.randint(1, 20), status=503)
    elif kind == "cut":
        azure.control("/fault", match=data, times=chance.randint(1, 10), cut=chance.randint(0, 400))
    else:
        azure.control("/fault", match=r"GET \S+\.blob\.", times=chance.randint(1, 10), cut=chance.randint(0, 400))
    return kind


def whole(run: Any) -> int:
    """The run's log and ticks, to the last; how many lines."""
    log = re.sub(r"^amltrain: .*\n", "", run.logs(), flags=re.M).splitlines()
    count = int(log[-1].split()[1])
    assert log[:-1] == [f"line {i} {'x' * (i % 60)}" for i in range(count)]
    seq = run.telemetry()["seq"].tolist()
    assert seq == list(range(len(seq)))
    steps = [step for step, _, _ in run.metrics()["loss"]]
    assert steps == list(range(0, count, 20))
    return count


def azure_process(home: Path) -> psutil.Process:
    """The one that talks to Azure for this test."""

    def found() -> psutil.Process | None:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # one that was killed a moment ago
                if {"jupyter_amltrain.azure.service", str(home)} <= set(child.cmdline()):
                    return child
        return None

    process = until(found)
    assert process is not None
    return process


@pytest.mark.timeout(SECONDS + 300)
def test_azure_run_of_half_day_is_complete(desk: NotebookSession) -> None:
    chance = random.Random(SEED)
    flags = f"--name day --as run --env-var AMLTRAIN_SAMPLE_PERIOD={PERIOD}"
    desk.good(f"%%aml_submit {flags}\n{CODE.format(seconds=SECONDS)}")
    run = desk.shell.user_ns["run"]
    desk.good("run.dashboard()")  # somebody looks at it all day
    until(lambda: "line 1 " in run.logs())
    kernel, process = psutil.Process(), azure_process(desk.home)
    began, early, seen = time.monotonic(), (0, 0), []
    while time.monotonic() - began < SECONDS - 15:
        time.sleep(chance.uniform(0.5, max(1.0, SECONDS / 30)))
        seen.append(trouble(desk.azure, chance))
        if not early[0] and time.monotonic() - began > SECONDS / 10:
            early = (kernel.memory_info().rss, process.memory_info().rss)
    late = (kernel.memory_info().rss, process.memory_info().rss)
    desk.steady()
    run.wait(180)
    count = whole(run)
    ticks = len(run.telemetry())
    print(f"{count} lines, {ticks} ticks, {len(seen)} troubles; memory (MB) early {early}, late {late}")
    assert ticks > 0.7 * SECONDS / PERIOD, (ticks, SECONDS / PERIOD)
    assert process.is_running()
    for before, after in zip(early, late, strict=True):
        assert after - before < FLAT, (early, late)


@pytest.mark.timeout(900)
def test_azure_run_with_twenty_process_deaths_is_complete(desk: NotebookSession) -> None:
    """Of the process that talks to Azure, and of the whole kernel: as one that starts again with the same folder."""
    from jupyter_amltrain import api

    chance = random.Random(SEED + 1)
    desk.good(f"%%aml_submit --name deaths --as run\n{CODE.format(seconds=60)}")
    handle = desk.shell.user_ns["run"].handle
    for number in range(20):
        run = api.attach(handle)
        future = api.controller().loop.post(api.controller().wait(run.handle))
        time.sleep(chance.uniform(0.1, 2.0))
        azure_process(desk.home).send_signal(signal.SIGKILL)
        if number % 2:  # and the kernel with it: nothing of its memory is left
            future.cancel()
            api.close()
    run = api.attach(handle)
    run.wait(120)
    assert run.state == "completed"
    whole(run)

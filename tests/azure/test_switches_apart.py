"""Switches of the emulator that touch something else than jobs that run: each is tried by what it touches."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import AmlTrainError, WorkspaceGone
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import Distribution, Resources
from jupyter_amltrain.schema.run import RunState
from tests.azure.conftest import Azure
from tests.azure.switch_cases import APART, FLIPS, LIMIT, SIZE, Bench, opened, three


@pytest.fixture(scope="module")
def bench(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with opened(azure, tmp_path_factory.mktemp("switches")) as made:
        yield made


async def connects(bench: Bench, switch: str) -> None:
    """A new sign-in says what is missing, and the jobs run."""
    bench.azure.control("/expire-tokens")
    missing = " ".join((await bench.connect())["missing"])
    assert ("services are not responding" in missing) == (switch == "discovery")
    if switch in ("token_seconds", "data_audience"):
        return await three(bench, switch)
    backend = await bench.cluster()
    run = await bench.ended(backend, await bench.launch(backend, "short", "print(1)\n"))
    assert run.status.state is RunState.COMPLETED and await bench.printed(backend, run) == ["1"]


async def doomed(bench: Bench, switch: str) -> None:
    """A cluster that cannot be made says why."""
    bench.azure.control("/switch", fail_provisioning="doomed")
    with pytest.raises(AmlTrainError, match="no capacity"):
        await bench.cluster("doomed")
    await bench.of("computes.delete", name="doomed")


async def warned(bench: Bench, switch: str) -> None:
    """A cluster with a warning is healthy and can be scaled."""
    backend = await bench.cluster(size="Standard_NC6s_v3", max_nodes=1)
    await bench.of("computes.update", name=backend.target.name, settings={"min_nodes": 1})
    state = await backend.state()
    assert state.state == "ready" and ("Warning" in state.detail) == (switch != "cluster_warnings")
    await bench.of("computes.update", name=backend.target.name, settings={"min_nodes": 0})
    await bench.of("computes.delete", name=backend.target.name)


async def no_start(bench: Bench, switch: str) -> None:
    """A stop that fails is reported at once, in whichever way the service tells it."""
    name = f"doomed-i{bench.number}x"
    bench.number += 1
    await bench.of("computes.create", kind="instance", name=name, settings={"size": SIZE})
    bench.azure.control("/switch", fail_power="doomed")
    began = time.monotonic()
    with pytest.raises(AmlTrainError):
        await bench.of("computes.stop", name=name)
    assert time.monotonic() - began < 60
    bench.azure.control("/switch", fail_power="")
    await bench.of("computes.delete", name=name)


async def no_machines(bench: Bench, switch: str) -> None:
    """A job waits, says for what, and can be canceled."""
    backend = await bench.cluster("doomed-2")
    run = await bench.launch(backend, "waits", "print(1)\n")
    end = time.monotonic() + LIMIT
    while "capacity" not in str((await backend.state()).detail).lower():
        assert time.monotonic() < end, (await backend.state()).detail
        await asyncio.sleep(0.05)
    assert (await backend.poll((run.run_id,)))[run.run_id].detail
    await backend.cancel(run.run_id)
    assert (await bench.ended(backend, run)).status.state is RunState.CANCELED


async def beyond_quota(bench: Bench, switch: str) -> None:
    """Machines beyond the quota are refused, at the latest when a job wants them."""
    with pytest.raises(AmlTrainError, match=r"(?i)quota"):
        backend = await bench.cluster(size="Standard_NC48ads_A100_v4", max_nodes=1)
        await bench.ended(backend, await bench.launch(backend, "never", "print(1)\n"))


async def low_priority(bench: Bench, switch: str) -> None:
    """The same of low priority; a size without it says so at once, or by the cluster's errors."""
    backend = await bench.cluster(low_priority=True)
    run = await bench.ended(backend, await bench.launch(backend, "low", "print(1)\n"))
    assert run.status.state is RunState.COMPLETED
    with pytest.raises(AmlTrainError, match="as a low-priority machine"):
        await bench.cluster(size="Standard_ND96isr_H100_v5", low_priority=True)
        assert switch != "low_priority_on_create"
        raise AmlTrainError("made, and its errors say later: not as a low-priority machine")


async def taken_away(bench: Bench, switch: str) -> None:
    """A pre-empted job begins again; its log has both attempts, its ticks one count."""
    backend = await bench.cluster(low_priority=True)
    go = bench.root.path / f"go-{bench.number}"
    text = (
        "import os, time\nprint('begins', flush=True)\n"
        f"time.sleep(0.2 if os.path.exists({str(go)!r}) else 600)\nprint('ends')\n"
    )
    run = await bench.launch(backend, "taken", text)
    while "begins" not in await bench.log(backend, run):
        await backend.poll((run.run_id,))
        await asyncio.sleep(0.05)
    go.touch()
    if switch == "preempt_after":
        bench.azure.control("/switch", preempt_after=0)  # of the next machine: a slow test would never end
    else:
        bench.azure.control("/preempt", job=run.run_id)
    run = await bench.ended(backend, run)
    assert run.status.state is RunState.COMPLETED
    lines = (await bench.log(backend, run)).splitlines()
    own = [line for line in lines if line.startswith("amltrain:")]
    others = [line for line in lines if line not in own]
    assert others[-2:] == ["begins", "ends"] and set(others) == {"begins", "ends"}
    # An attempt that nobody counts and that begins with the same words goes on where the one before was.
    assert any(re.search(r"attempt \d", line) for line in own) or switch == "attempts_counted", lines
    ticks = [json.loads(line) for line in (await backend.read(run.run_id, "telemetry", 0)).data.splitlines()]
    numbers = [tick[0] for tick in ticks if isinstance(tick, list)]
    assert numbers == list(range(len(numbers)))


async def ranks(bench: Bench, switch: str) -> None:
    """All ranks are in the log, each node has its telemetry."""
    each = 6 if switch == "std_log_names" else 2
    kind = "mpi" if switch == "mpi_by_node" else "pytorch"
    backend = await bench.cluster()
    distribution = Distribution(kind=kind, processes=each)
    text = "import time\nprint('line', flush=True)\ntime.sleep(0.5)\n"
    run = await bench.launch(backend, "ranks", text, resources=Resources(nodes=2), distribution=distribution)
    run = await bench.ended(backend, run)
    assert run.status.state is RunState.COMPLETED
    assert sorted(await bench.printed(backend, run)) == sorted(f"[rank {rank}] line" for rank in range(2 * each))
    assert await bench.nodes(backend, run) == [0, 1]


async def with_gpus(bench: Bench, switch: str) -> None:
    """A job on a GPU runs and has its telemetry, whatever NVML shows."""
    backend = await bench.cluster(size="Standard_NC6s_v3", max_nodes=1)
    run = await bench.launch(
        backend, "gpu", "import time\nprint('on', flush=True)\ntime.sleep(0.5)\n", resources=Resources(gpus=1)
    )
    run = await bench.ended(backend, run)
    assert (run.status.state, run.status.exit_code) == (RunState.COMPLETED, 0)
    header = json.loads((await backend.read(run.run_id, "telemetry", 0)).data.splitlines()[0])
    assert len(header["gpus"]) == {"fake_gpus": 0, "gpus_visible": 2}.get(switch, 1) and await bench.nodes(
        backend, run
    ) == [0]


async def too_long(bench: Bench, switch: str) -> None:
    """A time limit is reported as one, whichever state the service gives it."""
    backend = await bench.cluster()
    run = await bench.launch(backend, "limit", "import time\ntime.sleep(60)\n", timeout=1.0)
    status = (await bench.ended(backend, run)).status
    assert (status.state, status.reason) == (RunState.FAILED, "timeout")


async def not_built(bench: Bench, switch: str) -> None:
    """An image that cannot be built fails the job with its log."""
    conda = Path("conda.yml")
    conda.write_text("dependencies: [python=3.11, pip]\n")
    backend = await bench.cluster()
    run = await bench.launch(backend, "image", "print(1)\n", environment=Environment(conda=str(conda.resolve())))
    run = await bench.ended(backend, run)
    assert (run.status.state, run.status.reason) == (RunState.FAILED, "environment")
    assert "scripted to fail" in await bench.log(backend, run)


async def reads_only(bench: Bench, switch: str) -> None:
    """A user without write access learns what is missing, at the connect and at the act."""
    bench.flip()
    backend = await bench.cluster()
    bench.flip(authorization="reader")
    assert "submit jobs" in " ".join((await bench.connect())["missing"])
    with pytest.raises(AmlTrainError, match="lacks? the permission"):
        await bench.launch(backend, "refused", "print(1)\n")
    assert (await backend.list())[1] == []


async def late_address(bench: Bench, switch: str) -> None:
    """An expired address for the code is reported in one sentence."""
    backend = await bench.cluster()
    with pytest.raises(AmlTrainError) as refused:
        await bench.launch(backend, "code", f"print({time.time()})\n")
    assert re.search("signature|signed address", str(refused.value)), refused.value


async def attached(bench: Bench, switch: str) -> None:
    """What was attached is detached."""
    machine = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/virtualMachines/v"
    settings = {"resource_id": machine, "ssh_user": "u", "ssh_port": 22}
    await bench.of("computes.attach", kind="vm", name="far", settings={**settings, "password": "s3cret"})
    await bench.of("computes.detach", name="far")
    assert await bench.of("computes.get", name="far") is None


async def gone(bench: Bench, switch: str) -> None:
    """A workspace that somebody else deleted is not there, and no cancel in it succeeds."""
    backend = await bench.cluster()
    bench.azure.control("/gone")
    try:
        with pytest.raises(WorkspaceGone):
            await backend.cancel("any-12345")
    finally:
        bench.azure.control("/workspace", name=bench.azure.workspace)


async def no_prices(bench: Bench, switch: str) -> None:
    """Sizes without a price."""
    found = await bench.of("sizes.list", fresh=True)
    assert len(found) == 80 and {row["price"] for row in found} == {None}


async def monitored(bench: Bench, switch: str) -> None:
    """Azure Monitor has nothing yet: no error, no figures."""
    backend = await bench.cluster()
    run = await bench.ended(backend, await bench.launch(backend, "short", "print(1)\n"))
    assert (await bench.of("monitor.metrics", run=run.run_id))["nodes"] == {}


pytestmark = pytest.mark.thorough

OTHERS = {
    "challenge_tenant": connects,
    "permissions_readable": connects,
    "discovery": connects,
    "token_seconds": connects,
    "data_audience": connects,
    "failed_operation": doomed,
    "fail_provisioning": doomed,
    "cluster_warnings": warned,
    "fail_power": no_start,
    "power_failure": no_start,
    "fail_allocation": no_machines,
    "quota_on_create": beyond_quota,
    "low_priority_pool": low_priority,
    "low_priority_on_create": low_priority,
    "preempt_after": taken_away,
    "retry_logs": taken_away,
    "attempts_counted": taken_away,
    "std_log_names": ranks,
    "mpi_by_node": ranks,
    "node_rank": ranks,
    "gone_workspace": gone,
    "gpus_visible": with_gpus,
    "fake_gpus": with_gpus,
    "timeout_reason": too_long,
    "timeout_state": too_long,
    "fail_build": not_built,
    "authorization": reads_only,
    "upload_sas_seconds": late_address,
    "delete_attached_refused": attached,
    "prices": no_prices,
    "monitor_delay": monitored,
}

# `too_long` as assumed is test_backend's.
AS_ASSUMED = (connects, doomed, warned, beyond_quota, low_priority, taken_away, ranks, with_gpus, attached, gone)


@pytest.mark.parametrize(
    ("switch", "value"),
    [pytest.param(switch, value, id=f"{switch}={value}") for switch in sorted(OTHERS) for value in FLIPS[switch]],
)
def test_switch_alone_keeps_behavior(bench: Bench, switch: str, value: Any) -> None:
    bench.flip(**{switch: value})
    try:
        bench.call(asyncio.wait_for(OTHERS[switch](bench, switch), LIMIT - 5))
    finally:
        bench.flip()
        if OTHERS[switch] in (connects, reads_only):
            bench.azure.control("/expire-tokens")
            bench.call(bench.connect())
        bench.call(bench.clear())
    assert bench.azure.control("/problems") == {"problems": [], "refused_hosts": []}


@pytest.mark.parametrize("work", AS_ASSUMED, ids=lambda work: work.__name__)
def test_assumed_behavior_is_supported(bench: Bench, work: Any) -> None:
    """The others see something with their switch alone, or are tested elsewhere as assumed."""
    bench.flip()
    try:
        bench.call(asyncio.wait_for(work(bench, ""), LIMIT - 5))
    finally:
        bench.call(bench.clear())


def test_switches_apart_are_all_tested() -> None:
    assert set(OTHERS) == APART

"""Runs on several machines over SSH: two servers with a state root and a queue each."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.agent.distributed.gang import GATE, SILENCE_S
from jupyter_amltrain.backends.base import ACCEPT
from jupyter_amltrain.backends.nodes_submit import NodesSubmit
from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.backends.ssh_nodes import NodesBackend
from jupyter_amltrain.backends.ssh_transport import SshTransport
from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as command
from jupyter_amltrain.errors import AuthenticationError, CommandError, RunFailed, RunLost, TargetError
from jupyter_amltrain.schema.ssh_target import SshTarget
from tests.conftest import end_all, processes_of
from tests.distributed.scripts import ALL_REDUCE, ENVIRONMENT, LEAVE, LEAVE_DDP, TRAINING, needs_mpirun, needs_torch
from tests.helpers import api_of, until
from tools.openssh import Sshd

from .proxy import Proxy

WAIT_S = 150.0


@pytest.fixture(scope="module")
def api(folder: Path, homes: list[Path], servers: list[Sshd]) -> Iterator[Any]:
    """The API with the target ``gpus`` of both machines, by their names of ``~/.ssh/config``."""
    configure(folder, {home.name: (server, server.port) for home, server in zip(homes, servers, strict=True)})
    with api_of(folder, HOME=str(folder / "user"), SSH_AUTH_SOCK="") as module:
        attach(module, servers)
        yield module


def configure(folder: Path, machines: Mapping[str, tuple[Sshd, int]]) -> None:
    """Write the user's ``~/.ssh/config``: names of servers, and the ports at which they are reached."""
    (folder / "user" / ".ssh").mkdir(parents=True, exist_ok=True)
    with (folder / "user" / ".ssh" / "config").open("w") as config:
        for name, (server, port) in machines.items():
            settings = ("HostName 127.0.0.1", f"Port {port}", f"IdentityFile {server.key}")
            config.write("\n  ".join((f"Host {name}", *settings)) + "\n")


def attach(api: Any, servers: list[Sshd], name: str = "gpus") -> None:
    values = {
        "host": "first,second",
        "python": sys.executable,
        "accept_host_key": ",".join(server.fingerprint for server in servers),
    }
    assert not api.act("attach", name, kind="ssh", values=values, confirmed=True).errors
    manager = api.controller().target_manager
    until(lambda: api.controller().loop.call(manager.operations.finished(name, 30.0)) is not None, "attached")


def check_of(api: Any, **fields: Any) -> Any:
    """What the machines say to a target that is not attached."""
    controller = api.controller()
    backend = NodesBackend(SshTarget(name="draft", python=sys.executable, **fields), controller.loop, controller.root)
    try:
        return controller.loop.call(backend.check(), WAIT_S)
    finally:
        controller.loop.call(backend.close())


@pytest.mark.thorough
def test_key_of_second_machine_is_asked_for(api: Any, servers: list[Sshd]) -> None:
    with pytest.raises(AuthenticationError) as raised:
        check_of(api, host="first,second", accept_host_key=servers[0].fingerprint)
    both = ",".join(server.fingerprint for server in servers)
    assert raised.value.code == "ssh.host_key" and raised.value.details[ACCEPT] == {"accept_host_key": both}
    info = check_of(api, host="first,second", accept_host_key=both)
    assert info.slots["cpu"]["total"] == 2 and "second" in info.detail


def test_one_machine_under_two_names_is_refused(api: Any, servers: list[Sshd]) -> None:
    port = servers[0].port
    with pytest.raises(TargetError) as raised:
        check_of(
            api,
            host=f"first,127.0.0.1:{port}",
            accept_host_key=servers[0].fingerprint,
            identity_file=str(servers[0].key),
        )
    assert raised.value.code == "ssh.same_machine"


def test_machines_that_share_their_state_root_are_refused(api: Any, servers: list[Sshd], tmp_path: Path) -> None:
    both = ",".join(server.fingerprint for server in servers)
    with pytest.raises(TargetError) as raised:
        check_of(api, host="first,second", accept_host_key=both, workdir=str(tmp_path / "shared"))
    assert raised.value.code == "ssh.shared_workdir" and "second" in str(raised.value)


@pytest.mark.thorough
@needs_torch
def test_pytorch_processes_of_two_machines_connect(api: Any) -> None:
    run = api.submit(ALL_REDUCE + LEAVE, target="gpus", nodes=2, processes=2, gpus=0, out=["total"], name="two").wait(
        WAIT_S
    )
    assert [run.logs(rank=rank).strip() for rank in range(4)] == [f"rank {rank} of 4 sum 10" for rank in range(4)]
    assert run.result("total") == 10 and (run.status.nodes, run.status.ranks) == (2, 4)


@pytest.mark.thorough
@needs_torch
def test_losses_on_two_machines_are_those_of_two_processes_here(api: Any) -> None:
    there = api.submit(TRAINING, target="gpus", nodes=2, processes=1, gpus=0, name="train").wait(WAIT_S)
    here = api.submit(TRAINING, target="local", processes=2, gpus=0, name="train").wait(WAIT_S)
    curves = [[value for *_, value in run.metrics()["loss"]] for run in (there, here)]
    assert len(curves[0]) == 10 and curves[0] == pytest.approx(curves[1], rel=1e-6, abs=1e-6)


@pytest.mark.thorough
@needs_torch
@pytest.mark.parametrize("end", ["raise ValueError('bad luck')", "os.kill(os.getpid(), 9)"])
def test_pytorch_process_of_second_machine_that_fails_is_named(api: Any, homes: list[Path], end: str) -> None:
    code = ALL_REDUCE + f"if rank == 1:\n    {end}\ndist.barrier()\n"  # rank 0 fails because of it
    run = api.submit(code, target="gpus", nodes=2, processes=1, gpus=0, name="fails")
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.failed_rank == 1 and "second" in run.status.detail
    nothing_is_left(homes, run)


# ---- by the launcher that needs no framework: rank 1 is on the second machine

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def submit(api: Any, script: str = SLEEP, **more: Any) -> Any:
    fields = {"target": "gpus", "nodes": 2, "processes": 1, "distribution": "tensorflow", "gpus": 0, **more}
    return api.submit(script, **fields)


def up(run: Any, *ranks: int) -> Any:
    """Wait until the ranks run."""
    for rank in ranks or (0, 1):
        until(lambda rank=rank: "up" in run.logs(rank=rank), f"rank {rank}")
    return run


def job_of(home: Path, run: Any, rank: int) -> psutil.Process:
    """The process of the job itself, below the program around it."""
    row = json.loads((home / "runs" / run.run_id / "ranks" / f"{rank}.json").read_text())
    return until(lambda: psutil.Process(row["pid"]).children(), f"rank {rank}")[0]


def state_of(home: Path, run: Any) -> dict[str, Any]:
    """The state of the run on one machine."""
    state: dict[str, Any] = json.loads((home / "runs" / run.run_id / "state.json").read_text())
    return state


def left_of(homes: list[Path], run: Any) -> list[psutil.Process]:
    """Processes of the run on any machine."""
    found = []
    for process in [process for home in homes for process in processes_of(home)]:
        with contextlib.suppress(psutil.Error):
            mark = process.environ().get("AMLTRAIN_RUN", "").startswith(f"{run.run_id}:")
            if mark and process.status() != psutil.STATUS_ZOMBIE or "node" in process.cmdline()[4:5]:
                found.append(process)
    return found


def nothing_is_left(homes: list[Path], run: Any) -> None:
    until(lambda: not left_of(homes, run), "the end of all processes", 30)


@pytest.mark.thorough
def test_environment_has_cluster_of_both_machines_and_logs_are_read_by_rank(api: Any, homes: list[Path]) -> None:
    run = submit(api, ENVIRONMENT, processes=2, distribution="tensorflow:1", gpus=0).wait(WAIT_S)
    seen = [json.loads(json.loads(run.logs(rank=rank))["TF_CONFIG"]) for rank in range(4)]
    tasks = [(row["task"]["type"], row["task"]["index"]) for row in seen]
    assert tasks == [("worker", index) for index in range(4)]
    assert all(row["cluster"] == seen[0]["cluster"] for row in seen) and len(set(seen[0]["cluster"]["worker"])) == 4
    assert run.status.ranks == 5 and "ps" in run.logs(rank=4)
    listed = command("runs", ["logs", run.run_id], Context("%aml_runs")).text
    for text in (run.logs(), listed):
        assert all(f"[rank {rank}]" in text for rank in range(5))
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_data_is_sent_to_both_machines(api: Any, homes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b")
    code = "import os; print(open(os.environ['AML_INPUT_DATA']).read(), os.path.realpath(os.environ['AML_INPUT_DATA']))"
    run = submit(api, code, inputs={"data": f"{tmp_path / 'table.csv'},upload"}, name="sent").wait(WAIT_S)
    assert [run.logs(rank=rank).split()[0] for rank in range(2)] == ["a,b", "a,b"]
    assert all(str(home / "data") in run.logs(rank=rank) for rank, home in enumerate(homes))


@pytest.mark.thorough
def test_parameter_servers_end_after_workers_of_all_machines(api: Any, homes: list[Path], tmp_path: Path) -> None:
    code = f"""
import glob, json, os, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{{task['type']}} {{task['index']}}"
print(name, flush=True)
open({str(tmp_path)!r} + f"/{{name}} {{os.getpid()}}", "w").close()
while name == "worker 0" and len(glob.glob({str(tmp_path)!r} + "/*")) < 5:
    time.sleep(0.1)
if name == "worker 0":
    time.sleep(3)  # the second machine has no worker now
    for path in glob.glob({str(tmp_path)!r} + "/ps *"):
        os.kill(int(path.split()[-1]), 0)
if task["type"] == "ps":
    time.sleep(600)
"""
    run = submit(api, code, distribution="tensorflow:3", name="servers").wait(WAIT_S)
    names = ["worker 0", "worker 1", "ps 0", "ps 1", "ps 2"]
    assert [run.logs(rank=rank).strip() for rank in range(5)] == names
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_rank_on_second_machine_that_raises_is_named(api: Any, homes: list[Path]) -> None:
    code = ENVIRONMENT + "if '\"index\": 1' in os.environ['TF_CONFIG']:\n    raise ValueError('bad luck')\n" + SLEEP
    run = submit(api, code, name="raises")
    with pytest.raises(RunFailed) as raised:
        run.wait(WAIT_S)
    assert "bad luck" in str(raised.value) and "bad luck" in raised.value.log_tail
    assert run.status.failed_rank == 1 and run.status.exit_code == 1 and "second" in run.status.detail
    assert [frame.code for frame in raised.value.frames] == ["raise ValueError('bad luck')"]
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_rank_on_second_machine_that_is_killed_is_named(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, name="killed"))
    job_of(homes[1], run, 1).send_signal(signal.SIGKILL)
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert (run.status.failed_rank, run.status.signal, run.status.reason) == (1, signal.SIGKILL, "signal")
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_cancel_ends_all_ranks_on_both_machines(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, name="canceled", processes=4), *range(8))
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert run.status.state == "canceled" and run.status.failed_rank is None
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_time_limit_ends_all_ranks_on_both_machines(api: Any, homes: list[Path]) -> None:
    run = submit(api, name="late", timeout=3)
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.reason == "timeout"
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_killed_agent_of_second_machine_ends_run_as_lost(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, name="gone"))
    began = time.monotonic()
    end_all(homes[1])
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    assert time.monotonic() - began < 30 and "second" in run.status.detail
    nothing_is_left(homes, run)
    assert submit(api, "print('next')", name="next").wait(WAIT_S).logs(rank=0) == "next\n"


@pytest.mark.thorough
def test_restart_of_second_machine_ends_run_as_lost_and_it_is_used_again(
    api: Any, homes: list[Path], servers: list[Sshd]
) -> None:
    run = up(submit(api, name="boot"))
    servers[1].stop()
    end_all(homes[1])
    state = homes[1] / "runs" / run.run_id / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "an earlier boot"}))
    servers[1].start()
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    nothing_is_left(homes, run)
    assert submit(api, "print('next')", name="next").wait(WAIT_S).logs(rank=1) == "next\n"


@pytest.mark.thorough
def test_killed_agent_of_first_machine_ends_second(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, name="gone"))
    end_all(homes[0])
    with pytest.raises(RunLost):
        run.wait(WAIT_S)
    until(lambda: state_of(homes[1], run)["state"] == "lost", "its end", 30)
    assert "node 0" in state_of(homes[1], run)["detail"]
    nothing_is_left(homes, run)


def test_killed_supervisor_of_second_machine_ends_run_as_lost_at_once(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, name="killed"))
    os.kill(state_of(homes[1], run)["supervisor"]["pid"], signal.SIGKILL)
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_killed_connector_of_second_machine_ends_run_as_lost(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, name="killed"))
    connector = json.loads((homes[1] / "runs" / run.run_id / GATE).read_text())
    os.kill(connector["pid"], signal.SIGKILL)
    until(lambda: state_of(homes[1], run)["state"] == "lost", "its end")
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_running_and_queued_runs_need_no_kernel(api: Any, homes: list[Path], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = SLEEP.replace("time.sleep(600)", f"import os\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.1)")
    runs = [up(submit(api, code, name="runs")), submit(api, code, name="waits")]
    until(lambda: " slot" in runs[1].status.detail, "what it waits for")
    api.close()
    gate.touch()
    for run in runs:
        until(lambda run=run: state_of(homes[1], run)["state"] == "completed", "the end without a kernel")
        assert api.attach(run.handle).wait(WAIT_S).logs(rank=1) == "up\n"


@pytest.mark.thorough
def test_telemetry_of_both_machines_is_read(api: Any, homes: list[Path]) -> None:
    run = submit(api, "import time\ntime.sleep(2)\n", name="hosts").wait(WAIT_S)
    assert sorted(run.telemetry()["node"].unique()) == [0, 1]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Proxy]]:
    """The link between the agents of the next run leads through a proxy."""
    made: list[Proxy] = []
    really = NodesSubmit._open

    async def through(self: NodesSubmit, run_id: str) -> Any:
        links = await really(self, run_id)
        made.append(Proxy(links[0]["port"]))
        return [{**links[0], "port": made[0].port}, *links[1:]]

    monkeypatch.setattr(NodesSubmit, "_open", through)
    yield lambda: made[0]
    for one in made:
        one.thaw()
        one.close()


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["cut", "freeze"])
def test_link_between_agents_that_is_lost_ends_run_as_lost(
    api: Any, homes: list[Path], proxy: Callable[[], Proxy], what: str
) -> None:
    run = up(submit(api, name="cut"))
    began = time.monotonic()
    getattr(proxy(), what)()
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    assert time.monotonic() - began < 30
    nothing_is_left(homes, run)  # the second machine ends its part by itself
    state = state_of(homes[1], run)
    assert state["state"] == "lost" and "node 0" in state["detail"]


@pytest.mark.thorough
def test_short_cut_of_link_between_agents_does_not_matter(api: Any, proxy: Callable[[], Proxy], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = SLEEP.replace("time.sleep(600)", f"import os\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.1)")
    run = up(submit(api, code, name="short"))
    proxy().cut()
    time.sleep(3.0)
    proxy().mend()
    gate.touch()
    assert run.wait(WAIT_S).state == "completed"


@pytest.mark.thorough
def test_two_runs_at_once_take_one_slot_each_in_turn(api: Any, homes: list[Path]) -> None:
    code = "import time\nprint('up', flush=True)\ntime.sleep(1)\n"
    runs = [submit(api, code, name=f"turn-{number}") for number in range(4)]
    for run in runs:
        assert run.wait(WAIT_S).logs(rank=1) == "up\n"
    nothing_is_left(homes, runs[0])


@pytest.mark.thorough
def test_queued_run_says_what_it_waits_for_and_is_canceled(api: Any, homes: list[Path]) -> None:
    first = up(submit(api, name="holds"))
    second = submit(api, name="waits")
    try:
        until(lambda: " slot" in second.status.detail, "what it waits for")
        second.cancel()
        until(lambda: second.status.state.terminal, "the end")
        assert second.status.state == "canceled"
    finally:
        first.cancel()
    nothing_is_left(homes, first)


@pytest.mark.thorough
def test_first_machine_that_gets_run_late_is_waited_for(
    api: Any, homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    put, really, opened = SshTransport.put, SshBackend._submit, NodesSubmit._open

    async def sent(self: SshTransport, *args: Any) -> None:
        await put(self, *args)
        events.append("sent")

    async def late(self: SshBackend, plan: Any, *args: Any) -> Any:
        if plan.request["nodes"]["node"] == 0:
            await asyncio.sleep(SILENCE_S + 3)
        return await really(self, plan, *args)

    async def noted(self: NodesSubmit, *args: Any) -> Any:
        events.append("opened")
        return await opened(self, *args)

    monkeypatch.setattr(SshTransport, "put", sent)
    monkeypatch.setattr(SshBackend, "_submit", late)
    monkeypatch.setattr(NodesSubmit, "_open", noted)
    run = submit(api, "print('up')", name="late").wait(WAIT_S)
    assert run.logs(rank=1) == "up\n" and events == ["sent", "sent", "opened"]  # files first: they may take long
    nothing_is_left(homes, run)


# ---- several attempts

FAILS_ONCE = """
import json, os, pathlib, time
mark = pathlib.Path(os.environ["AML_CHECKPOINT_DIR"]) / "tried"
index = int(os.environ.get("OMPI_COMM_WORLD_RANK") or json.loads(os.environ["TF_CONFIG"])["task"]["index"])
print("attempt", 1 + mark.exists(), flush=True)
if not mark.exists():
    mark.touch()
    time.sleep(1)  # the other one has started, too
    if index == 1:
        raise ValueError("bad luck")
    time.sleep(600)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["tensorflow", pytest.param("mpi", marks=needs_mpirun)])
def test_failed_process_starts_all_machines_again(api: Any, homes: list[Path], kind: str) -> None:
    run = submit(api, FAILS_ONCE, distribution=kind, max_restarts=2, name="again").wait(WAIT_S)
    assert run.status.attempt == 2 and "bad luck" not in run.logs(rank=0)
    for rank in range(2):
        lines = run.logs(rank=rank).splitlines()
        assert [line for line in lines if line.startswith("attempt")] == ["attempt 1", "attempt 2"]
    assert "ValueError: bad luck" in run.logs(rank=1)
    assert [state_of(home, run)["attempt"] for home in homes] == [2, 2]
    nothing_is_left(homes, run)


CHECKPOINTS = (
    """
import mlflow, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
place, first = os.environ["AML_CHECKPOINT_DIR"] + "/last.pt", 0
if os.path.exists(place):
    saved = torch.load(place)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, 20):
    if step == fails_at and first == 0 and rank == 1:
        os.kill(os.getpid(), 9)
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        mlflow.log_metric("loss", loss.item(), step=step)
    if step % 4 == 3:  # each machine has a folder of its own
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, place)
        dist.barrier()
weights = model.module.weight.detach().flatten().tolist()
dist.barrier()
"""
    + LEAVE_DDP
)


@pytest.mark.thorough
@needs_torch
def test_restarted_machines_train_to_weights_of_uninterrupted_run(api: Any, homes: list[Path]) -> None:
    fields = {"target": "gpus", "nodes": 2, "processes": 1, "gpus": 0, "out": ["weights"], "name": "weights"}
    whole = api.submit(CHECKPOINTS, params={"fails_at": 99}, **fields).wait(WAIT_S)
    again = api.submit(CHECKPOINTS, params={"fails_at": 14}, max_restarts=1, **fields).wait(WAIT_S)
    assert again.status.attempt == 2 and again.result("weights") == whole.result("weights")
    steps = [step for step, _, _ in again.metrics()["loss"]]
    assert set(steps) == set(range(20)) and len(steps) - 20 <= 4  # repeated: at most one interval
    nothing_is_left(homes, again)


@pytest.mark.thorough
def test_process_that_fails_in_each_attempt_ends_run_with_its_name(api: Any, homes: list[Path]) -> None:
    code = ENVIRONMENT + "if '\"index\": 1' in os.environ['TF_CONFIG']:\n    raise ValueError('bad luck')\n" + SLEEP
    run = submit(api, code, max_restarts=1, name="never")
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.failed_rank == 1 and run.status.attempt == 2 and "second" in run.status.detail
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_simulated_preemption_starts_all_machines_again(api: Any, homes: list[Path]) -> None:
    code = "import os, pathlib, time\nmark = pathlib.Path(os.environ['AML_CHECKPOINT_DIR'], 'tried')\n"
    code += "if not mark.exists():\n    mark.touch()\n    time.sleep(600)\n"
    run = submit(api, code, max_restarts=1, simulate_preemption=3, name="taken").wait(WAIT_S)
    assert run.status.attempt == 2
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_cancel_while_next_attempt_is_awaited_ends_both_machines(api: Any, homes: list[Path]) -> None:
    run = submit(api, "import time\ntime.sleep(1)\nraise ValueError('bad luck')", max_restarts=9, name="stop")
    until(lambda: [state_of(home, run).get("attempt", 1) for home in homes] >= [3, 3], "the third attempt", 60)
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert run.status.state == "canceled"
    nothing_is_left(homes, run)


@pytest.mark.thorough
def test_machine_that_is_gone_ends_run_although_it_may_restart(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, max_restarts=3, name="gone"))
    end_all(homes[1])
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    nothing_is_left(homes, run)


# ---- by mpirun: it starts daemons on the second machine without a login there


@needs_mpirun
def test_mpi_processes_of_both_machines_are_one_world(api: Any, homes: list[Path]) -> None:
    run = submit(api, ENVIRONMENT, distribution="mpi", processes=2, name="mpi").wait(WAIT_S)
    seen = [json.loads(run.logs(rank=rank)) for rank in range(4)]
    assert [(row["OMPI_COMM_WORLD_RANK"], row["OMPI_COMM_WORLD_LOCAL_RANK"]) for row in seen] == [
        ("0", "0"), ("1", "1"), ("2", "0"), ("3", "1"),
    ]  # fmt: skip
    assert {row["OMPI_COMM_WORLD_SIZE"] for row in seen} == {"4"} and run.status.ranks == 4
    assert not (homes[0] / "runs" / run.run_id / "mpi.sock").exists()
    folders = [Path(row["AML_OUTPUT_DIR"]) for row in seen]
    assert [folder.is_relative_to(homes[1]) for folder in folders] == [False, False, True, True]
    nothing_is_left(homes, run)


@pytest.mark.thorough
@needs_mpirun
@pytest.mark.parametrize("end", ["raise ValueError('bad luck')", "os.kill(os.getpid(), 9)"])
def test_mpi_process_of_second_machine_that_fails_is_named(api: Any, homes: list[Path], end: str) -> None:
    code = f"import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    {end}\ntime.sleep(600)\n"
    run = submit(api, code, distribution="mpi", name="fails")
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.failed_rank == 1 and "second" in run.status.detail
    nothing_is_left(homes, run)


@pytest.mark.thorough
@needs_mpirun
def test_cancel_ends_mpi_processes_and_daemons_of_both_machines(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, distribution="mpi", processes=4, name="canceled"), *range(8))
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert run.status.state == "canceled" and run.status.failed_rank is None
    nothing_is_left(homes, run)


@pytest.mark.thorough
@needs_mpirun
def test_killed_daemon_of_second_machine_ends_mpi_run(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, distribution="mpi", name="daemon"))
    daemon = next(process for process in left_of(homes[1:], run) if process.name() in ("orted", "prted"))
    daemon.send_signal(signal.SIGKILL)
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert "node 1" in run.status.detail
    nothing_is_left(homes, run)


@pytest.mark.thorough
@needs_mpirun
def test_killed_agent_of_second_machine_ends_mpi_run_as_lost(api: Any, homes: list[Path]) -> None:
    run = up(submit(api, distribution="mpi", name="gone"))
    end_all(homes[1])
    with pytest.raises(RunLost, match="node 1"):
        run.wait(WAIT_S)
    nothing_is_left(homes, run)


@pytest.mark.frameworks
@needs_mpirun
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_mpi4py_adds_up_on_both_machines(api: Any, homes: list[Path]) -> None:
    code = "from mpi4py import MPI\ntotal = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)\n"
    # Both machines are this one, and have one name: the shared memory of Open MPI would be mixed up.
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    run = submit(api, code, distribution="mpi", processes=2, env=tcp, out=["total"], name="sum").wait(WAIT_S)
    assert run.result("total") == 10


@pytest.mark.thorough
def test_run_is_refused_if_machines_do_not_reach_each_other(
    api: Any, homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = NodesSubmit._open

    async def closed(self: NodesSubmit, run_id: str) -> Any:
        links = await really(self, run_id)
        return [{**links[0], "port": 9}, *links[1:]]

    monkeypatch.setattr(NodesSubmit, "_open", closed)
    with pytest.raises(TargetError) as raised:
        submit(api, name="apart").wait(WAIT_S)
    assert raised.value.code == "ssh.nodes_unreachable" and "second" in str(raised.value)
    until(lambda: not any("node" in p.cmdline()[4:5] for home in homes for p in processes_of(home)), "their end")


def test_more_nodes_than_machines_are_refused(api: Any) -> None:
    with pytest.raises((CommandError, TargetError, ValueError)) as raised:
        submit(api, nodes=3)
    assert "--nodes" in str(raised.value)

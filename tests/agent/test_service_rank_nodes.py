"""Several processes on several nodes: who samples, who keeps the state, whose GPUs they are."""

from __future__ import annotations

import json
import os
import signal

import pytest

from jupyter_amltrain.agent.azure import identity
from jupyter_amltrain.agent.azure.identity import Identity
from tests.agent import local_service
from tests.agent.conftest import until
from tests.agent.local_service import Job, ended, helper, one_line, pythons
from tests.fakes import nvml

no_leftovers = local_service.no_leftovers

#: Waits until all four are there, then until the test lets them go.
WAITING = """
import os, sys, time
rank, place = os.environ["RANK"], os.environ["PLACE"]
open(os.path.join(place, "up-" + rank), "w").close()
while not os.path.exists(os.path.join(place, "go")):
    time.sleep(0.01)
print("rank", rank, os.environ["AML_OUTPUT_DIR"][-18:])
"""


def ranks(code: int) -> dict[str, str]:
    return {"RANK": str(code), "LOCAL_RANK": str(code % 2), "NODE_RANK": str(code // 2), "WORLD_SIZE": "4"}


def gpus(job: Job, *lines: str, count: int = 2) -> None:
    """A fake driver for the processes of a job."""
    path = job.code.parent / "curves"
    path.write_text("\n".join(lines) + "\n")
    job.environ.update(
        LD_LIBRARY_PATH=str(nvml.needed()), AMLTRAIN_FAKE_NVML_CURVES=str(path), AMLTRAIN_FAKE_NVML_GPUS=str(count)
    )


@pytest.mark.thorough
def test_service_job_of_four_ranks_on_two_nodes_is_recorded(tmp_path, zipapp):
    nodes = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        spec = {"resources": {"nodes": 2}}
        nodes.append(Job(tmp_path / name, zipapp, WAITING, argv=["@python", "script.py"], spec=spec))
        gpus(nodes[-1], "* 0 70 500 200\n* 1 70 8000 200", count=len(nodes))
    processes = []
    for rank in range(4):
        processes.append(nodes[rank // 2].start(PLACE=str(tmp_path), **ranks(rank)))
    until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(4)), "all ranks")
    seen = [lambda n=n: [row for row in nodes[n].ticks(n) if row[4] == 2] for n in range(2)]
    until(lambda: seen[0]() and seen[1](), "both processes of each node in its telemetry")
    until(lambda: nodes[0].json("state.json").get("truth"), "the truth")
    (tmp_path / "go").touch()
    results = list(ended(processes))
    assert [code for code, _, _ in results] == [0] * 4 and not any(errors for _, _, errors in results)
    assert results[0][1].endswith(b"amltrain/outputs\n") and results[3][1].endswith(b"outputs/rank-3\n")
    state = nodes[0].json("state.json")
    assert state["state"] == "completed" and state["nodes"] == 2 and len(state["devices"]) == 1
    assert state["truth"]["verdict"] == "used"
    assert not nodes[1].json("state.json")
    for number, node in enumerate(nodes):
        header = node.lines(f"telemetry/node-{number}.jsonl")[0]
        assert header["node"] == number and len(header["gpus"]) == number + 1
        rows = node.ticks(number)
        assert [row[0] for row in rows] == list(range(len(rows))) and rows[-1][11] == 70
        assert node.json(f"telemetry/summary-{number}.json")["gpus"][0]["util_mean"] == 70
        assert node.json(f"telemetry/truth-{number}.json")["verdict"] == "used"
        # A minute may have ended meanwhile.
        names = {path.name for path in (node.logs / "telemetry").iterdir()} - {f"minutes-{number}.jsonl"}
        assert names == {f"node-{number}.jsonl", f"summary-{number}.json", f"truth-{number}.json"}


@pytest.mark.thorough
def test_service_job_killed_sampler_continues(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, WAITING)
    process = job.start(PLACE=str(tmp_path), RANK="0", python=pythons()[-1])
    until(lambda: len(job.ticks()) > 2, "ticks")
    os.kill(helper(process.pid, 0), signal.SIGKILL)
    before = len(job.ticks())
    until(lambda: len(job.ticks()) > before + 2, "ticks of the next sampler")
    (tmp_path / "go").touch()
    [(code, _, errors)] = ended([process])
    assert code == 0 and not errors
    rows = job.ticks()
    assert [row[0] for row in rows] == list(range(len(rows)))


@pytest.mark.thorough
def test_service_job_with_idle_gpu_is_stopped(tmp_path, zipapp):
    script = "import time\nfor _ in range(600): time.sleep(0.1)"
    job = Job(tmp_path, zipapp, script, require_gpu="stop", gpu_grace=0.5)
    gpus(job, "* 0 0 100 50")
    code, _, errors = job.run()
    assert code == 128 + signal.SIGTERM
    one_line(errors, "does not use its GPUs")
    state = job.json("state.json")
    assert state["reason"] == "gpu-unused" and state["truth"]["verdict"] == "not used"


@pytest.mark.thorough
def test_service_job_with_hanging_driver_starts(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, "print('trained')")
    gpus(job, "* 0 0 100 50")
    job.environ.update(AMLTRAIN_FAKE_NVML_HANG="600")
    code, out, errors = job.run()
    assert (code, out, errors) == (0, b"trained\n", b"")


ENVIRONS = [
    ({}, Identity()),
    ({"RANK": "7"}, Identity()),
    ({"RANK": "x", "LOCAL_RANK": "1"}, Identity()),
    ({"RANK": "5", "LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "8"}, Identity(5, 1, 1, 8)),
    ({"RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "8"}, Identity(5, 1, 1, 8)),
    ({"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}, Identity(3, 1, 1, 4)),
    (
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            "OMPI_COMM_WORLD_NODE_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "8",
        },
        Identity(5, 1, 1, 8),
    ),
    ({"PMI_RANK": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_SIZE": "4"}, Identity(2, 0, 1, 4)),
    (
        {
            "TF_CONFIG": json.dumps(
                {
                    "cluster": {"worker": ["a:1", "a:2", "b:1"], "ps": ["b:2"]},
                    "task": {"type": "ps", "index": 0},
                }
            )
        },
        Identity(3, 1, 1, 4),
    ),
    ({"TF_CONFIG": "{"}, Identity()),
]

RING = {"RANK": "3", "LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "6"}
CONFIG = json.dumps({"rank": "VK_TASK_INDEX", "host_list": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("environ", "node"),
    [
        ({"AZUREML_CR_NODE_RANK": "2"}, 2),
        ({"AZUREML_CR_NODE_RANK": "2", "AZUREML_CR_DISTRIBUTED_CONFIG": CONFIG, "VK_TASK_INDEX": "0"}, 2),
        ({"AZUREML_CR_DISTRIBUTED_CONFIG": CONFIG, "VK_TASK_INDEX": "2"}, 2),
        ({"AZUREML_CR_DISTRIBUTED_CONFIG": json.dumps({"rank": 2, "host_list": ["a", "b", "c"]})}, 2),
        ({"AZUREML_CR_DISTRIBUTED_CONFIG": CONFIG}, 1),
        ({"AZUREML_CR_DISTRIBUTED_CONFIG": CONFIG, "VK_TASK_INDEX": "7"}, 1),
        ({"AZUREML_CR_DISTRIBUTED_CONFIG": "{"}, 1),
        ({"AZUREML_CR_NODE_RANK": "x"}, 1),
        ({}, 1),
    ],
)
def test_node_number_of_runtime_is_used(environ, node):
    assert identity.identity_of({**RING, **environ}) == Identity(3, 0, node, 6)


def test_mpi_round_robin_uses_node_of_runtime():
    launcher = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_COMM_WORLD_SIZE": "6"}  # fmt: skip
    assert identity.identity_of(launcher).node == 1  # what the launcher tells fits both ways
    assert identity.identity_of({**launcher, "AZUREML_CR_NODE_RANK": "0"}) == Identity(3, 1, 0, 6)


@pytest.mark.parametrize(("environ", "who"), ENVIRONS)
def test_rank_identity_follows_environment(environ, who):
    assert identity.identity_of(environ) == who

"""Jobs of the frameworks that ``make test-distributed-full`` installs; what this machine lacks is skipped."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import api_of

from .scripts import needs_mpirun

pytestmark = pytest.mark.frameworks
#: DeepSpeed compiles an operation at its first start.
WAIT_S = 280.0


def needs(module: str, name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{name} is not installed")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Any]:
    with api_of(tmp_path) as module:
        yield module


MPI4PY = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
print(MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size)
"""


@needs_mpirun
@needs("mpi4py", "mpi4py")
@pytest.mark.parametrize("kind", ["mpi", "horovod"])
def test_mpi4py_connects_processes_of_mpirun(api: Any, kind: str) -> None:
    run = api.submit(MPI4PY, distribution=kind, processes=2, out=["total"], name="mpi4py").wait(WAIT_S)
    assert run.result("total") == 3
    assert [run.logs(rank=rank).strip() for rank in range(2)] == ["0 of 2", "1 of 2"]


ZERO = """
import json, os, deepspeed, torch
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                  config=os.environ["AML_DEEPSPEED_CONFIG"])
data, losses = torch.randn(16, 4), []
for _ in range(5):
    loss = engine(data).pow(2).mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
stage, world = engine.zero_optimization_stage(), engine.world_size
"""


@needs("deepspeed", "DeepSpeed")
def test_deepspeed_trains_with_stage_of_its_configuration(api: Any) -> None:
    adam = {"type": "Adam", "params": {"lr": 0.05, "torch_adam": True}}
    config = {"train_batch_size": 32, "zero_optimization": {"stage": 1}, "optimizer": adam}
    run = api.submit(ZERO, deepspeed=config, processes=2, out=["stage", "world", "losses"], name="zero").wait(WAIT_S)
    losses = run.result("losses")
    assert (run.result("stage"), run.result("world")) == (1, 2) and losses[-1] < losses[0]


CLUSTER = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(resolver.task_id + 1)), axis=None)
print(resolver.task_type, resolver.task_id, "of", strategy.num_replicas_in_sync, "sum", int(total))
"""


@needs("tensorflow", "TensorFlow")
def test_tensorflow_reads_its_cluster(api: Any) -> None:
    run = api.submit(CLUSTER, distribution="tensorflow", processes=2, name="tf").wait(WAIT_S)
    last = [run.logs(rank=rank).strip().splitlines()[-1] for rank in range(2)]
    assert last == ["worker 0 of 2 sum 3", "worker 1 of 2 sum 3"]


RAY = """
import ray
ray.init(log_to_driver=False)
@ray.remote
def square(number):
    return number * number
found = sum(ray.get([square.remote(number) for number in range(4)]))
cpus = ray.cluster_resources()["CPU"]
"""


@needs("ray", "Ray")
def test_ray_runs_tasks_on_its_cluster(api: Any) -> None:
    run = api.submit(RAY, distribution="ray", processes=2, out=["found", "cpus"], name="ray").wait(WAIT_S)
    assert (run.result("found"), run.result("cpus")) == (14, 2)


@needs("ray", "Ray")
def test_taken_default_ports_of_ray_do_not_matter(api: Any) -> None:
    with contextlib.ExitStack() as stack:
        for port in (10001, 10002, 52365):
            with contextlib.suppress(OSError):  # another program has it
                stack.enter_context(socket.create_server(("", port)))
        run = api.submit(RAY, distribution="ray", processes=2, out=["found"], name="ray").wait(WAIT_S)
    assert run.result("found") == 14


def test_deepspeed_configuration_is_a_file_of_the_job(api: Any) -> None:
    code = "import json, os\nfound = json.load(open(os.environ['AML_DEEPSPEED_CONFIG']))\n"
    run = api.submit(code, deepspeed={"train_batch_size": 8}, processes=1, out=["found"], name="config").wait(WAIT_S)
    assert run.result("found") == {"train_batch_size": 8}
    assert json.loads(Path(run.run.folder, "source", "aml_deepspeed.json").read_text()) == run.result("found")

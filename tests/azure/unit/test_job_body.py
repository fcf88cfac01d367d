"""JobSpec -> job of Azure ML, and its answers -> our status. Recorded answers where there are some."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.azure import fallback, job
from jupyter_amltrain.azure import environments, job_body
from jupyter_amltrain.azure import status as azure_status
from jupyter_amltrain.azure import terms as azure_terms
from jupyter_amltrain.azure.service import history
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs.snapshot import Snapshot, take_snapshot
from jupyter_amltrain.jobs.sweep import search_of, service_job
from jupyter_amltrain.schema import searched_values
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.schema.search_space import parse_expression

WS = "/subscriptions/S/resourceGroups/R/providers/Microsoft.MachineLearningServices/workspaces/W"
PLACE = job_body.JobLocation(arm_id=WS, compute="gpu", gpus=4)
RECORDINGS = Path(__file__).resolve().parents[3] / "azureml_emulator" / "data" / "recordings"


def recorded(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDINGS / name).read_text())["entries"]
    return found


def body(place: job_body.JobLocation = PLACE, **fields: Any) -> dict[str, Any]:
    return job_body.body_of(JobSpec(name="n", script="print(1)", **fields), place, "CODE")


# ---- the body


def test_plain_job_body_is_minimal() -> None:
    found = body()
    assert {k: found[k] for k in ("jobType", "displayName", "experimentName", "codeId", "computeId")} == {
        "jobType": "Command",
        "displayName": "n",
        "experimentName": "default",
        "codeId": "CODE",
        "computeId": f"{WS}/computes/gpu",
    }
    assert found["resources"] == {"instanceCount": 1}
    assert not {"distribution", "limits", "queueSettings", "identity", "services"} & found.keys()


def test_full_job_body_has_all_fields() -> None:
    found = body(
        timeout=5400.0,
        env={"A": "1"},
        tags={"team": "x"},
        inputs={
            "data": JobInput(path="azureml:d:1", mode="ro_mount"),
            "lr": JobInput(type="literal", value=0.1),
        },
        outputs={"model": JobOutput(type="mlflow_model", path="azureml://datastores/s/paths/m/", mode="upload")},
        resources=Resources(nodes=2, shm_size="8g", docker_args="--ipc=host"),
        distribution=Distribution(kind="pytorch"),
        identity="managed:00000000-0000-0000-0000-000000000000",
        services=("jupyterlab", "tensorboard:logs", "ssh:ssh-rsa AAA me"),
        priority="high",
    )
    assert found["limits"] == {"jobLimitsType": "Command", "timeout": "PT1H31M"}  # a minute for the agent
    assert found["environmentVariables"] == {"AML_INPUT_LR": "0.1", "A": "1"}
    assert found["inputs"] == {
        "data": {"jobInputType": "uri_folder", "uri": "azureml:d:1", "mode": "ReadOnlyMount"},
        "lr": {"jobInputType": "literal", "value": "0.1"},
    }
    assert found["outputs"] == {
        "model": {"jobOutputType": "mlflow_model", "uri": "azureml://datastores/s/paths/m/", "mode": "Upload"}
    }
    assert found["resources"] == {"instanceCount": 2, "shmSize": "8g", "dockerArgs": "--ipc=host"}
    assert found["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 4}
    assert found["identity"]["identityType"] == "Managed" and found["identity"]["clientId"]
    assert found["services"]["tensorboard"] == {"jobServiceType": "TensorBoard", "properties": {"logDir": "logs"}}
    assert found["services"]["ssh"]["properties"] == {"sshPublicKeys": "ssh-rsa AAA me"}
    assert found["queueSettings"] == {"priority": 3} and found["tags"] == {"team": "x"}


def test_input_reference_is_resolved_in_job() -> None:
    """The agent, by the job's file; in an image without Python 3.8 the service, which fills in the command."""
    spec = JobSpec(
        name="n",
        script_name="train.py",
        inputs={"data": JobInput(path="azureml:d:1")},
        params={"data_dir": "${{inputs.data}}/a b"},
    )
    words = job_body.job_file(spec)["argv"]
    assert words[-2:] == ["--data_dir", "${{inputs.data}}/a b"]
    assert job.command(words, {"AML_INPUT_DATA": "/mnt/d"})[-1] == "/mnt/d/a b"
    assert fallback._command(words)[0] == sys.executable
    line = job_body.command_of(spec, job_body.JobLocation(arm_id=""))
    assert line.endswith("train.py --data_dir '${{inputs.data}}/a b'")


def test_job_body_has_distribution() -> None:
    assert body(resources=Resources(nodes=2))["distribution"] == {
        "distributionType": "PyTorch",
        "processCountPerInstance": 4,
    }
    one = job_body.JobLocation(arm_id=WS, compute="cpu")
    assert body(one, distribution=Distribution(kind="mpi"))["distribution"]["processCountPerInstance"] == 1
    tensorflow = Distribution(kind="tensorflow", parameter_servers=1)
    assert body(resources=Resources(nodes=3), distribution=tensorflow)["distribution"] == {
        "distributionType": "TensorFlow",
        "workerCount": 3,
        "parameterServerCount": 1,
    }


def test_serverless_job_body_has_instance_type() -> None:
    place = job_body.JobLocation(arm_id=WS, size="Standard_NC6s_v3", tier="spot")
    found = body(place)
    assert "computeId" not in found and found["resources"]["instanceType"] == "Standard_NC6s_v3"
    assert found["queueSettings"] == {"jobTier": "Spot"}
    assert body(place, resources=Resources(instance_type="X"), tier="standard")["resources"]["instanceType"] == "X"
    with pytest.raises(SpecError) as caught:
        job_body.check(JobSpec(name="n"), job_body.JobLocation(arm_id=WS))
    assert caught.value.field == "resources.instance_type"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1, "PT1S"), (90, "PT1M30S"), (3600, "PT1H"), (90000, "P1DT1H"), (0.2, "PT1S")]
)
def test_duration_is_iso_8601(seconds: float, text: str) -> None:
    assert azure_terms.iso_duration(seconds) == text


def test_job_body_has_environment() -> None:
    def of(place: job_body.JobLocation = PLACE, **fields: Any) -> dict[str, str]:
        return environments.environment_body(JobSpec(name="n", environment=Environment(**fields)), place.gpus)

    assert of() == {"name": environments.DEFAULT_GPU_ENVIRONMENT}
    assert of(job_body.JobLocation(arm_id=WS, compute="cpu")) == {"name": environments.DEFAULT_ENVIRONMENT}
    assert of(name="azureml:mine:3") == {"name": "mine:3"}
    assert of(name="mine:3", derive=True) == {"name": "mine:3", "derive": "yes"}
    assert of(conda="/x/conda.yml") == {"conda": "/x/conda.yml", "image": environments.BASE_GPU_IMAGE}
    assert of(image="python:3.11") == {"image": "python:3.11"}
    assert environments.environment_shown({"name": "mine:3"}) == "azureml:mine:3"
    cpu = job_body.JobLocation(arm_id=WS, compute="cpu")
    as_here = of(cpu, kernel=True, python="3.11", packages=("numpy==2.4.6",))
    assert json.loads(as_here.pop("packages"))["dependencies"] == ["python=3.11", "pip", {"pip": ["numpy==2.4.6"]}]
    assert as_here == {"image": environments.BASE_IMAGE}
    shown = environments.environment_shown(of(cpu, kernel=True, python="3.11", packages=("numpy==2.4.6",)))
    assert shown == f"(environment from the image {environments.BASE_IMAGE} with python=3.11, numpy==2.4.6)"
    assert "conda.yml" in environments.environment_shown({"conda": "conda.yml", "image": "i"})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"inputs": {"d": JobInput(path="/tmp/d")}}, "inputs"),
        ({"resources": Resources(gpus=8)}, "resources.gpus"),
    ],
)
def test_setting_that_azure_does_not_have_is_refused_with_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        job_body.check(JobSpec(name="n", **fields), PLACE)
    assert (caught.value.code, caught.value.field) == ("azure.unsupported", field)


def test_file_in_the_reserved_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    snapshot = take_snapshot("a.py", "", root=tmp_path, source=tmp_path)
    job_body.check_files(snapshot)
    with pytest.raises(CommandError) as caught:
        job_body.check_files(Snapshot(files={".amltrain/agent.pyz": b""}, digest="", bytes=0))
    assert caught.value.code == "azure.reserved_folder"


def test_dry_run_request_is_json_without_secret(tmp_path: Path) -> None:
    spec = JobSpec(name="n", script="print(1)")
    snapshot = take_snapshot("script.py", "print(1)", root=tmp_path)
    found = job_body.request_of(spec, snapshot, PLACE, "n-22222", {"a": "b"})
    assert found["request"] == f"PUT {WS}/jobs/n-22222" and found["code"]["digest"] == snapshot.digest
    assert found["properties"]["tags"] == {"a": "b"} and json.dumps(found)


# ---- the command


def run_command(spec: JobSpec, folder: Path, path: str, **places: str) -> subprocess.CompletedProcess[str]:
    text = job_body.command_of(spec, job_body.JobLocation(arm_id=""))
    for name, value in places.items():
        text = text.replace("${{" + name.replace("__", ".") + "}}", value)
    return subprocess.run(["/bin/sh", "-c", text], cwd=folder, env={"PATH": path}, capture_output=True, text=True)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("tar", "gzip", "echo"):
        found = next(Path(p) / name for p in ("/bin", "/usr/bin") if (Path(p) / name).exists())
        (folder / name).symlink_to(found)
    return folder


def interpreter(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_job_command_starts_agent(tmp_path: Path, bin_folder: Path) -> None:
    interpreter(
        bin_folder, "python3", 'if [ "$1" = -c ]; then exit 0; fi; echo "$@"; echo "$AML_INPUT_D $AML_OUTPUT_M"'
    )
    spec = JobSpec(name="n", script="1", inputs={"d": JobInput(path="azureml:d:1")}, outputs={"m": JobOutput()})
    done = run_command(spec, tmp_path, str(bin_folder), inputs__d="/in put", outputs__m="/out")
    assert done.stdout.splitlines() == [".amltrain/agent.pyz rank .amltrain/job.json", "/in put /out"]


@pytest.mark.parametrize("old", [True, False])
def test_job_command_without_python_runs_plain_command(tmp_path: Path, bin_folder: Path, old: bool) -> None:
    if old:  # Python 3.7, say
        interpreter(bin_folder, "python", 'if [ "$1" = -c ]; then exit 1; fi; echo "ran $@"; exit 7')
    done = run_command(JobSpec(name="n", script="1", args=("--a", "b c")), tmp_path, str(bin_folder))
    lines = done.stdout.splitlines()
    assert lines[0].startswith("amltrain: ") and "Python 3.8+" in lines[0]
    assert (lines[1:], done.returncode) == ((["ran -u script.py --a b c"], 7) if old else ([], 127))


def test_job_command_without_python_unpacks_code(tmp_path: Path, bin_folder: Path) -> None:
    from jupyter_amltrain.azure.service import code_upload

    (tmp_path / ".amltrain").mkdir()
    pack = code_upload.tar_gz({"deep/module.py": code_upload.content_of_bytes(b"1")})
    (tmp_path / ".amltrain" / "base-0.tar.gz").write_bytes(pack)
    run_command(JobSpec(name="n", script="1"), tmp_path, str(bin_folder))
    assert (tmp_path / "deep" / "module.py").read_bytes() == b"1"


def test_job_file_is_equal_for_equal_jobs() -> None:
    spec = JobSpec(name="n", script="1", args=("--x", "1"), out=("acc",), experiment="e", env={"A": "1"})
    found = job_body.job_file(spec)
    assert found == job_body.job_file(JobSpec(name="other", script="2", args=("--x", "1"), out=("acc",)))
    assert found["argv"] == ["@python", "-u", "script.py", "--x", "1"]


@pytest.mark.parametrize(("run_id", "name"), [("digits-k3f9", "digits-k3f9"), ("a.b c", "a-b-c"), ("--", "run")])
def test_job_name_is_sanitized(run_id: str, name: str) -> None:
    assert job_body.job_name(run_id) == name and job_body.is_job_name(name)
    assert not job_body.is_job_name("a/b") and len(job_body.tracking_id(name)) == 32


# ---- the spec in the job


def test_job_spec_tags_round_trip_is_equal() -> None:
    spec = JobSpec(name="n", script="print(1)\n" * 500, cell="print(1)\n" * 500, params={"lr": 0.1}, tags={"a": "b"})
    found = job_body.properties_of(spec)
    assert job_body.spec_from(found) == spec and all(len(value) <= 1000 for value in found.values())
    assert job_body.tags_of(spec, "gpu", "1")["amltrain.name"] == "n"


def test_job_spec_tags_too_long_drop_script() -> None:
    spec = JobSpec(name="n", script=os.urandom(40_000).hex(), cell=os.urandom(40_000).hex(), project="/p")
    found = job_body.properties_of(spec)
    back = job_body.spec_from(found)
    assert back is not None and (back.name, back.project, back.script) == ("n", "/p", "")
    assert found["amltrain.spec.cut"] == "cell,script" and len(found) < 50


@pytest.mark.parametrize(
    "found", [{}, {"amltrain.spec.0": "no"}, {"amltrain.spec.0": zlib.compress(b"{").hex()}, {"amltrain.spec.0": "~~~"}]
)
def test_job_spec_from_foreign_tags_is_none(found: dict[str, str]) -> None:
    assert job_body.spec_from(found) is None


def test_foreign_job_is_read() -> None:
    job = recorded("07a_job_completed_list_and_get.json")[1]["response"]
    spec = job_body.spec_of_foreign_job(job["name"], job["properties"])
    assert (spec.name, spec.experiment, spec.script) == ("commandJob01", "jobexperiment", 'echo "hello powershell 01"')
    row = history.row_of_job(job)
    assert (row["compute"], row["status"]) == ("commandjobcompute", "Completed")
    status = azure_status.status_of(row)
    assert status is not None and status.state is RunState.COMPLETED
    assert [phase.name for phase in status.phases] == ["queued", "running"] and status.phases[1].seconds == 67.0


# ---- what the service says


def row(status: str, **more: Any) -> dict[str, Any]:
    return {"name": "n", "status": status, "created": 100.0, "started": None, "ended": None, **more}


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("NotStarted", RunState.QUEUED),
        ("Starting", RunState.QUEUED),
        ("Provisioning", RunState.PREPARING),
        ("Preparing", RunState.PREPARING),
        ("Queued", RunState.QUEUED),
        ("Running", RunState.RUNNING),
        ("Finalizing", RunState.FINALIZING),
        ("CancelRequested", RunState.QUEUED),
        ("Completed", RunState.COMPLETED),
        ("Failed", RunState.FAILED),
        ("Canceled", RunState.CANCELED),
        ("NotResponding", RunState.RUNNING),
        ("Paused", RunState.QUEUED),
        ("Unknown", None),
        ("SomethingNew", None),
    ],
)
def test_job_status_maps_to_state(word: str, state: RunState | None) -> None:
    status = azure_status.status_of(row(word))
    assert (status.state if status else None) is state


def test_cancel_requested_job_is_running() -> None:
    status = azure_status.status_of(row("CancelRequested", started=110.0))
    assert status is not None and status.state is RunState.RUNNING and status.cancel_requested


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ({"AllocationState": "resizing", "PreparingNodeCount": 1}, "waits for a machine to start"),
        ({"AllocationState": "steady", "RunningNodeCount": 2, "CurrentNodeCount": 2}, "2 of 2 busy"),
        ({}, "waits for a machine"),
    ],
)
def test_queued_job_detail_names_reason(nodes: dict[str, Any], words: str) -> None:
    status = azure_status.status_of(row("Queued", nodes=nodes))
    assert status is not None and words in status.detail


def test_second_attempt_is_in_detail() -> None:
    status = azure_status.status_of(row("Queued", attempt=2, started=110.0))
    assert status is not None and "attempt 2" in status.detail


@pytest.mark.parametrize(
    ("more", "reason", "code", "words"),
    [
        (
            {"error": "Execution failed. User process 'python' exited with status code 3. Please check log file"},
            "exit",
            3,
            "",
        ),
        ({"error": "The run exceeded its maximum run time of 60 s", "code": "JobTimedOut"}, "timeout", None, "limit"),
        ({"error": "Image build failed. For more details", "code": "ImageBuildError"}, "environment", None, "built"),
        ({"error": "Permission denied.", "started": 110.0}, "service", None, "Permission denied"),
        ({}, "service", None, "no reason"),
    ],
)
def test_failed_job_detail_names_cause(more: dict[str, Any], reason: str, code: int | None, words: str) -> None:
    status = azure_status.status_of(row("Failed", ended=130.0, **more))
    assert status is not None and (status.state, status.reason, status.exit_code) == (RunState.FAILED, reason, code)
    assert words in status.detail


def test_job_canceled_by_limit_is_failed() -> None:
    status = azure_status.status_of(row("Canceled", started=110.0, ended=120.0, why="Job has timed out"))
    assert status is not None and (status.state, status.reason) == (RunState.FAILED, "timeout")
    status = azure_status.status_of(row("Canceled", started=110.0, ended=120.0))
    assert status is not None and (status.state, status.reason) == (RunState.CANCELED, "canceled")


@pytest.mark.parametrize(
    ("more", "flag"),
    [({"tier": "spot"}, "--tier spot"), ({"resources": Resources(instance_type="X")}, "--instance-type X")],
)
def test_tier_and_instance_type_on_cluster_are_refused(more: dict[str, Any], flag: str) -> None:
    spec = JobSpec(name="a", script="print(1)\n", **more)
    with pytest.raises(SpecError, match=flag):
        job_body.check(spec, job_body.JobLocation(arm_id=WS, compute="cpu", own_machines=True))
    job_body.check(spec, job_body.JobLocation(arm_id=WS, size="Standard_DS2_v2"))
    job_body.check(spec, job_body.JobLocation(arm_id=WS, compute="k8s"))


@pytest.mark.parametrize(
    ("status", "more", "reason"),
    [
        ("Canceled", {"limit": 10.0}, "timeout"),
        ("Canceled", {"limit": 10.0, "why": "words that nobody knows"}, "timeout"),
        ("Canceled", {"limit": 60.0}, "canceled"),
        ("Failed", {"limit": 10.0}, "timeout"),
        ("Failed", {"limit": 60.0, "error": "process exited with status code 124"}, "timeout"),
        ("Failed", {"error": "process exited with status code 124"}, "exit"),
        ("Failed", {"limit": 10.0, "error": "process exited with status code 3"}, "exit"),
    ],
)
def test_run_end_without_files_is_timeout_by_duration_or_exit_code(
    status: str, more: dict[str, Any], reason: str
) -> None:
    found = azure_status.status_of(row(status, started=110.0, ended=120.0, **more))
    assert found is not None and found.reason == reason
    assert found.state is (RunState.CANCELED if reason == "canceled" else RunState.FAILED)


def test_agent_status_adds_reason_and_exit_code() -> None:
    agent = {"reason": "gpu-unused", "exit_code": -15, "detail": "stopped: not used", "devices": ["GPU-1"]}
    status = azure_status.status_of(
        row("Failed", started=110.0, ended=120.0), {**agent, "truth": {"verdict": "not used"}}
    )
    assert status is not None and status.reason == "gpu-unused" and status.devices == ("GPU-1",)
    assert status.truth == {"verdict": "not used"} and status.detail == "stopped: not used"


def test_pipeline_child_failure_is_read() -> None:
    child = recorded("02_pipeline_two_steps_failed_children.json")[-1]["response"]["value"][0]
    status = azure_status.status_of(history.row("n", child))
    assert status is not None and status.state is RunState.FAILED and "Permission denied" in status.detail
    assert status.nodes == 1 and status.phases[-1].seconds == pytest.approx(202.53, abs=0.01)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01.5000000+00:00", 1.5),
        ("1970-01-01T00:00:02Z", 2.0),
        ("1970-01-01 00:00:03", 3.0),
        ("1970-01-01T00:00:04.608113Z", 4.608113),
        ("0001-01-01T00:00:00+00:00", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_service_time_is_parsed(text: str | None, seconds: float | None) -> None:
    assert history.unix(text) == seconds


def test_unreadable_input_error_names_whole_address() -> None:
    place = f"/subscriptions/{'0' * 36}/resourceGroups/{'g' * 80}/providers/Microsoft.MachineLearningServices"
    error = (
        f"ScriptExecution.StreamAccess.NotFound\nNative Error: {'error in streaming ' * 20}\nError Message:"
        " The requested stream was not found. Please make sure the request uri is correct:"
        f" {place}/workspaces/ml/data/nosuch/versions/1"
    )
    status = azure_status.status_of({"name": "a", "status": "Failed", "error": error, "created": 1.0})
    assert status is not None and "(data/nosuch/versions/1)" in status.detail and "--input" in status.detail
    other = azure_status.status_of({"name": "a", "status": "Failed", "error": "x" * 5000})
    assert other is not None and len(other.detail) < 500


def test_job_that_may_start_again_has_mounted_checkpoints() -> None:
    spec = JobSpec(name="n", script="print(1)", max_restarts=2, simulate_preemption=60.0)
    found = job_body.body_of(spec, PLACE, "CODE")
    (name,) = found["outputs"]
    assert found["outputs"][name] == {"jobOutputType": "uri_folder", "mode": "ReadWriteMount"}
    assert f'AML_CHECKPOINT_DIR="${{{{outputs.{name}}}}}"' in found["command"]
    assert job_body.job_file(spec)["restarts"] == {"max": 2, "preempt_after": 60.0}
    assert not job_body.body_of(JobSpec(name="n", script="print(1)"), PLACE, "CODE")["outputs"]


def test_job_of_several_processes_may_not_start_again() -> None:
    with pytest.raises(SpecError) as raised:
        job_body.check(JobSpec(name="n", max_restarts=1, distribution=Distribution(kind="pytorch", processes=2)), PLACE)
    assert raised.value.field == "max_restarts"


# ---- sweeps


def sweep_spec(params: dict[str, Any], **fields: Any) -> JobSpec:
    """The job of a sweep over a cell, or over the file of `fields`."""
    keywords = {"goal": "minimize loss", "seed": 3, "max_trials": 4, "max_concurrent": 2, "trial_timeout": 90}
    search, fixed = search_of(params, **keywords, policy="bandit(slack_factor=0.1)", sampler="sobol")
    names = ", ".join(params)
    code = fields or {"script": f"print({names})\n", "cell": f"print({names})\n"}
    return service_job(JobSpec(name="n", params=fixed, **code), search)


SEARCHED = {"lr": "loguniform(1e-4,1)", "opt": "choice(sgd,adam)", "n": 3}


def test_sweep_body_has_trial_and_search() -> None:
    spec = sweep_spec(SEARCHED)
    found = job_body.body_of(spec, PLACE, "CODE")
    assert found["jobType"] == "Sweep" and found["trial"]["codeId"] == "CODE" and "codeId" not in found
    assert found["computeId"] == f"{WS}/computes/gpu"
    assert found["searchSpace"]["opt"] == ["choice", [["sgd", "adam"]]]
    assert found["searchSpace"]["lr"][1] == [math.log(1e-4), 0.0]  # exponents
    assert found["samplingAlgorithm"] == {"samplingAlgorithmType": "Random", "rule": "Sobol", "seed": 3}
    assert found["earlyTermination"]["slackFactor"] == 0.1
    assert found["limits"]["trialTimeout"] == "PT2M30S" and spec.timeout == 90  # a minute for the agent
    assert 'export AML_SWEEP_lr="${{search_space.lr}}"; ' in found["trial"]["command"]
    assert job_body.with_environment(found, "E")["trial"]["environmentId"] == "E"
    assert job_body.sweep_of_body(found).space == spec.sweep.space
    line = spec.script.splitlines()[0]
    assert line.startswith("n = 3; ") and "AML_SWEEP_lr" in line and spec.params == {"n": 3}


def test_serverless_sweep_body_has_resources_and_no_shared_checkpoints() -> None:
    place = job_body.JobLocation(arm_id=WS, size="Standard_NC6s_v3", tier="spot")
    found = job_body.body_of(sweep_spec(SEARCHED), place, "CODE")
    assert found["resources"] == found["trial"]["resources"] == {"instanceCount": 1, "instanceType": "Standard_NC6s_v3"}
    assert found["outputs"] == {} and found["queueSettings"] == {"jobTier": "Spot"}


@pytest.mark.thorough
@pytest.mark.parametrize("place", [PLACE, job_body.JobLocation(arm_id=WS, size="Standard_NC6s_v3")])
def test_sdk_sends_the_sweep_that_is_printed(place: job_body.JobLocation) -> None:
    from jupyter_amltrain.azure.service import sdk

    body = job_body.body_of(sweep_spec(SEARCHED), place, "azureml:c:1")
    sent = sdk.job_of("a", body, "azureml:c:1", "azureml:e:1")._to_rest_object().as_dict()["properties"]
    printed = job_body.with_environment(body, "azureml:e:1")

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("isArchived", "properties")}
        return value.lower() if value in ("Minimize", "Sobol") else value

    assert plain(sent) == plain(printed)


def test_script_of_sweep_gets_values_as_arguments() -> None:
    spec = sweep_spec({**SEARCHED, "layers": "randint(4)", "flag": "choice(true,false)"}, script_name="train.py")
    file = job_body.job_file(spec)
    environ = {"AML_SWEEP_lr": "0.5", "AML_SWEEP_opt": "adam", "AML_SWEEP_layers": "2.0", "AML_SWEEP_flag": "True"}
    words = job.command(file["argv"], environ, file["search"])
    assert words[3:] == ["--n", "3", "--lr", "0.5", "--opt", "adam", "--layers", "2", "--flag", "true"]
    assert job_body.command_of(spec, PLACE).endswith('--lr "$AML_SWEEP_lr" --opt "$AML_SWEEP_opt" --layers '
                                                     '"$AML_SWEEP_layers" --flag "$AML_SWEEP_flag"')  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("choice(a,1,true)", {"a": "a", "1.0": 1, "True": True}),
        ("choice(0.1,1e-5)", {"0.1": 0.1, "1E-05": 1e-5}),
        ("choice(true,false)", {"False": False, "true": True}),
        ("choice(a,'b c')", {"b c": "b c"}),
        ("randint(10)", {"3.0": 3}),
        ("quniform(8,64,8)", {"16": 16}),
        ("uniform(0,1)", {"0.25": 0.25}),
    ],
)
def test_value_of_trial_has_its_type_from_any_spelling(
    expression: str, texts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    e = parse_expression("x", expression)
    for text, value in texts.items():
        monkeypatch.setenv("AML_SWEEP_x", text)
        for found in (eval(searched_values.code_of("x", e)), searched_values.value_of(e, text)):
            assert (found, type(found)) == (value, type(value))

"""The emulator's jobs: the unmodified SDK runs them, and raw requests see what recordings and schemas say."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from azureml_emulator import monitor, ranks, schema
from tests.azure.conftest import Azure
from tests.helpers import until

#: The product's own tests go through most of it; this is the emulator for itself.
pytestmark = pytest.mark.thorough

RECORDINGS = Path(__file__).parents[2] / "azureml_emulator" / "data" / "recordings"
ENDS = ("Completed", "Failed", "Canceled")
CURATED = "azureml:AzureML-acpt-pytorch-2.2-cuda12.1@latest"


class Cloud:
    """Raw requests to the sandbox, with a token."""

    def __init__(self, azure: Azure) -> None:
        self.azure = azure
        self.session = requests.Session()
        form = {
            "grant_type": "client_credentials",
            "client_id": azure.environ["AZURE_CLIENT_ID"],
            "client_secret": azure.environ["AZURE_CLIENT_SECRET"],
            "scope": "https://management.azure.com/.default",
        }
        answer = self.session.post(f"https://login.microsoftonline.com/{azure.tenant}/oauth2/v2.0/token", data=form)
        self.session.headers["Authorization"] = "Bearer " + answer.json()["access_token"]
        self.ws = (
            f"/subscriptions/{azure.subscription}/resourceGroups/{azure.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{azure.workspace}"
        )

    def arm(self, method: str, path: str, body: Any = None, **query: str) -> requests.Response:
        url = f"https://management.azure.com{self.ws}{path}"
        return self.session.request(method, url, json=body, params={"api-version": "2024-10-01", **query})

    def data(self, method: str, service: str, tail: str, /, body: Any = None, **query: str) -> requests.Response:
        url = f"https://eastus.api.azureml.ms/{service}{self.ws}{tail}"
        return self.session.request(method, url, json=body, params=query)

    def cluster(self, name: str = "cluster", size: str = "Standard_DS3_v2", low_priority: bool = False) -> None:
        scale = {"minNodeCount": 0, "maxNodeCount": 2, "nodeIdleTimeBeforeScaleDown": "PT2M"}
        inner = {"vmSize": size, "vmPriority": "LowPriority" if low_priority else "Dedicated", "scaleSettings": scale}
        body = {"location": "eastus", "properties": {"computeType": "AmlCompute", "properties": inner}}
        assert self.arm("PUT", f"/computes/{name}", body).status_code == 201
        until(lambda: self.arm("GET", f"/computes/{name}").json()["properties"]["provisioningState"] == "Succeeded")

    def submit(self, name: str, command: str, environment: str = CURATED, **more: Any) -> requests.Response:
        sent = {"jobType": "Command", "command": command, "environmentId": environment, "experimentName": "exp"}
        compute = {"computeId": f"{self.ws}/computes/cluster"}
        return self.arm("PUT", f"/jobs/{name}", {"properties": {**sent, **compute, **more}})

    def status(self, name: str) -> str:
        return str(self.arm("GET", f"/jobs/{name}").json()["properties"]["status"])

    def wait(self, name: str, *wanted: str) -> list[str]:
        """The states that were seen until one of those wanted (default: an end)."""
        seen: list[str] = []

        def there() -> bool:
            status = self.status(name)
            if status not in seen[-1:]:
                seen.append(status)
            return status in (wanted or ENDS)

        until(there)
        return seen

    def details(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.data("GET", "history/v1.0", f"/runs/{name}/details").json()
        return found

    def logs(self, name: str) -> dict[str, str]:
        return {path: requests.get(url).text for path, url in self.details(name)["logFiles"].items()}

    def message(self, name: str) -> str:
        return str(self.details(name)["error"]["error"]["message"])


def gate(folder: Path) -> str:
    """Words of a command that wait until the test makes ``folder/go`` (jobs run on this machine)."""
    return f"while [ ! -e {folder}/go ]; do sleep 0.05; done"


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def cloud(azure_env: Azure) -> Cloud:
    return Cloud(azure_env)


def test_unmodified_sdk_runs_jobs(azure_env: Azure, tmp_path: Path) -> None:
    # With a SAS, azure-ai-ml 1.35 uses it as an account's key and streams nothing but refusals.
    azure_env.control("/switch", retry_after_header=True, datastore_secret="key")
    azure = azure_env
    where = [azure.subscription, azure.resource_group, azure.workspace, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.azure.sdk_session", *where],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **azure.environ},
        capture_output=True,
        text=True,
        timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "Starting" in found["submitted"] or "STARTING" in found["submitted"]
    assert "rows 2" in found["streamed"] and "Streaming user_logs/std_log.txt" in found["streamed"]
    assert found["ended"] == "Completed"
    assert "all/artifacts/outputs/model.txt" in found["downloaded"]
    assert "all/artifacts/user_logs/std_log.txt" in found["downloaded"]
    assert "all/artifacts/azureml-logs/20_image_build_log.txt" in found["downloaded"]
    assert found["models"] == {"from-job": ["1", "first"], "from-file": ["1", None]}
    assert found["model"] == ["weights"]
    assert (found["before cancel"], found["after cancel"], found["failed"]) == ("Running", "Canceled", "Failed")
    assert found["listed"] == ["third", "first"]
    assert found["unknown compute"] == [400, "Unknown compute target 'nowhere'."]
    wire = azure.control("/wire")
    uploads = [one for one in wire if one["path"].endswith("/startPendingUpload")]
    assert len(uploads) == 1, "the code of the second job was there already"
    assert azure.control("/problems") == {"problems": [], "refused_hosts": []}


def test_job_states_and_answers_match_recordings(cloud: Cloud) -> None:
    cloud.cluster()
    recorded = json.loads((RECORDINGS / "command_job_serverless.json").read_text())["entries"][-1]["response"]
    answer = cloud.submit("a1", "echo hi; echo there >&2")
    assert answer.status_code == 201 and answer.headers["Location"].startswith(
        "https://management.azure.com" + cloud.ws
    )
    made = answer.json()
    assert made["properties"]["status"] == "Starting"
    newer = {"parentJobName"}  # of the preview that was recorded
    assert set(recorded["properties"]) - newer <= set(made["properties"])
    assert set(recorded["properties"]["resources"]) == set(made["properties"]["resources"])
    assert set(recorded["properties"]["services"]["Studio"]) <= set(made["properties"]["services"]["Studio"])
    assert made["properties"]["outputs"]["default"]["uri"].endswith("ExperimentRun/dcid.a1")
    cloud.wait("a1")
    states = [name for name, _ in cloud.azure.control("/job", name="a1")["states"]]
    assert states == ["Starting", "Preparing", "Queued", "Preparing", "Running", "Finalizing", "Completed"]
    assert cloud.logs("a1") == {"user_logs/std_log.txt": "hi\nthere\n"}
    details = cloud.details("a1")
    assert details["status"] == "Completed" and re.fullmatch(r"\d\d:\d\d:\d\d\.\d{7}", details["duration"])


@pytest.mark.parametrize("live", [True, False])
def test_job_logs_grow_while_running(cloud: Cloud, live: bool, tmp_path: Path) -> None:
    cloud.azure.control("/switch", logs_uploaded_live=live)
    cloud.cluster()
    script = f"echo '{{}}' > logs/x.jsonl; echo one; {gate(tmp_path)}; echo '{{}}' >> logs/x.jsonl; echo two"
    cloud.submit("b1", script)
    cloud.wait("b1", "Running")
    until(lambda: cloud.logs("b1").get("user_logs/std_log.txt") == "one\n")
    if live:
        until(lambda: cloud.logs("b1").get("logs/x.jsonl") == "{}\n")
    else:
        assert "logs/x.jsonl" not in cloud.logs("b1")
    assert cloud.status("b1") == "Running"
    (tmp_path / "go").touch()
    cloud.wait("b1")
    assert cloud.logs("b1") == {"user_logs/std_log.txt": "one\ntwo\n", "logs/x.jsonl": "{}\n{}\n"}


def test_each_rank_has_log_and_variables(cloud: Cloud) -> None:
    cloud.cluster()
    words = "$RANK/$WORLD_SIZE node $NODE_RANK local $LOCAL_RANK of $AZUREML_RUN_ID"
    torch = {"distributionType": "PyTorch", "processCountPerInstance": 2}
    cloud.submit("c1", f"echo {words}; touch shared-$LOCAL_RANK", distribution=torch, resources={"instanceCount": 2})
    mpi = {"distributionType": "Mpi", "processCountPerInstance": 2}
    cloud.submit("c2", "echo $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE", distribution=mpi)
    assert cloud.wait("c1")[-1] == "Completed"
    assert cloud.logs("c1") == {
        f"user_logs/std_log_process_{rank}.txt": f"{rank}/4 node {rank // 2} local {rank % 2} of c1\n"
        for rank in range(4)
    }
    cloud.wait("c2")
    assert [text for _, text in sorted(cloud.logs("c2").items())] == ["0/2\n", "1/2\n"]


def test_parameter_servers_get_cluster_config() -> None:
    distribution = {"distributionType": "TensorFlow", "workerCount": 2, "parameterServerCount": 1}
    made = ranks.ranks(distribution, 2, "127.0.0.1", [1, 2, 3])
    config = json.loads(made[2].env["TF_CONFIG"])
    assert [(one.node, one.local, one.log) for one in made] == [
        (0, 0, "std_log_process_0.txt"),
        (1, 0, "std_log_process_1.txt"),
        (0, 1, "std_log_process_2_ps.txt"),
    ]
    assert config["task"] == {"type": "ps", "index": 0} and len(config["cluster"]["worker"]) == 2
    assert ranks.seconds("PT1H30M") == 5400 and ranks.seconds("P1DT2S") == 86402 and ranks.seconds(None) is None


@pytest.mark.parametrize("kept", ["new", "folder"])
def test_preempted_job_runs_again(cloud: Cloud, kept: str, tmp_path: Path) -> None:
    cloud.azure.control("/switch", retry_logs=kept)
    cloud.cluster(low_priority=True)
    cloud.submit("d1", f"echo once; {gate(tmp_path)}")
    cloud.wait("d1", "Running")
    until(lambda: "once" in str(cloud.logs("d1")))
    assert cloud.azure.control("/preempt", job="d1") == {"preempted": True}
    cloud.wait("d1", "Queued")
    assert cloud.wait("d1", "Running")[-1] == "Running"
    (tmp_path / "go").touch()
    cloud.wait("d1")
    details = cloud.details("d1")
    before = {"retry_001/user_logs/std_log.txt": "once\n"} if kept == "folder" else {}
    assert cloud.logs("d1") == {"user_logs/std_log.txt": "once\n", **before}
    assert details["status"] == "Completed" and details["currentAttemptId"] == 2


def test_cancel_or_time_limit_ends_process_group(cloud: Cloud) -> None:
    cloud.cluster()
    cloud.azure.control("/switch", cancel_grace=0.3)
    stubborn = "trap 'echo asked' TERM; echo up; while true; do sleep 0.05; done"
    cloud.submit("e1", stubborn)
    cloud.submit("e2", "echo up; sleep 600", limits={"jobLimitsType": "Command", "timeout": "PT1S"})
    cloud.wait("e1", "Running")
    until(lambda: "up" in str(cloud.logs("e1")))
    assert cloud.arm("POST", "/jobs/e1/cancel").status_code == 202
    assert cloud.wait("e1")[-1] == "Canceled" and "asked" in str(cloud.logs("e1"))
    assert cloud.wait("e2")[-1] == "Canceled" and "cancelationReason" not in cloud.details("e2")
    record = cloud.data("GET", "history/v1.0", "/runs/e2").json()
    assert "maximum run duration" in record["cancelationReason"]


def test_job_end_leaves_no_process(cloud: Cloud) -> None:
    cloud.cluster()
    for name in ("k1", "k2"):
        cloud.submit(name, "setsid sh -c 'echo $$ > outputs/pid; exec sleep 600' & sleep 600")
        cloud.wait(name, "Running")

    def pid_of(name: str) -> int:
        answer = cloud.data(
            "GET", "history/v1.0", f"/experiments/exp/runs/{name}/artifacts/contentinfo", path="outputs/pid"
        )
        return int(requests.get(answer.json()["contentUri"]).text) if answer.status_code == 200 else 0

    until(lambda: pid_of("k1") and pid_of("k2"))
    pids = [pid_of("k1"), pid_of("k2")]
    assert all(alive(pid) for pid in pids)
    cloud.arm("POST", "/jobs/k1/cancel")
    assert cloud.wait("k1")[-1] == "Canceled"
    until(lambda: not alive(pids[0]))
    cloud.azure.control("/reset")
    until(lambda: not alive(pids[1]))


def test_images_have_scripted_properties(cloud: Cloud) -> None:
    cloud.cluster()
    for image in ("no-python", "non-root", "read-only", "does-not-build"):
        body = {"properties": {"image": f"example/{image}"}}
        assert cloud.arm("PUT", f"/environments/{image}/versions/1", body).status_code == 201
        look = "command -v python3 || echo none; id -u; touch logs/y && echo written"
        cloud.submit(image, look, f"azureml:{image}:1")
        cloud.wait(image)
    printed = {
        image: cloud.logs(image).get("user_logs/std_log.txt", "") for image in ("no-python", "non-root", "read-only")
    }
    assert printed["no-python"].startswith("none\n")
    assert "written" in printed["non-root"] and "\n0\n" not in printed["non-root"]
    assert "written" not in printed["read-only"]
    assert cloud.status("does-not-build") == "Failed" and "azureml-logs/20_image_build_log.txt" in cloud.message(
        "does-not-build"
    )
    assert "failed to solve" in cloud.logs("does-not-build")["azureml-logs/20_image_build_log.txt"]


def test_job_invalid_is_refused(cloud: Cloud) -> None:
    cloud.cluster()
    unknown = cloud.submit("f1", "true", computeId=f"{cloud.ws}/computes/nowhere")
    recorded = json.loads((RECORDINGS / "11a_ray_job_unknown_compute_400.json").read_text())["entries"][-1]["response"]
    assert unknown.status_code == 400
    ours, theirs = unknown.json()["error"], recorded["error"]
    assert ours["message"] == theirs["message"].replace("testCompute", "nowhere")
    assert [one["type"] for one in ours["additionalInfo"]] == [one["type"] for one in theirs["additionalInfo"]]
    assert ours["additionalInfo"][-1] == theirs["additionalInfo"][-1]
    misspelt = cloud.submit("f2", "true", resources={"instances": 2})
    assert misspelt.status_code == 400 and "properties.resources.instances" in misspelt.text
    nothing = {"jobInputType": "uri_file", "uri": "azureml://datastores/workspaceblobstore/paths/none.csv"}
    assert cloud.submit("f3", "cat ${{inputs.d}}", inputs={"d": nothing}).status_code == 201
    assert cloud.submit("f4", "true", resources={"instanceCount": 5}).status_code == 201
    assert cloud.wait("f3")[-1] == "Failed" and "ScriptExecution.StreamAccess.NotFound" in cloud.message("f3")
    assert cloud.wait("f4")[-1] == "Failed" and "node count of 5" in cloud.message("f4")
    assert cloud.arm("GET", "/jobs/none").status_code == 404


def test_job_output_becomes_asset_and_input(cloud: Cloud) -> None:
    cloud.cluster()
    out = {"jobOutputType": "uri_folder"}
    cloud.submit("n1", "echo 42 > ${{outputs.made}}/n.txt; echo w > outputs/w.txt", outputs={"made": out})
    assert cloud.wait("n1")[-1] == "Completed"
    uri = "azureml://jobs/n1/outputs/artifacts/paths/outputs/"
    model = {"properties": {"modelUri": uri, "modelType": "custom_model"}}
    assert cloud.arm("PUT", "/models/m/versions/1", model).json()["properties"]["jobName"] == "n1"
    inputs = {
        "named": {"jobInputType": "uri_folder", "uri": "azureml://jobs/n1/outputs/made/paths/"},
        "asset": {"jobInputType": "uri_folder", "uri": "azureml:azureml_n1_output_data_made:1"},
        "model": {"jobInputType": "custom_model", "uri": f"{cloud.ws}/models/m/versions/1"},
        "word": {"jobInputType": "literal", "value": "hey"},
    }
    show = "cat ${{inputs.named}}/n.txt $AZURE_ML_INPUT_asset/n.txt ${{inputs.model}}/w.txt; echo ${{inputs.word}} $X"
    cloud.submit("n2", show, inputs=inputs, environmentVariables={"X": "${{inputs.word}}"})
    cloud.wait("n2")
    assert cloud.logs("n2") == {"user_logs/std_log.txt": "42\n42\nw\nhey hey\n"}


def test_recorded_bodies_match_schema() -> None:
    checked = 0
    for file in sorted(RECORDINGS.glob("*.json")):
        for entry in json.loads(file.read_text()).get("entries", []):
            kinds = re.findall(r"workspaces/[^/]+/(jobs|environments)/", entry["uri"])
            if entry["method"] == "PUT" and kinds:
                version = re.findall(r"api-version=([\w-]+)", entry["uri"])[0]
                assert schema.problems(f"workspaces_{kinds[0]}", entry["request"], version) == [], file.name
                checked += 1
    assert checked >= 5


def test_monitor_sample_at_minute_end_is_in_minute() -> None:
    assert list(monitor.sampled(600, 659.5, 659.7)) == [0]
    assert list(monitor.sampled(660, 659.5, 664.0)) == [2, 4]
    assert list(monitor.sampled(600, 659.5, 659.5)) == []
    assert len(monitor.sampled(660, 600, 800)) == 30


def test_job_mlflow_services_and_monitor_answer(cloud: Cloud, tmp_path: Path) -> None:
    cloud.cluster(size="Standard_NC4as_T4_v3")
    body = {"run_id": "g1", "metrics": [{"key": "loss", "value": 0.5, "timestamp": 1, "step": 0}]}
    script = f"""python - <<'X'
import json, os, urllib.request, ssl, pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount(), "gpu", flush=True)
url = os.environ["MLFLOW_TRACKING_URI"].replace("azureml", "https", 1) + "/api/2.0/mlflow/runs/log-batch"
head = {{"Authorization": "Bearer " + os.environ["AZUREML_RUN_TOKEN"], "Content-Type": "application/json"}}
urllib.request.urlopen(urllib.request.Request(url, {json.dumps(body)!r}.encode(), head))
print("logged", flush=True)
X
{gate(tmp_path)}"""
    cloud.submit("g1", script, services={"lab": {"jobServiceType": "JupyterLab"}})
    cloud.wait("g1", "Running")
    until(lambda: "logged" in str(cloud.logs("g1")) or cloud.status("g1") == "Failed")
    assert cloud.logs("g1")["user_logs/std_log.txt"] == "1 gpu\nlogged\n"
    services = cloud.data("GET", "history/v1.0", "/runs/g1/serviceinstances/0").json()["instances"]
    assert services["lab"]["type"] == "JupyterLab" and services["lab"]["status"] == "Running"
    query = {"metricnames": "GpuUtilizationPercentage", "aggregation": "Average", "interval": "PT1M"}
    shown = cloud.arm("GET", "/providers/microsoft.insights/metrics", **query, **{"$filter": "RunId eq 'g1'"}).json()
    (series,) = shown["value"][0]["timeseries"]
    assert series["data"][0]["timeStamp"].endswith(":00Z") and 0 <= series["data"][0]["average"] <= 100
    kept = cloud.data("GET", "mlflow/v2.0", "/api/2.0/mlflow/runs/get", run_id="g1").json()["run"]
    assert kept["info"]["run_id"] == "g1" and kept["data"]["metrics"][0]["value"] == 0.5
    metric = {"key": "x", "value": 1, "timestamp": 0, "step": 0}
    large = cloud.data(
        "POST", "mlflow/v2.0", "/api/2.0/mlflow/runs/log-batch", {"run_id": "g1", "metrics": [metric] * 251}
    )
    assert large.status_code == 400 and large.json()["Error"]["Code"] == "ValidationError"
    assert cloud.data("POST", "mlflow/v2.0", "/api/2.0/mlflow/logged-models", {}).status_code == 404
    cloud.session.headers.pop("Authorization")
    assert cloud.data("GET", "mlflow/v2.0", "/api/2.0/mlflow/runs/get", run_id="g1").status_code == 401


def test_log_and_upload_urls_expire(cloud: Cloud) -> None:
    cloud.azure.control("/switch", log_sas_seconds=-1, upload_sas_seconds=-1)
    cloud.cluster()
    cloud.submit("h1", "echo x")
    cloud.wait("h1")
    (url,) = cloud.details("h1")["logFiles"].values()
    assert requests.get(url).status_code == 403
    start, body = "/codes/4f0d/versions/1/startPendingUpload", {"pendingUploadType": "TemporaryBlobReference"}
    assert cloud.arm("POST", start, {}).status_code == 400
    pending = cloud.arm("POST", start, body).json()
    root = pending["blobReferenceForConsumption"]["blobUri"]
    assert ":443/" in root
    for uri, status in ((root, 400), (f"{root}/", 400), (f"{root}/code", 201)):
        assert cloud.arm("PUT", "/codes/4f0d/versions/1", {"properties": {"codeUri": uri}}).status_code == status
    credential = pending["blobReferenceForConsumption"]["credential"]
    assert (
        requests.put(credential["sasUri"].replace("?", "/x?"), b"", headers={"x-ms-blob-type": "BlockBlob"}).status_code
        == 403
    )


def test_instance_second_start_fails_with_startup_script(azure_env: Azure) -> None:
    from tools.azure_live.scripts import STARTUP

    cloud = Cloud(azure_env)
    script = {"scriptSource": "inline", "scriptData": base64.b64encode(STARTUP.encode()).decode()}
    inner = {"vmSize": "Standard_DS2_v2", "setupScripts": {"scripts": {"startupScript": script}}}
    body = {"location": "eastus", "properties": {"computeType": "ComputeInstance", "properties": inner}}
    assert cloud.arm("PUT", "/computes/startup", body).status_code == 201

    def now() -> dict[str, Any]:
        found: dict[str, Any] = cloud.arm("GET", "/computes/startup").json()["properties"]["properties"]
        return found

    until(lambda: now()["state"] == "Running")
    assert cloud.arm("POST", "/computes/startup/stop").status_code == 202
    until(lambda: now()["state"] == "Stopped")
    assert cloud.arm("POST", "/computes/startup/start").status_code == 202
    until(lambda: now()["lastOperation"]["operationStatus"] == "StartFailed")
    assert now()["state"] == "Stopped" and now()["errors"][0]["error"]["code"] == "StartupScriptFailed"


@pytest.mark.parametrize(("environment", "busy"), [("AzureML-sklearn-1.5:1", False), (CURATED, True)])
def test_emulated_gpu_load_depends_on_environment(environment: str, busy: bool, tmp_path: Path) -> None:
    from azureml_emulator import gpus

    assert gpus.can_use(environment) is busy
    made = gpus.environ(1, tmp_path, "Standard_NC4as_T4_v3", idle=not busy)
    if not made:
        pytest.skip("no C compiler")
    lines = Path(made["AMLTRAIN_FAKE_NVML_CURVES"]).read_text().splitlines()[1:]
    assert (max(int(line.split()[2]) for line in lines) > 50) is busy

"""Sweeps and pipelines of the emulator by the bodies that the SDK sends; public inputs; answers as recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from azureml_emulator import job_sweeps
from tests.azure.conftest import Azure
from tests.azure.json_shapes import differences
from tests.azureml_emulator.test_jobs import RECORDINGS, Cloud, until

pytestmark = pytest.mark.thorough
REGISTRY = "azureml://registries/azureml/environments/sklearn-1.5/labels/latest"
ENTRY = """
import argparse, pathlib
def init():
    parser = argparse.ArgumentParser()
    parser.add_argument("--factor", type=int)
    global factor
    factor = parser.parse_known_args()[0].factor
def run(files):
    return [f"{pathlib.Path(file).name} {factor * int(pathlib.Path(file).read_text())}" for file in files]
"""


@pytest.fixture
def cloud(azure_env: Azure) -> Cloud:
    azure_env.control("/switch", scale_seconds=0.05, job_seconds=0.0)
    made = Cloud(azure_env)
    made.cluster()
    return made


@pytest.fixture
def component(cloud: Cloud) -> Callable[..., str]:
    def make(name: str, **spec: Any) -> str:
        body = {"properties": {"componentSpec": {"name": name, "version": "1", "type": "command", **spec}}}
        answer = cloud.arm("PUT", f"/components/{name}/versions/1", body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    return make


def pipeline(cloud: Cloud, name: str, jobs: dict[str, Any], **more: Any) -> None:
    settings = {"default_compute": f"{cloud.ws}/computes/cluster"}
    body = {"jobType": "Pipeline", "experimentName": "exp", "jobs": jobs, "settings": settings, **more}
    answer = cloud.arm("PUT", f"/jobs/{name}", {"properties": body})
    assert answer.status_code == 201, answer.text


def children(cloud: Cloud, name: str) -> dict[str, dict[str, Any]]:
    return {
        one["displayName"]: one for one in cloud.data("GET", "history/v1.0", f"/runs/{name}/children").json()["value"]
    }


def log_of(cloud: Cloud, run: dict[str, Any]) -> str:
    return "".join(text for path, text in sorted(cloud.logs(run["runId"]).items()) if "std_log" in path)


def literal(value: Any) -> dict[str, Any]:
    return {"job_input_type": "literal", "value": str(value)}


def test_pipeline_accepts_sdk_inputs_defaults_and_distribution(cloud: Cloud, component: Any) -> None:
    shows = component(
        "shows",
        command="echo ${{inputs.word}} ${{inputs.n}} $[[--not ${{inputs.absent}}]] $EXTRA $RANK/$WORLD_SIZE",
        environment=REGISTRY,
        inputs={"word": {"type": "string"}, "n": {"type": "integer", "default": 3}, "absent": {"optional": True}},
    )
    step = {
        "type": "command",
        "componentId": shows,
        "inputs": {"word": literal("${{parent.inputs.top}}")},
        "distribution": {"distribution_type": "PyTorch", "process_count_per_instance": 2},
        "environment_variables": {"EXTRA": "more"},
        "resources": {"instance_count": 2},
    }
    pipeline(cloud, "p1", {"one": step}, inputs={"top": {"jobInputType": "literal", "value": "hey"}})
    assert cloud.wait("p1")[-1] == "Completed"
    (run,) = children(cloud, "p1").values()
    assert sorted(log_of(cloud, run).splitlines()) == [f"hey 3 more {rank}/4" for rank in range(4)]
    assert run["rootRunId"] == "p1"


def test_pipeline_steps_pass_files_folders_and_artifacts(cloud: Cloud, component: Any) -> None:
    writes = component(
        "writes",
        command="echo a > ${{outputs.file}}; echo b > ${{outputs.folder}}/b.txt; echo c > outputs/c.txt",
        environment=REGISTRY,
        outputs={"file": {"type": "uri_file"}, "folder": {"type": "uri_folder"}, "artifacts": {"type": "uri_folder"}},
    )
    names = ("file", "folder", "artifacts")
    reads = component(
        "reads",
        command="cat ${{inputs.file}} ${{inputs.folder}}/b.txt ${{inputs.artifacts}}/outputs/c.txt",
        environment=REGISTRY,
        inputs={name: {"type": "uri_folder"} for name in names},
    )
    where = "azureml://datastores/workspaceblobstore/paths/kept/${{name}}.txt"
    jobs = {
        "second": {
            "componentId": reads,
            "inputs": {name: literal(f"${{{{parent.jobs.first.outputs.{name}}}}}") for name in names},
        },
        "first": {
            "componentId": writes,
            "outputs": {"file": {"value": "${{parent.outputs.end}}", "type": "literal"}},
        },
    }
    pipeline(cloud, "p2", jobs, outputs={"end": {"jobOutputType": "uri_file", "uri": where}})
    assert cloud.wait("p2")[-1] == "Completed", cloud.message("p2")
    assert log_of(cloud, children(cloud, "p2")["second"]) == "a\nb\nc\n"
    cloud.submit("after", "cat ${{inputs.end}}", REGISTRY, inputs={
        "end": {"jobInputType": "uri_file", "uri": "azureml://jobs/p2/outputs/end/paths/"}})  # fmt: skip
    assert cloud.wait("after")[-1] == "Completed", cloud.message("after")


def test_pipeline_sweep_step_has_trials(cloud: Cloud, component: Any) -> None:
    trial = component(
        "trial",
        command="echo ${{inputs.rate}} ${{inputs.word}}; test ${{inputs.word}} != bad",
        environment=REGISTRY,
        inputs={"rate": {"type": "number"}, "word": {"type": "string"}},
    )
    step = {
        "type": "sweep",
        "trial": {"componentId": trial},
        "inputs": {"word": literal("good")},
        "search_space": {"rate": {"type": "choice", "values": [0.25, 0.5]}},
        "sampling_algorithm": "grid",
        "objective": {"goal": "minimize", "primary_metric": "loss"},
        "limits": {"max_total_trials": 5, "max_concurrent_trials": 2},
    }
    pipeline(cloud, "p3", {"search": step})
    assert cloud.wait("p3")[-1] == "Completed", cloud.message("p3")
    (sweep,) = children(cloud, "p3").values()
    trials = children(cloud, sweep["runId"]).values()
    assert sorted(log_of(cloud, one) for one in trials) == ["0.25 good\n", "0.5 good\n"]
    assert {one["rootRunId"] for one in trials} == {"p3"}


def test_pipeline_parallel_step_runs_over_files(cloud: Cloud, component: Any, tmp_path: Path) -> None:
    made = cloud.arm("POST", "/codes/c/versions/1/startPendingUpload", {"pendingUploadType": "TemporaryBlobReference"})
    place = made.json()["blobReferenceForConsumption"]
    sas = place["credential"]["sasUri"].partition("?")[2]
    head = {"x-ms-blob-type": "BlockBlob", "Authorization": ""}
    uri = f"{place['blobUri']}/code"
    assert cloud.session.put(f"{uri}/entry.py?{sas}", ENTRY.encode(), headers=head).status_code == 201
    code = cloud.arm("PUT", "/codes/c/versions/1", {"properties": {"codeUri": uri}})
    folder = tmp_path / "data.blob.core.windows.net" / "numbers"
    folder.mkdir(parents=True)
    for number in (1, 2, 3):
        (folder / f"{number}.txt").write_text(str(number))
    cloud.azure.control("/public", folder=str(tmp_path))
    task = {
        "type": "run_function",
        "code": code.json()["id"],
        "entry_script": "entry.py",
        "environment": REGISTRY,
        "program_arguments": "--factor ${{inputs.factor}}",
        "append_row_to": "${{outputs.rows}}",
    }
    batch = component(
        "batch",
        type="parallel",
        task=task,
        input_data="${{inputs.data}}",
        mini_batch_size="2",
        inputs={"data": {"type": "uri_folder"}, "factor": {"type": "integer", "default": 10}},
        outputs={"rows": {"type": "uri_file"}},
    )
    shows = component("shows", command="cat ${{inputs.rows}}", environment=REGISTRY, inputs={"rows": {}})
    data = {"job_input_type": "uri_folder", "uri": "wasbs://numbers@data.blob.core.windows.net/", "mode": "ro_mount"}
    jobs = {
        "batch": {"type": "parallel", "componentId": batch, "inputs": {"data": data}},
        "shows": {"componentId": shows, "inputs": {"rows": literal("${{parent.jobs.batch.outputs.rows}}")}},
    }
    pipeline(cloud, "p4", jobs)
    assert cloud.wait("p4")[-1] == "Completed", cloud.message("p4")
    assert log_of(cloud, children(cloud, "p4")["shows"]) == "1.txt 10\n2.txt 20\n3.txt 30\n"


def test_pipeline_independent_steps_continue_after_failure(cloud: Cloud, component: Any) -> None:
    bad = component("bad", command="exit 3", environment=REGISTRY)
    good = component("good", command="echo fine", environment=REGISTRY, outputs={"out": {"type": "uri_folder"}})
    after = component("after", command="true", environment=REGISTRY, inputs={"x": {}})
    jobs = {
        "bad": {"componentId": bad},
        "never": {"componentId": after, "inputs": {"x": literal("${{parent.jobs.bad.outputs.out}}")}},
        "good": {"componentId": good},
    }
    pipeline(cloud, "p5", jobs)
    assert cloud.wait("p5")[-1] == "Failed" and "Failed nodes: /bad." in cloud.message("p5")
    ends = {name: one["status"] for name, one in children(cloud, "p5").items()}
    assert ends == {"bad": "Failed", "good": "Completed"}


def test_pipeline_answers_match_recordings(cloud: Cloud, component: Any) -> None:
    recorded = json.loads((RECORDINGS / "02_pipeline_two_steps_failed_children.json").read_text())["entries"]
    made, *later = [one for one in recorded if "/jobs/" in one["uri"]]
    body = {**made["request"]["properties"], "computeId": None, "outputs": {}}
    body["jobs"] = {"one": {"componentId": component("c", command="echo", environment=REGISTRY), "computeId": None}}
    body["jobs"]["one"]["computeId"] = f"{cloud.ws}/computes/cluster"
    answer = cloud.arm("PUT", "/jobs/p6", {"properties": body})
    bags = ["jobs", "outputs", "properties.jobs", "properties.outputs", "settings"]
    assert differences(answer.json(), made["response"], bags=bags) == []
    cloud.wait("p6")
    ended = cloud.arm("GET", "/jobs/p6").json()
    ended["properties"]["properties"].pop("EndTimeUtc")
    assert differences(ended, later[-1]["response"], bags=bags) == []


def sweep(cloud: Cloud, name: str, **more: Any) -> Any:
    trial = {"command": "echo ${{search_space.x}}", "environmentId": REGISTRY}
    body = {
        "jobType": "Sweep",
        "trial": trial,
        "searchSpace": {"x": ["choice", [[1, 2]]]},
        "objective": {"goal": "Minimize", "primaryMetric": "loss"},
        "samplingAlgorithm": {"samplingAlgorithmType": "Random"},
        "limits": {"jobLimitsType": "Sweep", "maxTotalTrials": 1},
        "computeId": f"{cloud.ws}/computes/cluster",
        **more,
    }
    return cloud.session.put(
        f"https://management.azure.com{cloud.ws}/jobs/{name}",
        json={"properties": body},
        params={"api-version": "2024-01-01-preview"},
    )


def test_sweep_answers_match_recordings(cloud: Cloud) -> None:
    made = sweep(cloud, "s1")
    properties = made.json()["properties"]
    assert made.status_code == 201 and properties["status"] == "Running"
    assert set(properties["services"]) == {"Studio"} and "default" in properties["outputs"]
    assert properties["queueSettings"] == {"jobTier": "Null"}
    assert any(name.startswith("_aml_system_") for name in properties["tags"])
    assert cloud.wait("s1")[-1] == "Completed"


@pytest.mark.parametrize("with_metric", [True, False])
def test_sweep_with_metric_names_best_trial(cloud: Cloud, with_metric: bool) -> None:
    cloud.azure.control("/switch", best_trial_reported=with_metric)
    log = "import mlflow; mlflow.log_metric('loss', ${{search_space.x}})"
    trial = {"command": f'python -c "{log}"', "environmentId": REGISTRY}
    limits = {"jobLimitsType": "Sweep", "maxTotalTrials": 2, "maxConcurrentTrials": 2}
    grid = {"samplingAlgorithmType": "Grid"}
    assert sweep(cloud, "s4", trial=trial, limits=limits, samplingAlgorithm=grid).status_code == 201
    assert cloud.wait("s4")[-1] == "Completed"
    best = cloud.arm("GET", "/jobs/s4").json()["properties"]["properties"].get("best_child_run_id")
    assert best == ("s4_0" if with_metric else None)


def test_sweep_on_serverless_with_resources_runs(cloud: Cloud) -> None:
    made = sweep(cloud, "s2", computeId=None, resources={"instanceType": "Standard_DS2_v2"})
    assert made.status_code == 201, made.text
    assert cloud.wait("s2")[-1] == "Completed"


def test_sweep_on_unknown_compute_has_no_inner_error(cloud: Cloud) -> None:
    refused = sweep(cloud, "s3", computeId=f"{cloud.ws}/computes/nowhere")
    assert refused.status_code == 400 and "Compute Not Found for run" in refused.json()["error"]["message"]
    assert "InnerError" not in refused.text


def test_sampled_values_are_in_search_space() -> None:
    space = {
        "u": ["uniform", [1, 2]],
        "q": {"type": "quniform", "min_value": 0, "max_value": 10, "q": 5},
        "r": ["randint", [3]],
        "n": ["lognormal", [0, 1]],
        "c": {"type": "choice", "values": ["a", "b"]},
    }
    drawn = job_sweeps.values_of(space, "Random", "seed")
    for _ in range(50):
        one = next(drawn)
        assert 1 <= one["u"] <= 2 and one["q"] in (0, 5, 10) and one["r"] in (0, 1, 2)
        assert one["n"] > 0 and one["c"] in "ab"
    grid = job_sweeps.values_of({"a": ["choice", [[1, 2]]], "b": ["choice", [[3, 4]]]}, "Grid", "")
    assert len(list(grid)) == 4


def test_input_from_public_url_is_read(cloud: Cloud, tmp_path: Path) -> None:
    folder = tmp_path / "example.com" / "sets"
    folder.mkdir(parents=True)
    (folder / "a b.csv").write_text("1\n")
    cloud.azure.control("/public", folder=str(tmp_path))
    file = {"jobInputType": "uri_file", "uri": "https://example.com/sets/a%20b.csv"}
    none = {"jobInputType": "uri_file", "uri": "https://example.com/sets/none.csv"}
    cloud.submit("w1", "cat '${{inputs.x}}'", REGISTRY, inputs={"x": file})
    cloud.submit("w2", "cat ${{inputs.x}}", REGISTRY, inputs={"x": none})
    assert cloud.wait("w1")[-1] == "Completed" and cloud.wait("w2")[-1] == "Failed"
    assert "StreamAccess.NotFound" in cloud.message("w2")


@pytest.mark.parametrize("name", ["sklearn-1.5/versions/999", "nope/labels/latest"])
def test_unknown_registry_environment_is_refused(cloud: Cloud, name: str) -> None:
    answer = cloud.submit("r1", "true", f"azureml://registries/azureml/environments/{name}")
    assert answer.status_code == 400
    assert cloud.submit("r2", "true", f"azureml://registries/other/environments/{name}").status_code == 400


def test_job_in_lightgbm_environment_completes(cloud: Cloud) -> None:
    assert cloud.submit("l1", "true", "azureml:AzureML-lightgbm-3.3@latest").status_code == 201
    assert cloud.wait("l1")[-1] == "Completed"


def test_cancel_of_ended_job_returns_200(cloud: Cloud) -> None:
    cloud.submit("e1", "true", REGISTRY)
    cloud.wait("e1")
    answer = cloud.arm("POST", "/jobs/e1/cancel")
    assert (answer.status_code, answer.content) == (200, b"") and "Location" not in answer.headers


def test_versions_of_unknown_model_return_404(cloud: Cloud) -> None:
    answer = cloud.arm("GET", "/models/none/versions")
    assert answer.status_code == 404 and "ModelNotFound" in answer.text


def test_component_defaults_are_returned_as_text(cloud: Cloud, component: Any) -> None:
    component("numbers", command="echo", environment=REGISTRY, inputs={"n": {"type": "integer", "default": 2}}, b=True)
    spec = cloud.arm("GET", "/components/numbers/versions/1").json()["properties"]["componentSpec"]
    assert spec["inputs"]["n"]["default"] == "2" and spec["b"] == "True"
    container = cloud.arm("GET", "/components/numbers").json()["properties"]
    assert container["latestVersion"] is None and container["nextVersion"].count("-") >= 5


@pytest.mark.parametrize("what", ["usages", "vmSizes"])
def test_unknown_region_is_refused(cloud: Cloud, what: str) -> None:
    place = f"subscriptions/{cloud.azure.subscription}/providers/Microsoft.MachineLearningServices/locations"
    for region, status in (("mars", 404), ("eastus", 200)):
        answer = cloud.session.get(
            f"https://management.azure.com/{place}/{region}/{what}", params={"api-version": "2024-10-01"}
        )
        assert answer.status_code == status


def test_injected_fault_sends_body_and_content_type(cloud: Cloud) -> None:
    headers = {"content-type": "application/problem+json"}
    cloud.azure.control("/fault", match="/jobs/x$|/jobs/x[?]", status=409, body={"a": 1}, headers=headers)
    answer = cloud.arm("GET", "/jobs/x")
    assert (answer.status_code, answer.json()) == (409, {"a": 1})
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_unknown_field_follows_switch(cloud: Cloud) -> None:
    assert cloud.submit("f1", "true", REGISTRY, shade="red").status_code == 400
    cloud.azure.control("/switch", unknown_fields=True)
    assert cloud.submit("f1", "true", REGISTRY, shade="red").status_code == 201
    until(lambda: cloud.status("f1") == "Completed")


def test_cluster_lists_nodes_and_has_no_keys(cloud: Cloud) -> None:
    nodes = cloud.arm("POST", "/computes/cluster/listNodes", {})
    assert nodes.status_code == 200 and nodes.json()["computeType"] == "AmlCompute"
    keys = cloud.arm("POST", "/computes/cluster/listKeys", {})
    assert keys.status_code == 400 and "UserError" in keys.text

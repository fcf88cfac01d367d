"""Recorded Azure: the product reads every answer, and the emulator answers in the same form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.azure import catalog, compute_state, errors, mirror_store
from jupyter_amltrain.azure import status as azure_status
from jupyter_amltrain.azure.service import history
from jupyter_amltrain.azure.service.http import Rest
from jupyter_amltrain.schema.run import RunState
from tests.azure.conftest import Azure
from tests.azure.json_shapes import differences
from tests.azureml_emulator.test_jobs import Cloud, until

FOLDER = Path(__file__).resolve().parents[2] / "azureml_emulator" / "data" / "recordings"
_WS = "providers/Microsoft.MachineLearningServices/workspaces/"

#: What later recordings have of a job (command_job_serverless), and those of 2022 not yet.
NEWER = [
    "properties.notificationSetting",
    "properties.queueSettings",
    "properties.outputs.default.assetName",
    "properties.resources.dockerArgsList",
    "properties.services.Studio.nodes",
    "properties.services.Tracking.nodes",
]


def entries(name: str) -> list[dict[str, Any]]:
    (path,) = FOLDER.glob(f"{name}*.json")
    found: list[dict[str, Any]] = json.loads(path.read_text())["entries"]
    return found


def everything() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.json")):
        for entry in json.loads(path.read_text())["entries"]:
            yield path.stem, entry


def bodies(part: str) -> list[tuple[str, dict[str, Any]]]:
    """Recorded resources whose id has `part`, lists taken apart."""
    found = []
    for name, entry in everything():
        body = entry.get("response") or {}
        items: Any = body.get("value")
        for item in items if isinstance(items, list) else [body]:
            if isinstance(item, dict) and part in str(item.get("id")):
                found.append((name, item))
    return found


# -------------------------------------------------------------------------------------------------- the product reads
def test_recorded_computes_are_read() -> None:
    found = bodies("/computes/")
    assert len(found) == 5
    rows = [(name, compute_state.row(item)) for name, item in found]
    assert {row["kind"] for _, row in rows} == {"amlcompute", "instance"}
    for name, row in rows:
        assert row["name"] and row["state"] in ("ready", "creating"), name
        assert row["location"] and row["size"].lower().startswith("standard_"), name
        assert row["errors"] == [] and row["settings"]["size"] == row["size"], name


def test_recorded_jobs_are_read() -> None:
    found = bodies("/jobs/")
    assert len(found) == 8
    words = {"Starting": "queued", "NotStarted": "queued", "Running": "running", "Completed": "completed"}
    words["Failed"] = "failed"
    for name, item in found:
        row = history.row_of_job(item)
        status = azure_status.status_of(row)
        assert status is not None and status.state.value == words[item["properties"]["status"]], name
        assert row["created"] and (status.state is not RunState.COMPLETED or row["ended"] > row["started"]), name
        spec, ours = mirror_store.spec_of(row["name"], {**item["properties"], "studio_url": ""})
        assert not ours and spec.name, name


def test_recorded_run_history_is_read() -> None:
    (children,) = (e for e in entries("02_") if e["uri"].split("?")[0].endswith("/children"))
    assert len(children["response"]["value"]) == 2
    for record in children["response"]["value"]:
        row = history.row(record["runId"], record)
        status = azure_status.status_of(row)
        assert status is not None and status.state is RunState.FAILED and status.reason == "service"
        assert row["created"] < row["started"] < row["ended"] and row["compute"] == "cpu-cluster"
        assert "Authentication" in row["error"] and row["code"] == "UserError" and row["nodes"]
    api = next(e for e in entries("02_") if e["uri"].endswith("/discovery"))["response"]
    assert api["api"].startswith("https://")


def test_recorded_sizes_and_prices_are_read() -> None:
    items = entries("05_")[0]["response"]["value"]
    rows = [catalog.size_row(item) for item in items]
    sizes = catalog.sizes_of(rows)
    assert len(sizes) == len(items) == 80 and all(size.cpus and size.memory and size.types for size in sizes)
    for item, row in zip(items, rows, strict=True):
        values = (item.get("estimatedVMPrices") or {}).get("values") or []
        linux = [v["retailPrice"] for v in values if v["osType"] == "Linux" and v["vmTier"] == "Standard"]
        assert row["price"] == min(linux, default=None) and len(linux) <= 2
    assert any("estimatedVMPrices" not in item for item in items)
    assert any(len((item.get("estimatedVMPrices") or {}).get("values") or ()) == 6 for item in items)
    doubled = catalog.find(sizes, "Standard_D16ads_v5")
    assert doubled is not None and (doubled.price, doubled.price_low) == (0.82, 0.16)


def test_recorded_families_have_quota() -> None:
    sizes = catalog.sizes_of(catalog.size_row(item) for item in entries("05_")[0]["response"]["value"])
    found = catalog.Quotas(catalog.quota_row(item) for item in entries("powershell_usages")[0]["response"]["value"])
    assert [row.family for row in found.rows][:2] == ["clusters", ""]
    for recorded, others in (
        ("standardNCSv3Family", ("StandardNCSv3Family", "Standard NCSv3 Family")),
        ("StandardNCADSA100v4Family", ("standardNCADSA100v4Family",)),
        ("Standard NCASv3_T4 Family", ("standardNCASv3T4Family", "StandardNCASv3_T4Family")),
    ):
        assert any(size.family == recorded for size in sizes), recorded
        assert {catalog.family_key(other) for other in others} == {catalog.family_key(recorded)}
    for row in found.rows:
        assert row.name and row.limit >= row.used >= 0
    mine = [size for size in sizes if len(found.binding(size, False)) == 2]
    assert mine, "no recorded family has a recorded quota"


def test_recorded_datastore_secrets_are_classified() -> None:
    kinds = [e["response"]["secretsType"] for e in entries("08_") if e["method"] == "POST"]
    assert kinds == ["Sas", "AccountKey", "AccountKey"]


def test_recorded_error_envelopes_are_read() -> None:
    for name, entry in everything():
        if entry["status"] < 400 or entry["method"] == "HEAD":
            continue
        body = json.dumps(entry["response"]).encode() if entry["response"] is not None else b""
        error = errors.error_of_answer(entry["status"], entry.get("headers") or {}, body, act="GET it", where="w")
        assert errors.details_of(error).status == entry["status"] and "\n" not in str(error), name
        assert errors.details_of(error).code == ("UnknownTargetType" if body else ""), name
    service = {
        **dict.fromkeys(("severity", "messageFormat", "referenceCode", "target", "innerError", "additionalInfo")),
        "code": "BadRequest",
        "message": "No.",
        "details": [{"code": "Precise", "message": "No.", "details": []}],
    }
    beside = {"correlation": {"operation": "o"}, "environment": "eastus", "location": "eastus", "time": "t"}
    answers: tuple[tuple[Any, str], ...] = (
        ({"error": service, **beside, "componentName": "machinelearningcompute"}, "Precise"),
        ({"error": {"code": "ResourceNotFound", "message": "gone"}}, "ResourceNotFound"),
    )
    for answer, code in answers:
        for text in (json.dumps(answer), json.dumps(answer, indent=2)):  # both are recorded
            assert errors.read_details(400, {}, text.encode()).code == code


# ------------------------------------------------------------------------------------------------ the emulator answers
@pytest.fixture
def cloud(azure_env: Azure) -> Cloud:
    azure_env.control("/switch", scale_seconds=0.1, create_seconds=0.2, instance_seconds=0.1)
    return Cloud(azure_env)


def _whole(cloud: Cloud, url: str) -> Any:
    return cloud.session.get(url)


def _put(cloud: Cloud, entry: dict[str, Any], kind: str, name: str, **changed: Any) -> Any:
    body = json.loads(json.dumps(entry["request"]).replace("\\u0000", ""))
    body["properties"] = {**body["properties"], **changed}
    return cloud.arm("PUT", f"/{kind}/{name}", body)


def test_emulated_computes_match_recordings(cloud: Cloud) -> None:
    created, progress = entries("amlcompute_create")
    created["request"]["properties"]["properties"].pop("userAccountCredentials", None)
    answer = _put(cloud, created, "computes", "cpu")
    assert answer.status_code == created["status"]
    assert differences(answer.json(), created["response"]) == []
    poll = answer.headers["Azure-AsyncOperation"]
    assert len(poll) > 3000 and "Location" not in answer.headers and "Retry-After" not in answer.headers
    assert differences(_whole(cloud, poll).json(), progress["response"]) == []

    desk = entries("06b")
    answer = _put(cloud, desk[0], "computes", "desk")
    assert answer.status_code == 201 and differences(answer.json(), desk[0]["response"]) == []
    url = answer.headers["Azure-AsyncOperation"]
    until(lambda: _whole(cloud, url).json() == desk[2]["response"])
    assert differences(cloud.arm("GET", "/computes/desk").json(), desk[3]["response"]) == []
    stop = entries("06c")
    answer = cloud.arm("POST", "/computes/desk/stop")
    assert (answer.status_code, answer.content) == (stop[0]["status"], b"")
    url = answer.headers["Azure-AsyncOperation"]
    until(lambda: _whole(cloud, url).json() == stop[2]["response"])
    answer = cloud.arm("DELETE", "/computes/desk", underlyingResourceAction="Delete")
    assert (answer.status_code, answer.content) == (desk[4]["status"], b"")

    until(lambda: cloud.arm("GET", "/computes/cpu").json()["properties"]["provisioningState"] == "Succeeded")
    now = cloud.arm("GET", "/computes/cpu").json()
    older = {"more": ["properties.properties.enableNodePublicIp"]}  # came after that recording
    assert differences(now, entries("11b")[1]["response"], **older) == []
    assert differences(now, entries("02_")[0]["response"], **older) == []
    missing = cloud.arm("GET", "/computes/nowhere")
    assert (missing.status_code, missing.content) == (404, b"") and "Content-Type" not in missing.headers


def test_client_returns_poll_url_unchanged(cloud: Cloud) -> None:
    token = str(cloud.session.headers["Authorization"]).partition(" ")[2]
    account: Any = SimpleNamespace(get_token=lambda *scopes, **rest: SimpleNamespace(token=token, expires_on=1 << 40))
    rest = Rest("https://management.azure.com", cloud.ws, account, "https://management.azure.com/.default")
    body = {
        "location": "eastus",
        "properties": {"computeType": "AmlCompute", "properties": {"vmSize": "STANDARD_DS1_V2"}},
    }
    url = rest.put("computes/cpu", api="2024-10-01", json=body).headers["azure-asyncoperation"]
    assert len(url) > 3000
    until(lambda: rest.get(url).json["status"] == "Succeeded")
    cloud.azure.control("/switch", page_size=1)
    rest.put("computes/more", api="2024-10-01", json=body)
    assert "nextLink" in rest.get("computes", api="2024-10-01").json
    assert [item["name"] for item in rest.pages("computes", api="2024-10-01")] == ["cpu", "more"]


def test_emulated_sizes_usages_and_discovery_match_recordings(cloud: Cloud) -> None:
    place = f"https://management.azure.com/subscriptions/{cloud.azure.subscription}/{_WS.rpartition('/w')[0]}"
    for what, name in (("vmSizes", "05_"), ("usages", "powershell_usages")):
        answer = cloud.session.get(f"{place}/locations/eastus/{what}", params={"api-version": "2024-04-01"}).json()
        assert differences(answer, entries(name)[0]["response"]) == []
        assert "nextLink" not in answer
    recorded = next(e for e in entries("02_") if e["uri"].endswith("/discovery"))["response"]
    found = cloud.session.get("https://eastus.api.azureml.ms/discovery").json()
    assert {"api", "history", "mlflow"} <= set(found) | {"mlflow"} and found["api"].startswith("https://")
    assert set(recorded) & set(found) >= {"api", "history", "catalog"}


def test_emulated_datastores_match_recordings(cloud: Cloud) -> None:
    for name in ("08_", "command_job_serverless"):
        found = entries(name)
        got = cloud.arm("GET", "/datastores/workspaceblobstore").json()
        assert differences(got, found[0]["response"]) == []
        for entry in found[1:]:
            if entry["method"] == "POST":
                answer = cloud.arm("POST", "/datastores/workspaceblobstore/listSecrets", entry["request"])
                assert differences(answer.json(), entry["response"]) == []
                assert answer.json()["secretsType"] == entry["response"]["secretsType"]


def test_emulated_environments_and_jobs_match_recordings(cloud: Cloud) -> None:
    made = entries("03_")[0]
    answer = _put(cloud, made, "environments/own/versions", "1")
    assert answer.status_code == 201 and differences(answer.json(), made["response"]) == []
    assert "Location" in answer.headers and isinstance(json.loads(answer.json()["properties"]["condaFile"]), dict)
    anonymous, refused = entries("11a")
    answer = _put(cloud, anonymous, "environments/CliV2AnonymousEnvironment/versions", "6b")
    assert answer.status_code == 201 and differences(answer.json(), anonymous["response"]) == []
    environment = answer.json()["id"]
    answer = _put(
        cloud, refused, "jobs", "ray", environmentId=environment, codeId=None, computeId=f"{cloud.ws}/computes/x"
    )
    assert answer.status_code == 400 and differences(answer.json(), refused["response"]) == []

    cloud.cluster()
    mine = {"environmentId": environment, "codeId": None, "computeId": f"{cloud.ws}/computes/cluster"}
    plain = {**mine, "command": "echo 1", "inputs": None}
    for number, entry in enumerate(entries("01b")):
        answer = _put(cloud, entry, "jobs", f"mpi-{number}", **plain)
        assert answer.status_code == 201, answer.text
        assert differences(answer.json(), entry["response"], more=NEWER, bags=["inputs", "properties.properties"]) == []
    entry = entries("command_job_serverless")[-1]
    size = {"resources": {"instanceType": "Standard_DS3_v2"}}
    answer = _put(cloud, entry, "jobs", "free", **{**plain, "computeId": None}, **size)
    assert answer.status_code == 201, answer.text
    assert differences(answer.json(), entry["response"], absent=["properties.parentJobName"], bags=["inputs"]) == []

    cloud.submit("done", "echo 1", environment=environment)
    cloud.wait("done")
    listed, got = entries("07a")
    assert differences(cloud.arm("GET", "/jobs/done").json(), got["response"], more=NEWER, bags=["inputs"]) == []
    answer = cloud.arm("GET", "/jobs").json()
    assert (
        differences(
            answer,
            listed["response"],
            more=[f"value[].{p}" for p in NEWER],
            bags=["inputs", "value[].properties.properties"],
        )
        == []
    )
    record = cloud.data("GET", "history/v1.0", "/runs/done").json()
    (children,) = (e for e in entries("02_") if e["uri"].split("?")[0].endswith("/children"))
    first = {"value": [record]}
    assert differences(first, children["response"], bags=["value[].properties"]) == []

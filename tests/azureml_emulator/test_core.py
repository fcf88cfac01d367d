"""The unmodified SDK with `DefaultAzureCredential` talks to the emulator by Azure's own host names."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.sdk_process import SdkProcess, SnippetError
from tests.helpers import until

#: The product's own tests go through most of it; this is the emulator for itself.
pytestmark = pytest.mark.thorough

RECORDINGS = Path(__file__).resolve().parents[2] / "azureml_emulator" / "data" / "recordings"


@pytest.fixture(scope="module")
def talker(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkProcess]:
    home = tmp_path_factory.mktemp("sdk")
    environ = {**os.environ, **azure.environ, "HOME": str(home), "AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED": "false"}
    made = SdkProcess(environ)
    made(
        "client = MLClient(DefaultAzureCredential(exclude_managed_identity_credential=True),"
        f" {azure.subscription!r}, {azure.resource_group!r}, {azure.workspace!r}, enable_telemetry=False)\n1"
    )
    yield made
    made.close()


@pytest.fixture
def sdk(talker: SdkProcess, azure: Azure) -> Iterator[SdkProcess]:
    """The SDK, a sandbox as new, polls that do not wait 30 s; afterwards the emulator has nothing to complain of."""
    azure.control("/reset")
    azure.control("/switch", retry_after_header=0.05, scale_seconds=0.1)
    yield talker
    assert azure.control("/problems") == {"problems": [], "refused_hosts": []}


def cluster(name: str = "cpu", size: str = "Standard_DS2_v2", **more: Any) -> str:
    options = "".join(f", {key}={value!r}" for key, value in more.items())
    return f"client.compute.begin_create_or_update(AmlCompute(name={name!r}, size={size!r}{options})).result()"


# ------------------------------------------------------------------------------------------------------------ workspace
def test_workspace_get_returns_addresses(sdk: SdkProcess, azure: Azure) -> None:
    sdk("w = client.workspaces.get(client.workspace_name)\n1")
    found = sdk("[w.name, w.location, w.discovery_url, w.mlflow_tracking_uri]")
    assert found[:3] == [azure.workspace, "eastus", "https://eastus.api.azureml.ms/discovery"]
    assert found[3].startswith("azureml://eastus.api.azureml.ms/mlflow/v1.0/subscriptions/")
    assert sdk("[w.name for w in client.workspaces.list()]") == [azure.workspace]
    with pytest.raises(SnippetError, match="ResourceNotFound") as missing:
        sdk("client.workspaces.get('missing')")
    assert missing.value.status == 404


# ------------------------------------------------------------------------------------------------------------- clusters
def test_cluster_lifecycle(sdk: SdkProcess) -> None:
    made = cluster(min_instances=0, max_instances=2, idle_time_before_scale_down=100, tier="low_priority")
    sdk(f"c = {made}\n1")
    found = sdk(
        "[c.name, c.type, c.size, c.tier, c.max_instances, c.idle_time_before_scale_down, c.provisioning_state]"
    )
    assert found == ["cpu", "amlcompute", "STANDARD_DS2_V2", "low_priority", 2, 100, "Succeeded"]
    assert sdk("[c.name for c in client.compute.list()]") == ["cpu"]
    changed = (
        "c = client.compute.get('cpu')\nc.max_instances = 3\nclient.compute.begin_update(c).result().max_instances"
    )
    assert sdk(changed) == 3
    sdk("client.compute.begin_delete('cpu').wait()")
    with pytest.raises(SnippetError) as gone:
        sdk("client.compute.get('cpu')")
    assert gone.value.kind == "ResourceNotFoundError"


def test_cluster_scales_from_zero_and_back(sdk: SdkProcess, azure: Azure) -> None:
    sdk(cluster(max_instances=2, idle_time_before_scale_down=120) + ".name")
    assert sdk("[n for n in client.compute.list_nodes('cpu')]") == []
    assert azure.control("/billing") == []
    azure.control("/lease", compute="cpu", count=2, seconds=2, job="j")
    nodes = "sorted([field(n, 'node_state'), field(n, 'run_id')] for n in client.compute.list_nodes('cpu'))"
    until(lambda: sdk(nodes) == [["running", "j"]] * 2)
    assert azure.control("/billing") == [
        {"kind": "cluster", "name": "cpu", "size": "STANDARD_DS2_V2", "nodes": 2, "low_priority": False}
    ]
    sdk("named = lambda u: u.name['value'] if isinstance(u.name, dict) else u.name.value\n1")
    usage = sdk("{named(u): field(u, 'current_value') for u in client.compute.list_usage()}")
    assert usage["standardDSv2Family"] == 4
    until(lambda: sdk(nodes) == [["idle", None]] * 2)
    azure.control("/speed", factor=1000)
    until(lambda: azure.control("/billing") == [])


def test_preempted_node_is_released(sdk: SdkProcess, azure: Azure) -> None:
    sdk(cluster(max_instances=1, tier="low_priority") + ".name")
    azure.control("/lease", compute="cpu", seconds=60, job="j")
    until(lambda: sdk("[n.__dict__ and field(n, 'run_id') for n in client.compute.list_nodes('cpu')]") == ["j"])
    assert azure.control("/preempt", job="j") == {"preempted": True}
    assert sdk("len(list(client.compute.list_nodes('cpu')))") == 0


def test_provisioning_failure_is_reported(sdk: SdkProcess, azure: Azure) -> None:
    azure.control("/switch", fail_provisioning="cpu")
    with pytest.raises(SnippetError, match="no capacity"):
        sdk(cluster())
    assert sdk("client.compute.get('cpu').provisioning_state") == "Failed"
    assert "ClusterCreationFailed" in sdk("str(client.compute.get('cpu').provisioning_errors)")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (cluster(size="Standard_NV6ads_A10_v5"), "not a supported VM size"),
        (cluster(size="Standard_Nothing"), "not a supported VM size"),
        (cluster(size="Standard_NC48ads_A100_v4", max_instances=1), "vCPU quota of 24 and cannot accomodate"),
        (cluster(name="-bad"), "name '-bad' is invalid"),
        (cluster(min_instances=3, max_instances=2), "minNodeCount"),
    ],
)
def test_cluster_invalid_is_refused(sdk: SdkProcess, wrong: str, message: str) -> None:
    with pytest.raises(SnippetError, match=re.escape(message)) as refused:
        sdk(wrong)
    assert refused.value.status == 400


def test_quota_limits_nodes(sdk: SdkProcess, azure: Azure) -> None:
    azure.control("/quota", standardDSv2Family=4)
    sdk(cluster(max_instances=3) + ".name")
    azure.control("/lease", compute="cpu", count=2, seconds=60, job="a")
    until(lambda: len(sdk("[field(n, 'run_id') for n in client.compute.list_nodes('cpu')]")) == 2)
    azure.control("/lease", compute="cpu", count=1, seconds=60, job="b")
    sdk(RAW + "\n1")
    until(
        lambda: (
            "ClusterCoreQuotaReached"
            in sdk("str(ask('GET', '/computes/cpu')[2]['properties']['properties']['errors'])")
        )
    )
    # Low priority is one pool of its own for all families, and nothing is refused at creation.
    azure.control("/quota", TotalLowPriorityCores=0)
    sdk(cluster("low", "Standard_DS2_v2", max_instances=1, tier="low_priority") + ".name")
    azure.control("/lease", compute="low", seconds=60)
    until(lambda: "ClusterCoreQuotaReached" in sdk("str(ask('GET', '/computes/low')[2])"))


def test_low_priority_of_unsupported_size_fails(sdk: SdkProcess, azure: Azure) -> None:
    sdk(cluster("low", "Standard_ND96isr_H100_v5", max_instances=1, tier="low_priority") + ".name")
    azure.control("/lease", compute="low", seconds=60)
    sdk(RAW + "\n1")
    until(lambda: "UnsupportedVMSizeForLowPriority" in sdk("str(ask('GET', '/computes/low')[2])"))


# ------------------------------------------------------------------------------------------------------------ instances
def test_instance_lifecycle(sdk: SdkProcess, azure: Azure) -> None:
    sdk("client.compute.begin_create_or_update(ComputeInstance(name='desk', size='Standard_DS2_v2')).result().state")
    state = "[(c := client.compute.get('desk')).state, c.provisioning_state]"
    assert sdk(state) == ["Running", "Succeeded"]
    assert [one["name"] for one in azure.control("/billing")] == ["desk"]
    azure.control("/switch", instance_seconds=10)  # longer than a busy machine takes to look
    sdk("p = client.compute.begin_stop('desk')\n1")
    assert sdk(state) == ["Stopping", "Succeeded"]
    azure.control("/switch", instance_seconds=0.5)
    sdk("p.wait()")
    assert sdk(state) == ["Stopped", "Succeeded"]
    assert azure.control("/billing") == []
    sdk("client.compute.begin_start('desk').wait()")
    assert sdk(state) == ["Running", "Succeeded"]
    assert "'Start'" in sdk("str(client.compute.get('desk').last_operation)")
    sdk("client.compute.begin_restart('desk').wait()")
    assert sdk(state) == ["Running", "Succeeded"]
    sdk("client.compute.begin_delete('desk').wait()")
    assert sdk("list(client.compute.list())") == []


def test_instance_when_idle_stops(sdk: SdkProcess, azure: Azure) -> None:
    idle = "ComputeInstance(name='desk', size='Standard_DS2_v2', idle_time_before_shutdown_minutes=30)"
    sdk(f"client.compute.begin_create_or_update({idle}).result().name")
    azure.control("/speed", factor=3000)
    until(lambda: sdk("client.compute.get('desk').state") == "Stopped")


# ------------------------------------------------------------------------------------------------------------- attached
VM = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/virtualMachines/v"
K8S = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Kubernetes/connectedClusters/k"
SSH = "VirtualMachineSshSettings(admin_username='u', admin_password='s3cret', ssh_port=22)"
SPARK = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Synapse/workspaces/w/bigDataPools/p"


@pytest.mark.parametrize(
    ("entity", "kind"),
    [
        (f"VirtualMachineCompute(name='far', resource_id={VM!r}, ssh_settings={SSH})", "virtualmachine"),
        (f"KubernetesCompute(name='far', namespace='ns', resource_id={K8S!r})", "kubernetes"),
        (f"SynapseSparkCompute(name='far', resource_id={SPARK!r})", "synapsespark"),
    ],
)
def test_attach_by_sdk_is_listed(sdk: SdkProcess, azure: Azure, entity: str, kind: str) -> None:
    assert sdk(f"client.compute.begin_create_or_update({entity}).result().type") == kind
    assert sdk("[[c.name, c.type] for c in client.compute.list()]") == [["far", kind]]
    sdk("client.compute.begin_delete('far', action='Detach').wait()")
    assert sdk("list(client.compute.list())") == []


RAW = """
from azure.core import PipelineClient
from azure.core.pipeline.policies import BearerTokenCredentialPolicy
from azure.core.rest import HttpRequest
arm = "https://management.azure.com"
http = PipelineClient(arm, policies=[BearerTokenCredentialPolicy(DefaultAzureCredential(), arm + "/.default")])
group = f"/subscriptions/{client.subscription_id}/resourceGroups/{client.resource_group_name}"
base = f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{client.workspace_name}"
def ask(method, path, body=None):
    url = path if path.startswith("https") else arm + (path if path.startswith("/sub") else base + path)
    if "api-version" not in url:
        url += ("&" if "?" in url else "?") + "api-version=2024-10-01"
    answer = http.send_request(HttpRequest(method, url, json=body))
    return [answer.status_code, dict(answer.headers), answer.json() if answer.content else None]
"""
SIMPLE = {"vmSize": "Standard_DS1_v2"}
CLUSTER = {"location": "eastus", "properties": {"computeType": "AmlCompute", "properties": SIMPLE}}


@pytest.fixture
def raw(sdk: SdkProcess) -> Callable[..., tuple[int, dict[str, str], Any]]:
    """Plain requests to ARM with the same credential."""
    sdk(RAW + "\n1")

    def ask(method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
        status, headers, found = sdk(f"ask({method!r}, {path!r}, {body!r})")
        return status, headers, found

    return ask


Ask = Callable[..., tuple[int, dict[str, str], Any]]


ACCOUNT = {"username": "u", "password": "s3cret"}


@pytest.mark.parametrize(
    ("kind", "of", "inner"),
    [
        ("Databricks", "Databricks/workspaces/d", {"databricksAccessToken": "s3cret", "workspaceUrl": "https://adb"}),
        ("HDInsight", "HDInsight/clusters/h", {"sshPort": 22, "address": "a", "administratorAccount": ACCOUNT}),
        ("DataLakeAnalytics", "DataLakeAnalytics/accounts/d", {"dataLakeStoreAccountName": "s"}),
    ],
)
def test_attach_by_arm_is_listed(raw: Ask, azure: Azure, kind: str, of: str, inner: dict[str, Any]) -> None:
    arm_id = f"/subscriptions/s/resourceGroups/r/providers/Microsoft.{of}"
    body = {"location": "eastus", "properties": {"computeType": kind, "resourceId": arm_id, "properties": inner}}
    status, headers, found = raw("PUT", "/computes/far", body)
    assert (status, found["properties"]["isAttachedCompute"]) == (201, True)
    until(lambda: raw("GET", headers["Azure-AsyncOperation"])[2]["status"] == "Succeeded")
    status, _, found = raw("GET", "/computes/far")
    assert found["properties"]["provisioningState"] == "Succeeded" and "s3cret" not in json.dumps(found)
    assert raw("DELETE", "/computes/far?underlyingResourceAction=Delete")[0] == 400
    assert raw("DELETE", "/computes/far?underlyingResourceAction=Detach")[0] == 202


def test_batch_compute_is_refused(raw: Ask) -> None:
    status, _, found = raw("PUT", "/computes/far", {"location": "eastus", "properties": {"computeType": "Batch"}})
    assert status == 400 and "Batch" in found["error"]["message"]


# --------------------------------------------------------------------------------------------------------- sizes, quota
def test_sizes_list_is_complete(sdk: SdkProcess, azure: Azure) -> None:
    found = sdk("{s.name: field(s, 'gpus') for s in client.compute.list_sizes()}")
    assert len(found) == 80 and found["Standard_NC6s_v3"] == 1


def test_usages_match_recordings(raw: Ask, azure: Azure) -> None:
    path = f"/subscriptions/{azure.subscription}/providers/Microsoft.MachineLearningServices/locations/eastus/usages"
    _, _, found = raw("GET", path)
    recorded = json.loads((RECORDINGS / "powershell_usages.json").read_text())["entries"][0]["response"]
    assert "nextLink" not in found
    ours = {one["name"]["value"]: one for one in found["value"]}
    for one in recorded["value"]:
        mine = ours[one["name"]["value"]]
        assert list(mine) == list(one) and mine["type"] == one["type"] and mine["name"] == one["name"]
        assert mine["id"].replace(azure.subscription, "S") == one["id"]


# --------------------------------------------------------------------------------------------- shapes of the recordings
def test_cluster_answers_match_recordings(raw: Ask, azure: Azure) -> None:
    entry = json.loads((RECORDINGS / "amlcompute_create.json").read_text())["entries"][0]
    body = entry["request"]
    # The recording's own credentials are left out of it.
    body["properties"]["properties"]["userAccountCredentials"] = {"adminUserName": "u", "adminUserPassword": "s3cret"}
    azure.control("/switch", retry_after_header=False)
    status, headers, found = raw("PUT", "/computes/cpu", body)
    assert status == entry["status"] and shape(found) == shape(entry["response"])
    assert "Retry-After" not in headers and "Location" not in headers
    assert len(headers["Azure-AsyncOperation"]) > 3000
    assert "s3cret" not in json.dumps(found)
    status, headers, poll = raw("GET", headers["Azure-AsyncOperation"])
    assert poll == {"status": "InProgress"} and "Retry-After" not in headers
    until(lambda: raw("GET", "/computes/cpu")[2]["properties"]["provisioningState"] == "Succeeded")
    recorded = json.loads((RECORDINGS / "11b_missing_compute_404_empty_and_resizing.json").read_text())["entries"]
    now = raw("GET", "/computes/cpu")[2]
    # enableNodePublicIp came later than that recording (it stands in amlcompute_create).
    del now["properties"]["properties"]["enableNodePublicIp"]
    assert shape(now) == shape(recorded[1]["response"])
    status, headers, found = raw("GET", "/computes/missing")
    assert (status, found) == (404, None) and "Content-Type" not in headers


def test_instance_answers_match_recordings(raw: Ask, azure: Azure) -> None:
    entries = json.loads((RECORDINGS / "06b_compute_instance_2024_bodies.json").read_text())["entries"]
    status, headers, found = raw("PUT", "/computes/desk", entries[0]["request"])
    assert status == 201 and shape(found) == shape(entries[0]["response"])
    until(lambda: raw("GET", headers["Azure-AsyncOperation"])[2] == {"status": "Succeeded", "percentComplete": 100.0})
    assert shape(raw("GET", "/computes/desk")[2]) == shape(entries[3]["response"])
    status, headers, found = raw("POST", "/computes/desk/stop")
    assert (status, found, headers["Content-Length"]) == (202, None, "0")
    assert "Azure-AsyncOperation" in headers


def test_shortened_poll_url_is_refused(raw: Ask, azure: Azure) -> None:
    _, headers, _ = raw("PUT", "/computes/cpu", CLUSTER)
    assert raw("GET", headers["Azure-AsyncOperation"].split("&c=")[0])[0] == 403


def shape(value: Any) -> Any:
    """Names, at every depth; null and a value are one, so are lists of anything."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items() if isinstance(one, dict) and one} | {
            "names": sorted(value)
        }
    return None


def test_list_is_paged(raw: Ask, azure: Azure) -> None:
    azure.control("/switch", page_size=2)
    for number in range(3):
        assert raw("PUT", f"/computes/c{number}", CLUSTER)[0] == 201
    first = raw("GET", "/computes")[2]
    assert len(first["value"]) == 2
    assert first["nextLink"].startswith("https://management.azure.com/subscriptions/")
    second = raw("GET", first["nextLink"])[2]
    assert [one["name"] for one in second["value"]] == ["c2"] and "nextLink" not in second


# ------------------------------------------------------------------------------------------------------ sign-in, faults
def test_sign_in_with_wrong_secret_is_refused(azure: Azure, talker: SdkProcess) -> None:
    azure.control("/reset")
    who = f"{azure.tenant!r}, {azure.environ['AZURE_CLIENT_ID']!r}, 'wrong'"
    code = f"from azure.identity import *\nClientSecretCredential({who}).get_token('https://management.azure.com/.default')"
    with pytest.raises(SnippetError, match="AADSTS7000215"):
        talker(code)


def test_sign_in_by_device_code_succeeds(azure: Azure, talker: SdkProcess) -> None:
    azure.control("/reset")
    talker(
        "import threading\nfrom azure.identity import DeviceCodeCredential\nprompts, got = [], []\n"
        f"d = DeviceCodeCredential(tenant_id={azure.tenant!r}, prompt_callback=lambda *a: prompts.append(a))\n"
        "t = threading.Thread(target=lambda: got.append(d.get_token('https://management.azure.com/.default')))\n"
        "t.start()\n1"
    )
    [code] = until(lambda: azure.control("/device-codes"))
    assert azure.control("/approve", user_code=code) == {"settled": 1}
    assert talker("t.join(60)\nlen(got[0].token.split('.'))") == 3
    assert talker("[prompts[0][0], prompts[0][1]]") == ["https://microsoft.com/devicelogin", code]


def test_expired_token_is_refused(sdk: SdkProcess, azure: Azure) -> None:
    assert sdk("len(list(client.compute.list()))") == 0
    azure.control("/expire-tokens")
    with pytest.raises(SnippetError, match="ExpiredAuthenticationToken") as refused:
        sdk("list(client.compute.list())")
    assert refused.value.status == 401
    wire = azure.control("/wire")
    assert all(
        "eyJ" not in json.dumps(one) and azure.environ["AZURE_CLIENT_SECRET"] not in json.dumps(one) for one in wire
    )


def test_revoked_token_is_renewed_by_sdk(raw: Ask, azure: Azure) -> None:
    assert raw("GET", "/computes")[0] == 200
    azure.control("/expire-tokens", revoked=True)
    assert raw("GET", "/computes")[0] == 200


def test_reader_delete_is_forbidden(raw: Ask, azure: Azure) -> None:
    azure.control("/switch", authorization="reader")
    assert raw("GET", "/computes")[0] == 200
    status, headers, found = raw("DELETE", "/computes/cpu?underlyingResourceAction=Delete")
    assert (status, found["error"]["code"]) == (403, "AuthorizationFailed")
    assert "Microsoft.MachineLearningServices/workspaces/computes/delete" in found["error"]["message"]
    assert headers["x-ms-failure-cause"] == "gateway"


def test_injected_fault_is_returned_once(raw: Ask, sdk: SdkProcess, azure: Azure) -> None:
    slow = {"error": {"code": "TooManyRequests", "message": "slow"}}
    azure.control("/fault", match="GET management.azure.com/.*/computes", times=1, status=429, body=slow)
    assert raw("GET", "/computes")[0] == 429
    assert raw("GET", "/computes")[0] == 200
    azure.control("/fault", match="GET .*/computes", status=503, times=2)
    assert sdk("list(client.compute.list())") == []
    azure.control("/fault", match="GET .*/computes", cut=0)
    with pytest.raises(SnippetError):
        raw("GET", "/computes")
    azure.control("/fault", match="GET .*/computes", cut=5)
    with pytest.raises(SnippetError):
        raw("GET", "/computes")
    azure.control("/fault", match="GET .*/computes", rate=40)
    assert raw("GET", "/computes")[2] == {"value": []}
    began = time.monotonic()
    azure.control("/fault", match="GET .*/computes", delay=0.3)
    assert raw("GET", "/computes")[0] == 200 and time.monotonic() - began > 0.3


def test_unknown_host_is_refused(talker: SdkProcess, azure: Azure) -> None:
    azure.control("/reset")
    with pytest.raises(SnippetError, match="403"):
        talker("import requests\nrequests.get('https://example.com/')")
    assert azure.control("/problems")["refused_hosts"] == ["example.com"]


def test_blob_upload_and_download_round_trip(talker: SdkProcess, azure: Azure) -> None:
    azure.control("/reset")
    sas = azure.control("/sas", container="azureml", permission="rcwld")["sas"]
    talker(
        "from azure.storage.blob import BlobClient\n"
        f"b = BlobClient.from_blob_url('https://amltrainstore.blob.core.windows.net/azureml/a/ä b.txt?' + {sas!r})\n"
        "b.upload_blob(b'0123456789')\n1"
    )
    assert talker("b.download_blob(offset=3, length=4).readall().decode()") == "3456"
    assert talker("b.get_blob_properties().size") == 10
    seen = [one for one in azure.control("/wire") if one["host"].startswith("amltrainstore")]
    assert {one["method"] for one in seen} == {"PUT", "GET", "HEAD"}
    assert not any(re.search(r"sig=[^.]", one["query"]) for one in seen)

"""What ``make azure-live`` looks at: one function for each assumption of docs/azure-assumptions.md that can be seen.

Each asks the service itself (not through our own reading of it) and gives whether the assumption holds, and what was
seen, without a secret in it. `CHECKED` has their names: the switches of ``tests/azure/emulator/switches.py``.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.process import history, rest
from jupyter_amltrain.backends.azureml.process.account import ARM_SCOPE
from jupyter_amltrain.backends.azureml.process.cloud import Workspace

#: Any answer: what it says is what we want to know.
ANY = range(200, 600)
ARM_HOST = "https://management.azure.com"
MONITOR = "2018-01-01"
Seen = tuple["bool | None", str]

#: Switch -> how it is checked, as the table of docs/azure-assumptions.md says it.
CHECKED: dict[str, str] = {}
_BEFORE: dict[str, Callable[[Workspace], Seen]] = {}


def before(switch: str, how: str) -> Callable[[Callable[[Workspace], Seen]], Callable[[Workspace], Seen]]:
    """Register a check that needs a workspace and nothing in it."""

    def register(check: Callable[[Workspace], Seen]) -> Callable[[Workspace], Seen]:
        CHECKED[switch], _BEFORE[switch] = how, check
        return check

    return register


def look_before(place: Workspace) -> dict[str, Seen]:
    """Every check of a workspace; one that fails by itself is not checked."""
    return {switch: attempt(lambda check=check: check(place)) for switch, check in _BEFORE.items()}  # type: ignore[misc]


def attempt(check: Callable[[], Seen]) -> Seen:
    """A check's finding, or why there is none."""
    try:
        return check()
    except Exception as error:
        return None, faults.redacted(f"{type(error).__name__}: {error}")[:200]


def attempt_all(check: Callable[[], dict[str, Seen]]) -> dict[str, Seen]:
    """As :func:`attempt`, of several at once; nothing where it fails."""
    try:
        return check()
    except Exception as error:
        print(f"  not checked: {faults.redacted(f'{type(error).__name__}: {error}')[:300]}", flush=True)
        return {}


# ---- sign-in and the workspace


@before("challenge_tenant", "a request without a token")
def _tenant(place: Workspace) -> Seen:
    answer = rest.Rest(ARM_HOST, "", None).get(f"/subscriptions/{place.subscription}", api=rest.RESOURCES, ok=ANY)
    told = "authorization_uri=" in answer.headers.get("www-authenticate", "")
    return answer.status == 401 and told, f"{answer.status}, the directory is {'named' if told else 'not named'}"


@before("permissions_readable", "GET permissions")
def _permissions(place: Workspace) -> Seen:
    path = "providers/Microsoft.Authorization/permissions"
    answer = place.arm.get(path, api="2022-04-01", ok=ANY)
    return answer.status == 200, f"{answer.status}"


@before("discovery", "GET discoveryUrl")
def _discovery(place: Workspace) -> Seen:
    found = (place.arm.get("", api=rest.ARM).json or {})["properties"]
    answer = rest.Rest("", "", None).get(str(found["discoveryUrl"]), ok=ANY)
    return bool((answer.json or {}).get("api")), f"{answer.status}, api {(answer.json or {}).get('api')}"


@before("data_audience", "run history asked with either token")
def _audience(place: Workspace) -> Seen:
    said = {}
    for name, scope in (("ml", "https://ml.azure.com/.default"), ("arm", ARM_SCOPE)):
        plain = rest.Rest(place.api, "", None)
        token = str(place.credential.get_token(scope).token)
        path = f"{place.history}/runs/amltrain-nobody/details"
        said[name] = plain.get(path, api=rest.HISTORY, headers={"Authorization": f"Bearer {token}"}, ok=ANY).status
    return all(status != 401 for status in said.values()), ", ".join(f"{n}: {s}" for n, s in said.items())


# ---- computes


@before("prices", "GET vmSizes")
def _prices(place: Workspace) -> Seen:
    found = _location(place, "vmSizes")
    priced = sum("estimatedVMPrices" in size for size in found)
    return priced > 0, f"{priced} of {len(found)} sizes have a price"


@before("low_priority_pool", "GET usages")
def _pool(place: Workspace) -> Seen:
    names = [str(item["name"]["value"]) for item in _location(place, "usages")]
    kinds = [str(item.get("type")) for item in _location(place, "usages")]
    one = "TotalLowPriorityCores" in names
    many = sum("lowpriority" in kind.lower() for kind in kinds) - one
    return one and not many, f"TotalLowPriorityCores {'there' if one else 'absent'}, {many} other low-priority rows"


@before("delete_missing", "DELETE of a compute that is not there")
def _missing(place: Workspace) -> Seen:
    params = {"underlyingResourceAction": "Delete"}
    answer = place.arm.delete(f"computes/amlt-{uuid.uuid4().hex[:8]}", api=rest.ARM, params=params, ok=ANY)
    return answer.status == 204, f"{answer.status}"


@before("compute_envelope", "PUT of a cluster of a size that does not exist (refused, nothing is made)")
def _envelope(place: Workspace) -> Seen:
    name = f"amlt-{uuid.uuid4().hex[:8]}"
    body = {"computeType": "AmlCompute", "properties": {"vmSize": "Standard_Nothing"}}
    whole = {"location": place.location, "properties": body}
    answer = place.arm.put(f"computes/{name}", api=rest.ARM, json=whole, ok=ANY)
    if answer.status < 300:
        place.arm.delete(f"computes/{name}", api=rest.ARM, params={"underlyingResourceAction": "Delete"}, ok=ANY)
        return False, f"{answer.status}: it was accepted"
    names = set(answer.json or {})
    return {"error", "componentName"} <= names, f"{answer.status}, {', '.join(sorted(names)) or 'empty'}"


@before("datastore_secret", "POST listSecrets, looking at the kind alone")
def _secret(place: Workspace) -> Seen:
    wish = {"expirableSecret": True, "expireAfterHours": 1}
    path = "datastores/workspaceartifactstore/listSecrets"
    answer = place.arm.post(path, api=rest.ARM_PREVIEW, json=wish, ok=ANY)
    kind = str((answer.json or {}).get("secretsType") or "none")
    return kind == "Sas", f"{answer.status}, {kind}"


@before("upload_sas_seconds", "the end of a signature of startPendingUpload")
def _upload(place: Workspace) -> Seen:
    path = f"codes/{uuid.uuid4()}/versions/1/startPendingUpload"
    found = place.arm.post(path, api=rest.ARM, json={}).json or {}
    signed = str(found["blobReferenceForConsumption"]["credential"]["sasUri"])
    seconds = _left(signed)
    return seconds is not None and seconds > 600, f"holds for {seconds and seconds / 3600:.1f} hours"


def _location(place: Workspace, what: str) -> list[dict[str, Any]]:
    root = f"/subscriptions/{place.subscription}/providers/Microsoft.MachineLearningServices"
    return list(place.arm.pages(f"{root}/locations/{place.location}/{what}", api=rest.ARM))


def _left(url: str) -> float | None:
    end = history.unix((parse_qs(urlsplit(url).query).get("se") or [""])[0])
    return None if end is None else round(end - time.time())


CHECKED["retry_after_header"] = CHECKED["long_poll_urls"] = "headers of a PATCH of the cluster; its poll url shortened"


def look_at_cluster(place: Workspace, name: str) -> dict[str, Seen]:
    """Headers of a long operation that changes nothing, and its poll url with less."""
    inner = (place.arm.get(f"computes/{name}", api=rest.ARM).json or {})["properties"]["properties"]
    body = {"properties": {"properties": {"scaleSettings": inner["scaleSettings"]}}}
    answer = place.arm.patch(f"computes/{name}", api=rest.ARM, json=body)
    url = answer.headers.get("azure-asyncoperation", "")
    wait = answer.headers.get("retry-after") or answer.headers.get("x-ms-retry-after-ms")
    found: dict[str, Seen] = {"retry_after_header": (wait is None, f"Retry-After: {wait or 'none'}")}
    if not url:
        return {**found, "long_poll_urls": (None, "no Azure-AsyncOperation")}
    short = place.arm.get(url.partition("&")[0], ok=ANY).status
    found["long_poll_urls"] = len(url) > 1000 and short >= 400, f"{len(url)} characters, shortened: {short}"
    return found


# ---- a job


CHECKED |= {
    "history_delay": "first answer of run history after the submit",
    "queued_to_preparing": "states of a job",
    "queue_reason": "queueingInfo while it is queued",
    "logs_uploaded_live": "run history's files while the job runs",
    "logs_in_details": "run history's files at the end",
    "uploader_user": "a file of mode 0600 in ./logs",
    "logs_appended": "x-ms-blob-type of a log",
    "std_log_names": "names of the logs of two processes",
    "log_sas_seconds": "the end of a log's signature",
    "outputs_in_arm": "GET of the job at its end",
    "run_token_seconds": "the job prints for how long its token holds",
    "mlflow_version": "runs/get by both versions",
    "mlflow_batch": "251 metrics in a batch",
    "params_batch": "101 parameters in a batch",
    "param_length": "values of 500 and 501 letters",
    "param_limit": "201 parameters of a run",
    "metric_names_limit": "51 metric names of a run",
    "tag_limits": "a key of 101 letters, a value of 1001",
    "exit_told": "a job that ends with 3",
    "cancel_signal": "a job that says when it gets SIGTERM",
    "cancel_grace": "a job that says for how long it still lives then",
    "model_uri": "the model made of the job",
}


class Watch:
    """Run history's view of one job, look by look."""

    def __init__(self, place: Workspace, name: str) -> None:
        self.place, self.name = place, name
        self.began = time.monotonic()
        self.states: list[str] = []
        self.first: float | None = None
        self.reason: str | None = None
        self.live: set[str] = set()
        self.details: dict[str, Any] = {}

    def look(self) -> str:
        """The state now."""
        path = f"{self.place.history}/runs/{self.name}/details"
        answer = self.place.data.get(path, api=rest.HISTORY, ok=ANY)
        if answer.status != 200:
            return ""
        found = self.details = answer.json or {}
        self.first = self.first if self.first is not None else time.monotonic() - self.began
        status = str(found.get("status"))
        if status not in self.states[-1:]:
            self.states.append(status)
        if status == "Queued" and found.get("queueingInfo"):
            self.reason = str(found["queueingInfo"])[:120]
        if status == "Running":
            self.live |= {path for path in found.get("logFiles") or {} if path.startswith("logs/")}
        return status

    def found(self) -> dict[str, Seen]:
        """What was seen of a job of two processes that is over."""
        files: Mapping[str, str] = self.details.get("logFiles") or {}
        ours = sorted(path for path in files if path.startswith("logs/"))
        logs = sorted(path for path in files if path.startswith("user_logs/"))
        made: dict[str, Seen] = {
            "history_delay": (self.first is not None and self.first < 60, f"after {self.first or 0:.1f} s"),
            "logs_uploaded_live": (bool(self.live), f"{len(self.live)} files of ./logs while Running"),
            "logs_in_details": (bool(ours), f"{len(ours)} files of ./logs at the end"),
            "std_log_names": (
                logs == [f"user_logs/std_log_process_{rank}.txt" for rank in range(2)],
                ", ".join(logs)[:150],
            ),
        }
        running = self.states.index("Running") if "Running" in self.states else 0
        states = self.states[:running]
        again = "Queued" in states and "Preparing" in states[states.index("Queued") :]
        made["queued_to_preparing"] = (again if "Queued" in states else None), " ".join(self.states)
        made["queue_reason"] = (
            (bool(self.reason), self.reason or "null")
            if "Queued" in self.states
            else (None, "it was never seen queued")
        )
        private = "logs/amltrain-live/private.txt" in files
        shared = "logs/amltrain-live/shared.txt" in files
        made["uploader_user"] = (private if shared else None), f"0600 {private}, 0644 {shared}"
        if logs:
            url = files[logs[0]]
            answer = rest.Rest("", "", None).get(url, headers={"x-ms-version": rest.BLOB})
            kind = answer.headers.get("x-ms-blob-type", "")
            made["logs_appended"] = kind == "AppendBlob", kind
            seconds = _left(url)
            made["log_sas_seconds"] = (
                None if seconds is None else seconds > 600,
                f"holds for {(seconds or 0) / 60:.0f} minutes",
            )
        return made

    def log(self) -> str:
        """What its first process printed."""
        for path, url in sorted((self.details.get("logFiles") or {}).items()):
            if path.startswith("user_logs/"):
                return rest.Rest("", "", None).get(url, headers={"x-ms-version": rest.BLOB}).bytes.decode()
        return ""

    def error(self) -> str:
        """Why it failed."""
        return str(((self.details.get("error") or {}).get("error") or {}).get("message") or "")


def look_at_arm(place: Workspace, name: str) -> dict[str, Seen]:
    """ARM's view of a job that is over."""
    body = (place.arm.get(f"jobs/{name}", api=rest.ARM).json or {})["properties"]
    uri = ((body.get("outputs") or {}).get("model") or {}).get("uri")
    return {"outputs_in_arm": (bool(uri), str(uri)[:120])}


def look_at_mlflow(place: Workspace, name: str) -> dict[str, Seen]:
    """Limits of what a run may log, tried on a run that is over."""
    root = f"mlflow/{{}}{place.arm_id}/api/2.0/mlflow/"

    def ask(version: str = "v2.0") -> int:
        return place.data.get(root.format(version) + "runs/get", params={"run_id": name}, ok=ANY).status

    versions = {version: ask(version) for version in ("v1.0", "v2.0")}
    found: dict[str, Seen] = {
        "mlflow_version": (
            set(versions.values()) == {200},
            ", ".join(f"{version}: {status}" for version, status in versions.items()),
        )
    }
    door = next((version for version, status in versions.items() if status == 200), "v2.0")

    def log(**body: Any) -> bool:
        path = root.format(door) + "runs/log-batch"
        return place.data.post(path, json={"run_id": name, **body}, ok=ANY).status == 200

    def points(count: int, names: int = 1) -> list[dict[str, Any]]:
        now = int(time.time() * 1000)
        return [{"key": f"amltrain_{i % names}", "value": 1.0, "timestamp": now + i, "step": i} for i in range(count)]

    def params(first: int, count: int) -> list[dict[str, str]]:
        return [{"key": f"amltrain_{i}", "value": "1"} for i in range(first, first + count)]

    def both(inside: bool, outside: bool) -> Seen:
        words = {True: "taken", False: "refused"}
        return inside and not outside, f"within the limit {words[inside]}, beyond it {words[outside]}"

    found["mlflow_batch"] = both(log(metrics=points(250)), log(metrics=points(251)))
    long = [{"key": "amltrain_long", "value": "x" * 500}], [{"key": "amltrain_longer", "value": "x" * 501}]
    found["param_length"] = both(log(params=long[0]), log(params=long[1]))
    found["params_batch"] = both(log(params=params(0, 90)), log(params=params(1000, 101)))
    found["param_limit"] = both(log(params=params(90, 90)), log(params=params(180, 90)))
    tags = [{"key": "k" * 100, "value": "v" * 1000}], [{"key": "k" * 101, "value": "v" * 1001}]
    found["tag_limits"] = both(log(tags=tags[0]), log(tags=tags[1]))
    found["metric_names_limit"] = both(log(metrics=points(30, 30)), log(metrics=points(60, 60)))
    return found


def token_seconds(log: str) -> Seen:
    """From the line of the job that looks at its own token (:data:`WORK`)."""
    found = [line for line in log.splitlines() if "token holds for" in line]
    seconds = found[0].rpartition(" ")[2] if found else ""
    known = seconds.lstrip("-").isdigit()
    return (int(seconds) > 3600 if known else None), f"{seconds} s" if known else "the token tells no time"


#: What the long job does; it prints nothing of its token but for how long it holds.
WORK = """
import base64, json, os, pathlib, time
import mlflow
rank = os.environ.get("RANK", "0")
if rank == "0":
    try:
        part = os.environ["AZUREML_RUN_TOKEN"].split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        print("token holds for", int(said["exp"] - time.time()), flush=True)
    except Exception as error:
        print("token tells nothing:", type(error).__name__, flush=True)
    here = pathlib.Path("logs/amltrain-live")
    here.mkdir(parents=True, exist_ok=True)
    for name, mode in (("private.txt", 0o600), ("shared.txt", 0o644)):
        (here / name).write_text("seen\\n")
        (here / name).chmod(mode)
    pathlib.Path(os.environ["AML_OUTPUT_MODEL"], "weights.txt").write_text("1")
    pathlib.Path("outputs").mkdir(exist_ok=True)
    pathlib.Path("outputs/live.txt").write_text("1")
end = time.time() + float(os.environ["AMLT_LIVE_SECONDS"])
step = 0
while time.time() < end:
    if rank == "0":
        mlflow.log_metric("live", step, step=step)
    print("step", step, flush=True)
    step += 1
    time.sleep(min(5, max(0.1, end - time.time())))
"""

FAIL = "print('fails on purpose')\nraise SystemExit(3)\n"

STAY = """
import signal, time
def told(*_):
    began = time.time()
    print("got SIGTERM", flush=True)
    while True:
        print("alive for %.1f" % (time.time() - began), flush=True)
        time.sleep(0.5)
signal.signal(signal.SIGTERM, told)
print("waits", flush=True)
time.sleep(3600)
"""


def cancel_found(log: str) -> dict[str, Seen]:
    """From the log of :data:`STAY`."""
    told = "got SIGTERM" in log
    lived = [line.rpartition(" ")[2] for line in log.splitlines() if line.startswith("alive for")]
    seen = f"{lived[-1]} s in the log" if lived else "nothing was printed after it"
    return {"cancel_signal": (told, "SIGTERM" if told else "no SIGTERM seen"), "cancel_grace": (bool(lived), seen)}


def is_secret(text: str) -> bool:
    """Whether a text has a signature or a token in it (of what is written down none may)."""
    return "sig=" in text or "eyJ" in text or bool(_KEY_LIKE(text))


def _KEY_LIKE(text: str) -> bool:
    for word in text.split():
        try:
            if len(word) >= 80 and len(base64.b64decode(word, validate=True)) == 64:
                return True
        except ValueError:
            continue
    return False


def dumped(value: Any) -> str:
    """JSON of what was found.

    Raises
    ------
    ValueError
        There would be a secret in it.
    """
    text = json.dumps(value, indent=2)
    if is_secret(text):
        raise ValueError("what was found holds a signature or a token, and is not written")
    return text

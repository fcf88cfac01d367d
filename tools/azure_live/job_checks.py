"""Checks of a job: while it runs, when it is over, and of what its run may log."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.azure.service import http
from jupyter_amltrain.azure.service.cloud import Workspace
from tools.azure_live.findings import ANY, Seen
from tools.azure_live.signed import seconds_left

#: Switch -> how it is checked, as the table of docs/azure-assumptions.md says it.
CHECKED: dict[str, str] = {
    "history_delay": "first answer of run history after the submit",
    "queued_to_preparing": "states of a job",
    "queue_reason": "queueingInfo of runs/ID while it is queued",
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
    "timeout_state": "a job with a short time limit",
    "exit_reported": "a job that ends with 3",
    "cancel_signal": "a job that reports SIGTERM",
    "cancel_grace": "a job that reports how long it lives after SIGTERM",
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
        self.queued: dict[str, list[str]] = {}

    def record(self) -> dict[str, Any]:
        """Return the run's own record, which has fields that its details lack."""
        answer = self.place.data.get(f"{self.place.history}/runs/{self.name}", api=http.HISTORY, ok=ANY)
        return (answer.json or {}) if answer.status == 200 else {}

    def look(self) -> str:
        """Poll the job and return its state."""
        path = f"{self.place.history}/runs/{self.name}/details"
        answer = self.place.data.get(path, api=http.HISTORY, ok=ANY)
        if answer.status != 200:
            return ""
        found = self.details = answer.json or {}
        self.first = self.first if self.first is not None else time.monotonic() - self.began
        status = str(found.get("status"))
        if status not in self.states[-1:]:
            self.states.append(status)
        if status == "Queued":
            whole = self.record()
            self.queued = {"details": sorted(found), "runs/ID": sorted(whole)}
            if info := found.get("queueingInfo") or whole.get("queueingInfo"):
                self.reason = str(info)[:120]
        if status == "Running":
            self.live |= {path for path in found.get("logFiles") or {} if path.startswith("logs/")}
        return status

    def found(self) -> dict[str, Seen]:
        """Return the findings of an ended job with two processes."""
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
            else (None, "the job was never queued")
        )
        made["details_reasons"] = reasons_found(self.queued)
        private = "logs/amltrain-live/private.txt" in files
        shared = "logs/amltrain-live/shared.txt" in files
        made["uploader_user"] = (private if shared else None), f"0600 {private}, 0644 {shared}"
        if logs:
            url = files[logs[0]]
            answer = http.Rest("", "", None).get(url, headers={"x-ms-version": http.BLOB})
            kind = answer.headers.get("x-ms-blob-type", "")
            made["logs_appended"] = kind == "AppendBlob", kind
            seconds = seconds_left(url)
            made["log_sas_seconds"] = (
                None if seconds is None else seconds > 600,
                f"holds for {(seconds or 0) / 60:.0f} minutes",
            )
        return made

    def log(self) -> str:
        """What its first process printed."""
        for path, url in sorted((self.details.get("logFiles") or {}).items()):
            if path.startswith("user_logs/"):
                return http.Rest("", "", None).get(url, headers={"x-ms-version": http.BLOB}).bytes.decode()
        return ""

    def error(self) -> str:
        """Why it failed."""
        return str(((self.details.get("error") or {}).get("error") or {}).get("message") or "")


def reasons_found(queued: Mapping[str, list[str]]) -> Seen:
    """Which of a queued job's two answers has the fields that tell why it waits and why it was canceled."""
    if not queued:
        return None, "the job was never queued"
    names = ("queueingInfo", "cancelationReason")
    there = {place: [name for name in names if name in keys] for place, keys in queued.items()}
    seen = "; ".join(f"{place} has {' and '.join(found) or 'neither'}" for place, found in there.items())
    return not there["details"] and len(there["runs/ID"]) == len(names), seen


def limit_found(watch: Watch, end: str) -> dict[str, Seen]:
    """Of a job that ran into its time limit."""
    run = watch.record()
    why = str(run.get("cancelationReason") or watch.error() or "")
    place = "cancelationReason" if run.get("cancelationReason") else "error" if why else "no reason"
    named = re.search(r"time|limit|exceed|duration", why, re.I) is not None
    return {
        "timeout_state": (end == "Canceled", end),
        "timeout_reason": (place == "cancelationReason" and named, f"{place}: {' '.join(why.split())[:120]}"),
    }


def look_at_arm(place: Workspace, name: str) -> dict[str, Seen]:
    """ARM's view of a job that is over."""
    body = (place.arm.get(f"jobs/{name}", api=http.ARM).json or {})["properties"]
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
    """From the line of the job that looks at its own token (:data:`.scripts.WORK`)."""
    found = [line for line in log.splitlines() if "token holds for" in line]
    seconds = found[0].rpartition(" ")[2] if found else ""
    known = seconds.lstrip("-").isdigit()
    return (int(seconds) > 3600 if known else None), f"{seconds} s" if known else "the token tells no time"


def cancel_found(log: str) -> dict[str, Seen]:
    """From the log of :data:`.scripts.STAY`."""
    signaled = "got SIGTERM" in log
    lived = [line.rpartition(" ")[2] for line in log.splitlines() if line.startswith("alive for")]
    seen = f"{lived[-1]} s in the log" if lived else "nothing was printed after it"
    return {
        "cancel_signal": (signaled, "SIGTERM" if signaled else "no SIGTERM seen"),
        "cancel_grace": (bool(lived), seen),
    }

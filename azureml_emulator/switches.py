"""Assumptions about Azure that no recording shows, each with a default and an opposite."""

from __future__ import annotations

from typing import Any

#: name -> (default, what the default means; its opposite is the other value).
TABLE: dict[str, tuple[Any, str]] = {
    # What recordings do show: the default is the recorded way, the opposite makes the SDK's own poller fast.
    "retry_after_header": (
        False,
        "Recorded Azure sends no Retry-After on long operations; true: 1 second; a number: that many.",
    ),
    "prices": (True, "estimatedVMPrices as recorded (absent for many sizes); false: absent for all."),
    "long_poll_urls": (
        True,
        "Poll urls carry t, c, s, h (over 3,000 characters) and are refused when not sent back whole.",
    ),
    "failed_operation": (True, 'A failed operation says why; false: {"status": "Failed"} alone.'),
    "compute_envelope": ("compute", "Errors of the compute service: null-filled with siblings; `ml`: the front end's."),
    "throttle": ("", "`header`: every 9th request is answered 429 with Retry-After 1; `bare`: without it."),
    "unknown_fields": (False, "A field that the api-version's contract does not have is refused; true: ignored."),
    "page_size": (100, "Items on one page of a list; nextLink absent on the last page."),
    # Compute.
    "scale_seconds": (1.0, "Seconds of the service in which a node comes up."),
    "create_seconds": (0.3, "Seconds of the service in which a cluster is made, changed or deleted."),
    "instance_seconds": (0.5, "Seconds of the service in which an instance is made, started or stopped."),
    "fail_provisioning": (
        "",
        "Creations of computes whose name contains this text end as Failed with provisioningErrors.",
    ),
    "cluster_warnings": (True, "A healthy cluster of a deprecated size has ClusterHasWarnings among its `errors`."),
    "fail_power": ("", "Starts, stops and restarts of instances whose name contains this text fail."),
    "power_failure": (
        "status",
        "A failed start: `status`: lastOperation.operationStatus is StartFailed, `errors` say why, the state is the"
        " old one; `unusable`: so is the state; `silent`: the old state alone comes back.",
    ),
    "fail_allocation": ("", "Clusters whose name contains this text never get nodes: `errors` says why (no capacity)."),
    "quota_on_create": (
        True,
        "A cluster that the quota cannot hold is refused at PUT; false: accepted, its nodes never come.",
    ),
    "low_priority_pool": (True, "Low priority has one quota for all families; false: one of each family."),
    "low_priority_on_create": (
        True,
        "A size without low priority makes a cluster whose `errors` say so later; false: refused at PUT.",
    ),
    "delete_missing": (204, "Status of DELETE of a compute that is not there; the other is 404."),
    "preempt_after": (0.0, "Seconds after which a low-priority lease is pre-empted; 0: only by the control call."),
    "delete_attached_refused": (True, "DELETE of an attached compute must say Detach; false: Delete detaches as well."),
    # Entra.
    "token_seconds": (3600, "Lifetime of an access token in seconds of the wall."),
    "device_code_interval": (1, "Seconds that a client waits between two polls of a device code (Entra says 5)."),
    "device_code_seconds": (900, "Lifetime of a device code in seconds of the wall."),
    "data_audience": ("any", "Tokens that the data plane takes: `any`: its own and ARM's; `ml` or `arm`: those alone."),
    "challenge_tenant": (True, "A 401 of ARM names the tenant to sign in to; false: it does not."),
    "permissions_readable": (True, "Everybody may read his permissions on the workspace; false: 403."),
    "discovery": (True, "discoveryUrl answers with addresses; false: 404."),
    "authorization": ("", "Text of role assignment: `reader` refuses writes with 403 AuthorizationFailed, `none` all."),
    # Jobs.
    "job_seconds": (0.1, "Seconds of the service that Starting, the second Preparing and Finalizing last."),
    "build_seconds": (0.5, "Seconds of the service in which an image is built."),
    "curated_listed": (
        "no",
        "`no`: the container of a curated environment is 404; `null`: it is there without latestVersion; `yes`: with.",
    ),
    "gone_workspace": (
        "parent",
        "What lies in a workspace that is gone is 404 ParentResourceNotFound, `parent`: by its name, `path`: by its id;"
        " `resource`: ResourceNotFound.",
    ),
    "curated_conda": (False, "A curated environment tells its conda file; false: its image alone."),
    "environment_seconds": (0.0, "Seconds of the service that a PUT of an environment takes (recorded: 16)."),
    "fail_build": ("", "Image builds of environments whose ARM id contains this text fail, with a log."),
    "queued_to_preparing": (True, "A queued job with its nodes is Preparing again; false: straight to Running."),
    "logs_uploaded_live": (True, "./logs and ./outputs are uploaded while the job runs; false: only at its end."),
    "upload_seconds": (0.3, "Seconds of the service between two looks at what a job has written."),
    "logs_in_details": (True, "details.logFiles lists ./logs too; false: user_logs, system_logs, azureml-logs alone."),
    "std_log_names": ("plain", "`plain`: std_log_process_3.txt; `padded`: std_log_process_03.txt where there are 10."),
    "retry_logs": ("new", "`new`: std_log starts empty after a pre-emption; `folder`: the old below retry_001/."),
    "log_sas_seconds": (3600, "Seconds of the wall that urls in details.logFiles and of artifacts hold."),
    "upload_sas_seconds": (86_400, "Seconds of the wall that the SAS of startPendingUpload holds."),
    "upload_body_judged": (True, "startPendingUpload without the SDK's body is 400; false: any body is taken."),
    "blob_port": (True, "Addresses of startPendingUpload have the port :443; false: none."),
    "code_below_folder": (True, "A codeUri that is a container's root is 400; false: it is taken."),
    "node_rank": (
        "variable",
        "What tells a process its node: `variable`: AZUREML_CR_NODE_RANK; `config`: AZUREML_CR_DISTRIBUTED_CONFIG"
        " names the variable; `none`: neither.",
    ),
    "run_token_seconds": (1_209_600, "Seconds of the wall that a job's own token holds."),
    "datastore_secret": (
        "sas",
        "`sas`: listSecrets returns a SAS on request (recorded); `key`: always the key; `none`: 400, callers must"
        " have a role at the storage.",
    ),
    "logs_appended": (True, "Files that grow are append blobs; false: block blobs, written whole each time."),
    "uploader_user": ("root", "`root`: uploads every file of ./logs and ./outputs; `other`: none of mode 0600."),
    "history_delay": (0.0, "Seconds of the wall until a new job is in run history."),
    "attempts_counted": (True, "currentAttemptId counts attempts; false: it is always 1."),
    "queue_reason": (True, "queueingInfo tells why a job waits; false: null."),
    "details_reasons": (False, "details of a run have queueingInfo and cancelationReason; false: its record alone."),
    "timeout_reason": (True, "cancelationReason tells a time limit; false: null."),
    "exit_reported": (True, "The error of a failed job names the exit code; false: it does not."),
    "best_trial_reported": (True, "An ended sweep names its best trial; false: it does not."),
    "outputs_in_arm": (True, "An ended job's named outputs have their uri in ARM; false: null."),
    "model_uri": (
        "datastore",
        "modelUri of a model made of a job: its place in the datastore; `job`: as it was sent.",
    ),
    "mpi_by_node": (True, "MPI fills one node after the other; false: ranks go round the nodes."),
    "gpus_visible": ("job", "`job`: a node shows the GPUs of its size; `host`: one more, which is not the job's."),
    "cancel_signal": ("TERM", "A canceled job gets SIGTERM and some time; `KILL`: it is killed at once."),
    "cancel_grace": (2.0, "Seconds of the service between SIGTERM and SIGKILL of a job that is canceled."),
    "timeout_state": ("Canceled", "`Canceled` or `Failed`: the state of a job that exceeded its time limit."),
    "fake_gpus": (True, "Nodes of GPU sizes show their GPUs through NVML; false: no NVML, as in an image without it."),
    "mlflow_batch": (250, "Metric values that one log-batch may have (recorded: 250)."),
    "mlflow_version": ("both", "Versions in the path of the MLflow endpoint; `v1.0` or `v2.0`: 404 on the other."),
    "params_batch": (100, "Parameters that one log-batch may have."),
    "param_length": (500, "Letters of a parameter's value."),
    "param_limit": (200, "Parameters of a run (azure-sdk-for-python#35685)."),
    "metric_names_limit": (50, "Metric names of a run; 0: any number."),
    "tag_limits": ([100, 1000], "Letters of a tag's key and of its value."),
    "monitor_delay": (0.0, "Seconds of the wall by which Azure Monitor lags."),
    # Blobs.
    "blobs_recorded": (
        True,
        "Blob traffic goes through the wire log and the faults; false: straight to Azurite (faster).",
    ),
}


#: Of when, not of whether: how long things take, and how the tests are led. No assumptions.
PACES = frozenset(
    (
        "scale_seconds", "create_seconds", "instance_seconds", "job_seconds", "build_seconds", "environment_seconds",
        "upload_seconds", "device_code_interval", "device_code_seconds", "blobs_recorded",
    )
)  # fmt: skip


class Switches:
    """The switches of one world; `world.switches["name"]` reads, `set` writes."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, TABLE[name][0])

    def set(self, values: dict[str, Any]) -> None:
        """Change some.

        Raises
        ------
        KeyError
            An unknown name.
        """
        for name in values:
            if name not in TABLE:
                raise KeyError(f"no switch '{name}'; there are: {', '.join(sorted(TABLE))}")
        self._values.update(values)

    def reset(self) -> None:
        """All back to their defaults."""
        self._values.clear()

    def all(self) -> dict[str, Any]:
        """Every switch with its present value."""
        return {name: self[name] for name in TABLE}

"""What is looked at although no switch of the emulator makes it false (yet): name -> what is assumed, and how."""

from __future__ import annotations

from azureml_emulator.switches import TABLE

#: A name that becomes a switch is a row of the switches' table from then on.
OBSERVED: dict[str, tuple[str, str]] = {
    "curated_container": (
        "The workspace has the container of a curated environment, with its latest version.",
        "GET of the container of the curated environments that are used by default",
    ),
    "details_reasons": (
        "queueingInfo and cancelationReason are in a run's record (runs/ID), not in its details.",
        "keys of details and of runs/ID of a queued job",
    ),
    "timeout_reason": (
        "cancelationReason of a job beyond its time limit names the limit.",
        "runs/ID of a job with a short time limit",
    ),
    "code_folder": (
        "A job can read code that is stored in a subfolder of its blob container.",
        "a job whose code asset is a folder of the container of startPendingUpload",
    ),
    "jobs_newest_first": ("The list of jobs starts with the newest.", "createdAt along the list of jobs"),
    "power_failure": (
        "An instance whose start fails has StartFailed in lastOperation.operationStatus, and the reason in errors.",
        "a second start of an instance whose startup script then fails",
    ),
}

#: Of these the table of docs/azure-assumptions.md says how they are checked.
SWITCHED: dict[str, str] = {name: how for name, (_, how) in OBSERVED.items() if name in TABLE}
#: Of these a list below the table does.
UNSWITCHED: dict[str, tuple[str, str]] = {name: both for name, both in OBSERVED.items() if name not in TABLE}

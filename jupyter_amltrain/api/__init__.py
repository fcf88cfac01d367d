"""The same as the magics, as plain functions: for scripts, tests, papermill, the command line."""

from __future__ import annotations

from jupyter_amltrain.api.azure import billing, connect, disconnect, quota, sizes, workspaces
from jupyter_amltrain.api.compute_targets import (
    act,
    compute,
    compute_progress,
    compute_rows,
    configure_target,
    create_target,
    current_target,
    delete_target,
    scale_target,
    start_target,
    stop_target,
    targets,
    use,
)
from jupyter_amltrain.api.model_registry import download_model, models, register_model
from jupyter_amltrain.api.tracked_runs import attach, monitor, runs, ui
from jupyter_amltrain.session import close, controller
from jupyter_amltrain.submitting import check_spec, plan_spec, submit, submit_spec
from jupyter_amltrain.tracked_run import TrackedRun

__all__ = [
    "TrackedRun",
    "act",
    "attach",
    "billing",
    "check_spec",
    "close",
    "compute",
    "compute_progress",
    "compute_rows",
    "configure_target",
    "connect",
    "controller",
    "create_target",
    "current_target",
    "delete_target",
    "disconnect",
    "download_model",
    "models",
    "monitor",
    "plan_spec",
    "quota",
    "register_model",
    "runs",
    "scale_target",
    "sizes",
    "start_target",
    "stop_target",
    "submit",
    "submit_spec",
    "targets",
    "ui",
    "use",
    "workspaces",
]

"""What ``%aml_automl --dry-run`` prints of a search; the request has the sources of the job's package instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.automl.job.metrics import FORECASTING
from jupyter_amltrain.automl.job.table import TEST_SHARE
from jupyter_amltrain.automl.options import SearchOptions
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.text import bytes_text, pairs, seconds_text


def plan_text(search: SearchOptions, tables: Mapping[str, str], plan: LaunchPlan, target: str) -> str:
    """Return a search before it is sent, a line for each thing that the user has chosen or that was guessed.

    Parameters
    ----------
    tables
        Names of the variables or files: ``data``, and ``test`` where rows are given to score the model on.
    """
    spec = plan.spec
    rows = [
        ("Search", f"{search.task} of {search.target}, by {search.metric}"),
        ("Table", _table(spec, tables["data"])),
        ("Held out", _table(spec, tables["test"]) if "test" in tables else _held_out(search)),
        ("Left out", ", ".join(search.drop)),
        ("Time", f"{search.time}{''.join(f', {name}' for name in search.series)}" if search.time else ""),
        ("Models", ", ".join(search.learners) or "those that are installed and fit"),
        ("Ends after", _end(search)),
        ("Then", "; ".join(_end_steps(search))),
        ("Target", target),
        ("Run", plan.run_id),
        ("Sends", f"{bytes_text(plan.snapshot.bytes)} of code"),
        ("Restarts", str(spec.max_restarts or "")),
        ("Time limit", seconds_text(spec.timeout) if spec.timeout else ""),
    ]
    return "\n".join([pairs(rows), *(f"Note: {note}" for note in dict.fromkeys((*spec.notes, *plan.notes)))])


def _table(spec: JobSpec, name: str) -> str:
    shape: Any = spec.values.get(name, {}).get("shape") or ()
    return f"{name}, {shape[0]} rows, {shape[1]} columns" if len(shape) == 2 else name


def _held_out(search: SearchOptions) -> str:
    if search.task == FORECASTING:
        return f"the last {search.horizon} steps" if search.horizon else "the last steps"
    return f"{100 * (search.test_share or TEST_SHARE):g} % of the rows, seed {search.seed}"


def _end(search: SearchOptions) -> str:
    limits = [f"{search.max_trials} trials"] if search.max_trials else []
    limits += [seconds_text(60 * search.max_minutes)] if search.max_minutes else []
    limits += ["convergence"] if search.patience else []
    return " or ".join(limits)


def _end_steps(search: SearchOptions) -> list[str]:
    steps = ["logs the best model with its scores and pictures"]
    steps += ["measures how much each column matters"] if search.explain else []
    return [*steps, *([f"registers it as {search.register}"] if search.register else [])]


def shown_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the sources of the package that travels with the job."""
    spec = {**request["spec"], "modules": sorted(request["spec"].get("modules") or {})} if "spec" in request else None
    return {**request, **({} if spec is None else {"spec": spec})}

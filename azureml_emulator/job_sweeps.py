"""Trials of a sweep: each trial runs as a command job with values of the search space.

Tags and properties of a sweep (``_aml_system_*``, ``best_child_run_id``) are those of published sweeps. Early
termination is accepted but not implemented.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from azureml_emulator.job_runs import JobFailed, Run

if TYPE_CHECKING:
    from azureml_emulator.job_parents import Parent

_SPACE = re.compile(r"\$\{\{\s*(search_space|inputs)\.([\w-]+)\s*\}\}")
#: YAML names of a distribution's parameters, in REST order.
_NUMBERS = ("upper", "min_value", "max_value", "mu", "sigma", "q")
#: Number of trials of a sweep without a limit; the service's is 1,000.
_DEFAULT_TRIALS = 2


def tags(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a new sweep."""
    limits, policy = body.get("limits") or {}, body.get("earlyTermination") or {}
    objective, sampling = body.get("objective") or {}, body.get("samplingAlgorithm") or {}
    name = str(sampling.get("samplingAlgorithmType") or "Random").upper()
    return {
        "_aml_system_max_concurrent_jobs": str(limits.get("maxConcurrentTrials") or 1),
        "_aml_system_max_total_jobs": str(limits.get("maxTotalTrials") or _DEFAULT_TRIALS),
        "_aml_system_max_duration_minutes": "10080",
        "_aml_system_policy_config": json.dumps({"name": str(policy.get("policyType") or "Default").upper()}),
        "_aml_system_generator_config": json.dumps({"name": name, "parameter_space": body.get("searchSpace")}),
        "_aml_system_primary_metric_config": json.dumps(
            {"name": objective.get("primaryMetric"), "goal": str(objective.get("goal")).lower()}
        ),
    }


def values_of(space: Mapping[str, Any], sampling: str, seed: str) -> Iterator[dict[str, Any]]:
    """Yield the values of each trial: all combinations of a grid, otherwise an endless random sample."""
    if sampling.lower() == "grid":
        names, choices = list(space), [_distribution(one)[1][0] for one in space.values()]
        for combination in itertools.product(*choices):
            yield dict(zip(names, combination, strict=True))
        return
    rng = random.Random(seed)
    while True:
        yield {name: _sample(one, rng) for name, one in space.items()}


def _distribution(spec: Any) -> tuple[str, list[Any]]:
    """``["uniform", [0, 1]]`` of REST, or yaml's ``{"type": "uniform", "min_value": 0, ...}`` within a pipeline."""
    if isinstance(spec, Mapping):
        kind = str(spec["type"])
        return kind, [spec["values"]] if kind == "choice" else [float(spec[key]) for key in _NUMBERS if key in spec]
    return str(spec[0]), list(spec[1])


def _sample(spec: Any, rng: random.Random) -> Any:
    kind, numbers = _distribution(spec)
    if kind == "choice":
        return rng.choice(numbers[0])
    if kind == "randint":
        return rng.randrange(int(numbers[0]))
    plain = kind.removeprefix("q")
    value = rng.gauss(*numbers[:2]) if plain.endswith("normal") else rng.uniform(*numbers[:2])
    value = math.exp(value) if plain.startswith("log") else value
    return round(value / numbers[2]) * numbers[2] if kind.startswith("q") else value


async def carry_out(parent: Parent) -> str:
    """Run the trials, with limited concurrency; the sweep fails if all trials fail.

    Raises
    ------
    JobFailed
    """
    run, body = parent.run, parent.body
    limits, trial = body.get("limits") or {}, body["trial"]
    total = int(limits.get("maxTotalTrials") or _DEFAULT_TRIALS)
    semaphore = asyncio.Semaphore(int(limits.get("maxConcurrentTrials") or 1))
    sampling = str((body.get("samplingAlgorithm") or {}).get("samplingAlgorithmType") or "Random")
    resources = body.get("resources") or trial.get("resources")

    async def run_trial(number: int, values: dict[str, Any]) -> Run:
        async with semaphore:

            def put(match: re.Match[str]) -> str:
                named = match[2] in values and (match[1] == "search_space" or match[2] not in inputs)
                return str(values[match[2]]) if named else match[0]

            inputs = dict(body.get("inputs") or {})
            name = f"{run.name}_{number}"
            sent = {
                **trial,
                "command": _SPACE.sub(put, trial["command"]),
                "inputs": inputs,
                "outputs": {
                    key: dict(output_body)
                    for key, output_body in (body.get("outputs") or {}).items()
                    if key != "default"
                },
                "resources": resources,
                "tags": {"hyperparameters": json.dumps(values)},
            }
            child = parent.begin(name, name, {"jobType": "Command", **sent}, body.get("computeId"))
            run.properties["tags"][name] = json.dumps(values)
            await parent.ended(child)
            return child

    space = itertools.islice(values_of(body["searchSpace"], sampling, run.name), total)
    trials = await asyncio.gather(*(run_trial(number, values) for number, values in enumerate(space)))
    if all(child.status == "Failed" for child in trials):
        raise JobFailed("UserError", "All trials of the sweep failed.")
    best = await _best(trials, body.get("objective") or {})
    if best is not None:
        score, child = best
        run.output_uris.update(child.output_uris)
        if run.world.switches["best_trial_reported"]:
            run.properties["properties"].update(
                best_child_run_id=child.name, score=str(score), best_metric_status="Succeeded"
            )
    return "Completed"


async def _best(trials: list[Run], objective: Mapping[str, Any]) -> tuple[float, Run] | None:
    """Return the trial with the best last value of the primary metric, and that value."""
    from azureml_emulator.mlflow_tracking import SERVER

    if not SERVER.started:
        return None
    scored = []
    for child in trials:
        status, answer = await SERVER.ask("GET", "/api/2.0/mlflow/runs/get", f"run_id={child.name}")
        metrics = json.loads(answer)["run"]["data"].get("metrics", []) if status == 200 else []
        scores = [float(one["value"]) for one in metrics if one["key"] == objective.get("primaryMetric")]
        scored += [(score, child) for score in scores]
    best = min if str(objective.get("goal")).lower() == "minimize" else max
    return best(scored, key=lambda one: one[0]) if scored else None

"""Trials of a sweep: values of its search space, each a command job that runs for real.

The service's words for a sweep in its tags and properties (``_aml_system_*``, ``best_child_run_id``) are those of
printed sweeps. Early termination is accepted and never happens.
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
#: Yaml's names of a distribution's numbers, in the order in which REST has them.
_NUMBERS = ("upper", "min_value", "max_value", "mu", "sigma", "q")
#: A sweep without a limit of trials; the service's own is 1,000.
_DEFAULT_TRIALS = 2


def tags(body: Mapping[str, Any]) -> dict[str, str]:
    """Tags that the service gives a sweep with its first answer."""
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
    """Values of one trial after the other: every combination of a grid, else drawn without an end."""
    if sampling.lower() == "grid":
        names, choices = list(space), [_distribution(one)[1][0] for one in space.values()]
        for drawn in itertools.product(*choices):
            yield dict(zip(names, drawn, strict=True))
        return
    chance = random.Random(seed)
    while True:
        yield {name: _drawn(one, chance) for name, one in space.items()}


def _distribution(said: Any) -> tuple[str, list[Any]]:
    """``["uniform", [0, 1]]`` of REST, or yaml's ``{"type": "uniform", "min_value": 0, ...}`` within a pipeline."""
    if isinstance(said, Mapping):
        kind = str(said["type"])
        return kind, [said["values"]] if kind == "choice" else [float(said[key]) for key in _NUMBERS if key in said]
    return str(said[0]), list(said[1])


def _drawn(said: Any, chance: random.Random) -> Any:
    kind, numbers = _distribution(said)
    if kind == "choice":
        return chance.choice(numbers[0])
    if kind == "randint":
        return chance.randrange(int(numbers[0]))
    plain = kind.removeprefix("q")
    value = chance.gauss(*numbers[:2]) if plain.endswith("normal") else chance.uniform(*numbers[:2])
    value = math.exp(value) if plain.startswith("log") else value
    return round(value / numbers[2]) * numbers[2] if kind.startswith("q") else value


async def carry_out(parent: Parent) -> str:
    """Run the trials, some at the same time; the sweep fails when each of them has.

    Raises
    ------
    JobFailed
    """
    run, body = parent.run, parent.body
    limits, trial = body.get("limits") or {}, body["trial"]
    total = int(limits.get("maxTotalTrials") or _DEFAULT_TRIALS)
    gate = asyncio.Semaphore(int(limits.get("maxConcurrentTrials") or 1))
    sampling = str((body.get("samplingAlgorithm") or {}).get("samplingAlgorithmType") or "Random")
    resources = body.get("resources") or trial.get("resources")

    async def one(number: int, values: dict[str, Any]) -> Run:
        async with gate:

            def put(found: re.Match[str]) -> str:
                named = found[2] in values and (found[1] == "search_space" or found[2] not in inputs)
                return str(values[found[2]]) if named else found[0]

            inputs = dict(body.get("inputs") or {})
            name = f"{run.name}_{number}"
            sent = {
                **trial,
                "command": _SPACE.sub(put, trial["command"]),
                "inputs": inputs,
                "outputs": {key: dict(said) for key, said in (body.get("outputs") or {}).items() if key != "default"},
                "resources": resources,
                "tags": {"hyperparameters": json.dumps(values)},
            }
            child = parent.begin(name, name, {"jobType": "Command", **sent}, body.get("computeId"))
            run.properties["tags"][name] = json.dumps(values)
            await parent.ended(child)
            return child

    space = itertools.islice(values_of(body["searchSpace"], sampling, run.name), total)
    trials = await asyncio.gather(*(one(number, values) for number, values in enumerate(space)))
    if all(child.status == "Failed" for child in trials):
        raise JobFailed("UserError", "All trials of the sweep failed.")
    best = await _best(trials, body.get("objective") or {})
    if best is not None:
        score, child = best
        run.output_uris.update(child.output_uris)
        if run.world.switches["best_trial_told"]:
            run.properties["properties"].update(
                best_child_run_id=child.name, score=str(score), best_metric_status="Succeeded"
            )
    return "Completed"


async def _best(trials: list[Run], objective: Mapping[str, Any]) -> tuple[float, Run] | None:
    """The trial with the best last value of the primary metric, and that value."""
    from azureml_emulator.mlflow_door import SERVER

    if not SERVER.started:
        return None
    found = []
    for child in trials:
        status, answer = await SERVER.ask("GET", "/api/2.0/mlflow/runs/get", f"run_id={child.name}")
        metrics = json.loads(answer)["run"]["data"].get("metrics", []) if status == 200 else []
        scores = [float(one["value"]) for one in metrics if one["key"] == objective.get("primaryMetric")]
        found += [(score, child) for score in scores]
    best = min if str(objective.get("goal")).lower() == "minimize" else max
    return best(found, key=lambda one: one[0]) if found else None

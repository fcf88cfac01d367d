"""Trials of a sweep: each trial runs as a command job with values of the search space.

Tags and properties of a sweep (``_aml_system_*``, ``best_child_run_id``) are those of published sweeps. Early
termination follows the documentation: a report of the primary metric is an interval. Sobol and Bayesian sampling are
plain random sampling.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import re
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

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


def problem(body: Mapping[str, Any]) -> str:
    """Return why the service refuses a sweep (documentation; its words are assumed); empty if it does not."""
    kind = str((body.get("samplingAlgorithm") or {}).get("samplingAlgorithmType") or "Random")
    kinds = {str(_distribution(one)[0]) for one in (body.get("searchSpace") or {}).values()}
    policy = body.get("earlyTermination")
    if kind == "Grid" and kinds - {"choice"}:
        return "Grid sampling supports only choice."
    if kind == "Bayesian" and kinds - {"choice", "uniform", "quniform"}:
        return "Bayesian sampling supports only choice, uniform and quniform."
    if kind == "Bayesian" and policy:
        return "Bayesian sampling does not support early termination."
    if (policy or {}).get("policyType") == "Bandit" and bool(policy.get("slackFactor")) == bool(
        policy.get("slackAmount")
    ):
        return "A bandit policy needs slackFactor or slackAmount."
    return ""


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
    from azureml_emulator.mlflow_tracking import SERVER

    await SERVER.ready()  # its start takes longer than a trial waits for it
    run, body = parent.run, parent.body
    limits, trial = body.get("limits") or {}, body["trial"]
    total = int(limits.get("maxTotalTrials") or _DEFAULT_TRIALS)
    semaphore = asyncio.Semaphore(int(limits.get("maxConcurrentTrials") or 1))
    sampling = str((body.get("samplingAlgorithm") or {}).get("samplingAlgorithmType") or "Random")
    resources = body.get("resources") or trial.get("resources")
    seed = str((body.get("samplingAlgorithm") or {}).get("seed") or run.name)
    variables = dict(trial.get("environmentVariables") or {})
    timeout = limits.get("trialTimeout")
    started: list[Run] = []

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
                # Documented, and read by public scripts.
                "environmentVariables": {
                    **variables,
                    **{f"AZUREML_SWEEP_{key}": str(value) for key, value in values.items()},
                },
                "limits": {"jobLimitsType": "Command", "timeout": timeout} if timeout else None,
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
            started.append(child)
            await parent.ended(child)
            return child

    space = itertools.islice(values_of(body["searchSpace"], sampling, seed), total)
    police = asyncio.ensure_future(_stop_early(started, body))
    try:
        trials = await asyncio.gather(*(run_trial(number, values) for number, values in enumerate(space)))
    finally:
        police.cancel()
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


async def _stop_early(trials: list[Run], body: Mapping[str, Any]) -> None:
    """Cancel trials by the policy of the sweep, for ever."""
    policy, objective = body.get("earlyTermination") or {}, body.get("objective") or {}
    if not policy:
        return
    sign = 1.0 if str(objective.get("goal")).lower() == "maximize" else -1.0
    interval, delay = int(policy.get("evaluationInterval") or 1), int(policy.get("delayEvaluation") or 0)
    judged: dict[str, int] = {}
    while True:
        await asyncio.sleep(0.2)
        curves = {}
        for trial in list(trials):
            curves[trial.name] = [sign * value for value in await _history(trial, str(objective.get("primaryMetric")))]
        for trial in [one for one in trials if not one.over.is_set() and not one.canceled.is_set()]:
            count = len(curves.get(trial.name, ())) // interval * interval
            if count and count >= delay and count > judged.get(trial.name, 0):
                judged[trial.name] = count
                if _is_behind(trial.name, count, curves, policy, sign):
                    trial.canceled.set()


def _is_behind(
    name: str, count: int, curves: Mapping[str, list[float]], policy: Mapping[str, Any], sign: float
) -> bool:
    """Whether a policy stops a trial after `count` reports; larger values are better."""
    own, others = max(curves[name][:count]), [values[:count] for values in curves.values() if values]
    best, kind = max(max(values) for values in others), policy["policyType"]
    if kind == "Bandit":
        if policy.get("slackAmount"):
            return own < best - float(policy["slackAmount"])
        ratio = 1 + float(policy["slackFactor"])
        return own < (best / ratio if sign > 0 else best * ratio)
    if kind == "MedianStopping":
        return own < statistics.median(statistics.fmean(values) for values in others)
    ranked = sorted(max(values) for values in others)
    stopped = int(len(ranked) * int(policy["truncationPercentage"]) / 100)
    return own in ranked[:stopped]


async def _history(trial: Run, metric: str) -> list[float]:
    from azureml_emulator.mlflow_tracking import SERVER

    query = urlencode({"run_id": trial.name, "metric_key": metric})
    status, answer = await SERVER.ask("GET", "/api/2.0/mlflow/metrics/get-history", query)
    points = json.loads(answer).get("metrics", []) if status == 200 else []
    values = [float(point["value"]) for point in sorted(points, key=lambda point: int(point["step"]))]
    return [value for value in values if math.isfinite(value)]


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

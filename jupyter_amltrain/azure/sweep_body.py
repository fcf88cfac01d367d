"""Sweeps as Azure ML's REST API has them, and what it refuses of those that run elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.azure.terms import iso_duration, iso_seconds
from jupyter_amltrain.schema import search_space
from jupyter_amltrain.schema.expression_file import space_from_lists, space_to_lists
from jupyter_amltrain.schema.search_space import Choice, QUniform, Uniform
from jupyter_amltrain.schema.sweep import Sweep, TruncationSelection, trial_count
from jupyter_amltrain.schema.sweep_file import (
    grid_space,
    limits_from_file,
    objective_from_file,
    policy_fields,
    policy_from_file,
    sampler_from_file,
    section,
)


def sweep_problem(sweep: Sweep) -> str:
    """Return why Azure ML refuses a sweep that runs elsewhere, as a sentence; empty if it accepts it.

    Bayesian sampling supports only ``choice``, ``uniform`` and ``quniform`` ("Bayesian sampling" of the v2 page) and no
    early termination (note in "Bandit policy" of the v1 page). Grid sampling supports only ``choice``, to which finite
    expressions are converted.
    """
    if sweep.sampler == "bayesian":
        if sweep.policy is not None:
            return "Azure ML supports no early termination with bayesian sampling: leave --policy out, or use random."
        for name, e in search_space.all_expressions(sweep.space):
            if not isinstance(e, Choice | Uniform | QUniform):
                kind = search_space.kind_of(e)
                return (
                    f"Bayesian sampling of Azure ML supports choice, uniform and quniform, but {name} is {kind}: "
                    "use --sampler random."
                )
    for name, e in search_space.all_expressions(sweep.space):
        if isinstance(e, Choice) and any(option is None or isinstance(option, list | tuple) for option in e.values):
            return f"Azure ML supports numbers, text and true/false in choice, but {name} has null or a list."
    if isinstance(sweep.policy, TruncationSelection) and sweep.policy.exclude_finished_jobs:
        return "The job schema of Azure ML has no exclude_finished_jobs: leave it out of --policy."
    return ""


def sweep_to_rest(sweep: Sweep) -> dict[str, Any]:
    """Return the properties of a ``SweepJob`` (ARM ``2024-10-01``) that describe the sweep, without its trial."""
    limits = sweep.limits
    algorithm: dict[str, Any] = {"samplingAlgorithmType": "Random"}
    if sweep.sampler in ("grid", "bayesian"):
        algorithm = {"samplingAlgorithmType": sweep.sampler.capitalize()}
    else:
        algorithm["rule"] = sweep.sampler.capitalize()
        if sweep.seed is not None:
            algorithm["seed"] = sweep.seed
    rest: dict[str, Any] = {
        "searchSpace": space_to_lists(grid_space(sweep)),
        "samplingAlgorithm": algorithm,
        "objective": {"goal": sweep.objective.goal.capitalize(), "primaryMetric": sweep.objective.metric},
        "limits": {
            "jobLimitsType": "Sweep",
            "maxTotalTrials": trial_count(sweep),
            "maxConcurrentTrials": min(limits.max_concurrent, trial_count(sweep)),
        },
    }
    for key, seconds in (("timeout", limits.max_duration_s), ("trialTimeout", limits.trial_timeout_s)):
        if seconds is not None:
            rest["limits"][key] = iso_duration(seconds)
    if sweep.policy is not None:
        fields = dict(policy_fields(sweep.policy))
        policy = {"policyType": _camel(str(fields.pop("type")), upper=True)}
        rest["earlyTermination"] = policy | {_camel(name): value for name, value in fields.items()}
    return rest


def sweep_from_rest(properties: Mapping[str, Any]) -> Sweep:
    """Return the sweep of the properties of a ``SweepJob``, as the service returns them; raises :class:`SpecError`."""
    algorithm, limits = section(properties, "samplingAlgorithm"), section(properties, "limits")
    fields = {_snake(str(name)): value for name, value in algorithm.items()}
    sampler, seed, _ = sampler_from_file({**fields, "type": fields.get("sampling_algorithm_type") or "Random"})
    policy = {_snake(str(name)): value for name, value in section(properties, "earlyTermination").items()}
    times = {name: round(iso_seconds(limits.get(name)) or 0) or None for name in ("timeout", "trialTimeout")}
    space = space_from_lists(section(properties, "searchSpace"))
    objective = section(properties, "objective")
    return Sweep(
        space=space,
        sampler=sampler,
        seed=seed,
        objective=objective_from_file("objective", objective.get("primaryMetric"), objective.get("goal")),
        policy=policy_from_file("earlyTermination", {**policy, "type": policy["policy_type"]} if policy else None),
        limits=limits_from_file(
            {
                "max_total_trials": limits.get("maxTotalTrials"),
                "max_concurrent_trials": limits.get("maxConcurrentTrials"),
                "timeout": times["timeout"],
                "trial_timeout": times["trialTimeout"],
            }
        ),
    )


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _camel(name: str, *, upper: bool = False) -> str:
    first, *rest = name.split("_")
    return (first.capitalize() if upper else first) + "".join(map(str.capitalize, rest))

"""Sweeps in files: the keys of a sweep job of ``az ml``, and HyperDrive's configuration of its first version.

Names, defaults and limits are those of the pages "Hyperparameter tuning a model (v2)"
(https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters) and "CLI (v2) sweep job YAML schema"
(https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep), those of ``hdconfig.yml`` are of "Tune
hyperparameters (v1)" (https://learn.microsoft.com/azure/machine-learning/v1/how-to-tune-hyperparameters-v1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.expression_file import expression_from_file, expression_to_file, space_from_lists
from jupyter_amltrain.schema.expressions import Expression
from jupyter_amltrain.schema.search_space import as_choice
from jupyter_amltrain.schema.sweep import (
    GOALS,
    MAX_CONCURRENT,
    MAX_TRIALS,
    POLICIES,
    Objective,
    Policy,
    Sampler,
    Sweep,
    SweepLimits,
    is_number,
    is_whole,
    policy_of,
    sweep_error,
    trial_count,
)
from jupyter_amltrain.text import close_matches, did_you_mean


def _error(field: str, message: str, hint: str, code: str) -> SpecError:
    return sweep_error(field, message, hint, code, field)


def section(doc: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping in a file; empty if it is absent."""
    value = doc.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _error(key, f"{str(value)[:80]!r} is not a mapping.", "See the schema of sweep jobs.", "yaml")
    return value


def grid_space(sweep: Sweep) -> dict[str, Expression]:
    """Return the space of a sweep; for a grid every expression is a choice."""
    if sweep.sampler != "grid":
        return dict(sweep.space)
    return {name: as_choice(e) for name, e in sweep.space.items()}


def sweep_from_yaml(doc: Mapping[str, Any]) -> Sweep:
    """Return the sweep of an ``az ml`` file with ``type: sweep``.

    Only ``search_space``, ``sampling_algorithm``, ``objective``, ``early_termination`` and ``limits`` are read.

    Raises
    ------
    SpecError
    """
    sampler, seed, base = sampler_from_file(doc.get("sampling_algorithm", "random"))
    space = section(doc, "search_space")
    if not space:
        raise _error("search_space", "is missing or empty.", "Add a parameter expression.", "space")
    return Sweep(
        space={str(name): expression_from_file(e, str(name), base) for name, e in space.items()},
        sampler=sampler,
        seed=seed,
        objective=objective_from_file(
            "objective", *(section(doc, "objective").get(key) for key in ("primary_metric", "goal"))
        ),
        policy=policy_from_file("early_termination", doc.get("early_termination")),
        limits=limits_from_file(section(doc, "limits")),
    )


def sampler_from_file(value: Any) -> tuple[Sampler, int | None, float]:
    """Return the sampler of ``sampling_algorithm``, its seed, and the base of exponents in the space."""
    field = "sampling_algorithm"
    fields = value if isinstance(value, Mapping) else {"type": value}
    kind = str(fields.get("type") or "").lower()
    if kind not in ("random", "grid", "bayesian"):
        hint = "Supported: random, grid, bayesian."
        raise _error(field, f"unknown type {kind[:80]!r}.", hint, "sampler")
    rule = str(fields.get("rule") or "random").lower()
    if rule not in ("random", "sobol"):
        raise _error(f"{field}.rule", f"unknown rule {rule[:80]!r}.", "Supported: random, sobol.", "sampler")
    seed = fields.get("seed")
    if seed is not None and not is_whole(seed):
        raise _error(f"{field}.seed", f"{str(seed)[:80]!r} is not a whole number.", "Try: seed: 1", "seed")
    base = _base(fields.get("logbase"))
    if kind == "grid":
        return "grid", seed, base
    if kind == "bayesian":
        return "bayesian", seed, base
    return "sobol" if rule == "sobol" else "random", seed, base


def _base(value: Any) -> float:
    """Return the base of log based random sampling: a number, or ``e``."""
    if value is None or str(value).lower() == "e":
        return math.e
    try:
        base = float(value)
    except (TypeError, ValueError):
        base = 0.0
    if not 0 < base < math.inf or base == 1:
        text = f"{str(value)[:80]!r} is not a base."
        raise _error("sampling_algorithm.logbase", text, "Try: logbase: e", "sampler")
    return base


def objective_from_file(field: str, metric: Any, goal: Any) -> Objective:
    """Return the objective with a metric and a goal; `field` names their key in errors."""
    word = str(goal or "").lower()
    if word not in GOALS:
        text = f"the goal {str(goal)[:80]!r} is not maximize or minimize."
        raise _error(field, text, "Try: goal: maximize", "goal")
    if not isinstance(metric, str) or not metric.strip():
        raise _error(field, "the primary metric is missing.", "Try: primary_metric: accuracy", "metric")
    return Objective(metric, "maximize" if word == "maximize" else "minimize")


def policy_from_file(field: str, value: Any) -> Policy | None:
    """Return the policy of a mapping with ``type`` and arguments; 0 and null are the defaults, as in the SDK."""
    if value is None:
        return None
    fields = value if isinstance(value, Mapping) else {"type": value}
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(fields.get("type") or ""))
    kind = words.lower().removesuffix("_policy")
    if kind in ("", "default", "no_termination", "none"):
        return None
    if kind not in POLICIES:
        near = close_matches(kind, POLICIES, 1)
        text = f"unknown policy {kind[:80]!r}."
        raise _error(field, text, did_you_mean(near, f"Supported: {', '.join(POLICIES)}."), "policy")
    values = {name: fields[name] for name in POLICIES[kind].__struct_fields__ if fields.get(name) is not None}
    if kind == "bandit" and len(slacks := values.keys() & {"slack_factor", "slack_amount"}) == 2:
        for name in slacks:  # the SDK writes both, and 0 for the one without a value
            if values[name] == 0:
                del values[name]
    if values.get("evaluation_interval") == 0:  # the SDK's default
        del values["evaluation_interval"]
    return policy_of(field, kind, values)


def limits_from_file(limits: Mapping[str, Any]) -> SweepLimits:
    """Return the limits of ``limits``."""
    numbers = {}
    for key in ("max_total_trials", "max_concurrent_trials", "timeout", "trial_timeout"):
        value = limits.get(key)
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value):
            value = int(value)
        if value is not None and not is_whole(value):
            text = f"{str(value)[:80]!r} is not a whole number."
            raise _error(f"limits.{key}", text, f"Try: {key}: 20", "limits")
        numbers[key] = value
    trials = numbers["max_total_trials"]
    timeout, trial_timeout = numbers["timeout"], numbers["trial_timeout"]
    result = SweepLimits(
        # The default of the schema is 1,000 trials, all at the same time.
        max_trials=MAX_TRIALS if trials is None else trials,
        max_concurrent=numbers["max_concurrent_trials"] or trials or MAX_CONCURRENT,
        max_duration_s=None if timeout is None else float(timeout),
        trial_timeout_s=None if trial_timeout is None else float(trial_timeout),
    )
    return result


def sweep_to_yaml(sweep: Sweep) -> dict[str, Any]:
    """Return the keys of a sweep in an ``az ml`` file."""
    limits = sweep.limits
    doc: dict[str, Any] = {
        "sampling_algorithm": _sampler_to_yaml(sweep),
        "search_space": {name: expression_to_file(e) for name, e in grid_space(sweep).items()},
        "objective": {"goal": sweep.objective.goal, "primary_metric": sweep.objective.metric},
    }
    if sweep.policy is not None:
        doc["early_termination"] = dict(policy_fields(sweep.policy))
    doc["limits"] = {
        "max_total_trials": trial_count(sweep),
        "max_concurrent_trials": min(limits.max_concurrent, trial_count(sweep)),
    }
    for key, seconds in (("timeout", limits.max_duration_s), ("trial_timeout", limits.trial_timeout_s)):
        if seconds is not None:
            doc["limits"][key] = max(1, round(seconds))
    return doc


def _sampler_to_yaml(sweep: Sweep) -> Any:
    if sweep.sampler in ("grid", "bayesian") or (sweep.sampler == "random" and sweep.seed is None):
        return sweep.sampler
    seed = {} if sweep.seed is None else {"seed": sweep.seed}
    return {"type": "random", "rule": sweep.sampler} | seed


def policy_fields(policy: Policy) -> Iterator[tuple[str, Any]]:
    """Yield the keys of ``early_termination``."""
    yield "type", type(policy).__struct_config__.tag
    for field in msgspec.structs.fields(type(policy)):
        value = getattr(policy, field.name)
        if value is not None and (field.name != "exclude_finished_jobs" or value):
            yield field.name, value


def sweep_from_hdconfig(doc: Mapping[str, Any]) -> Sweep:
    """Return the sweep of a HyperDrive configuration file of ``az ml run submit-hyperdrive`` (v1).

    The names of script parameters lose their dashes: ``--learning-rate`` is ``learning_rate``.
    """
    sampling = section(doc, "sampling")
    kind = str(sampling.get("type") or "").lower()
    if kind not in ("random", "grid", "bayesian"):
        hint = "Supported: random, grid, bayesian."
        raise _error("sampling.type", f"unknown sampling {kind[:80]!r}.", hint, "sampler")
    space = dict(_hyperdrive_space(sampling.get("parameter_space")))
    if not space:
        raise _error("sampling.parameter_space", "is missing or empty.", "Add a parameter.", "space")
    minutes = doc.get("max_duration_minutes")
    if minutes is not None and not is_number(minutes):
        text = f"{str(minutes)[:80]!r} is not a number."
        raise _error("max_duration_minutes", text, "Try: max_duration_minutes: 100", "limits")
    limits = {
        "max_total_trials": doc.get("max_total_runs"),
        "max_concurrent_trials": doc.get("max_concurrent_runs"),
        "timeout": None if minutes is None else round(minutes * 60),
    }
    return Sweep(
        space=space,
        sampler="grid" if kind == "grid" else "bayesian" if kind == "bayesian" else "random",
        objective=objective_from_file("primary_metric", doc.get("primary_metric_name"), doc.get("primary_metric_goal")),
        policy=policy_from_file("policy", doc.get("policy")),
        limits=limits_from_file(limits),
    )


def _hyperdrive_space(value: Any) -> Iterator[tuple[str, Expression]]:
    field = "sampling.parameter_space"
    if isinstance(value, Mapping):  # the form of the SDK: {"--lr": ["uniform", [0, 1]]}
        value = [{"name": name, "expression": e[0], "values": e[1]} for name, e in value.items() if len(e) == 2]
    for row in value if isinstance(value, list | tuple) else []:
        if not isinstance(row, Mapping) or not row.get("name"):
            raise _error(field, "a parameter has no name.", "Add name, expression and values.", "space")
        name = str(row["name"]).lstrip("-").replace("-", "_")
        values = row.get("values")
        values = list(values) if isinstance(values, list | tuple) else [values]
        kind = str(row.get("expression") or "").lower()
        if kind == "choice" and not (len(values) == 1 and isinstance(values[0], list | tuple)):
            values = [values]
        yield name, space_from_lists({name: [kind, values]})[name]

"""Sweep: search space, sampler, objective, early termination and limits of a hyperparameter search.

Names, defaults and limits are those of Azure's pages "Hyperparameter tuning a model (v2)"
(https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters) and "CLI (v2) sweep job YAML schema"
(https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep), those of ``hdconfig.yml`` are of "Tune
hyperparameters (v1)" (https://learn.microsoft.com/azure/machine-learning/v1/how-to-tune-hyperparameters-v1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import search_space
from jupyter_amltrain.schema.azure_terms import iso_duration, iso_seconds
from jupyter_amltrain.schema.search_space import Choice, Expression, QUniform, Uniform
from jupyter_amltrain.text import close_matches, did_you_mean

#: Maximum number of trials and of concurrent trials ("Set limits for your sweep job"; HyperDrive, v1, allowed 100
#: concurrent runs).
MAX_TRIALS = 1000
MAX_CONCURRENT = 1000

#: Number of trials without a limit. Azure's is 1,000, which nobody wants by accident.
DEFAULT_TRIALS = 20

SAMPLERS = ("random", "sobol", "grid", "bayesian")
GOALS = ("maximize", "minimize")

Goal = Literal["maximize", "minimize"]
Sampler = Literal["random", "sobol", "grid", "bayesian"]


class Objective(msgspec.Struct, frozen=True):
    """The primary metric and whether it should be large or small."""

    metric: str
    goal: Goal

    @property
    def maximize(self) -> bool:
        """Whether a larger value is better."""
        return self.goal == "maximize"


class Bandit(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="bandit"):
    """Stop a trial whose best value is not within a slack of the best trial.

    Attributes
    ----------
    slack_factor
        Allowed distance as a ratio: with 0.2 and a best value of 0.8, trials below 0.8 / 1.2 are stopped.
    slack_amount
        Allowed distance as an amount. One of the two is needed.
    evaluation_interval
        The policy applies at every n-th report of the primary metric.
    delay_evaluation
        Number of reports before the first evaluation.
    """

    slack_factor: float | None = None
    slack_amount: float | None = None
    evaluation_interval: int = 1
    delay_evaluation: int = 0


class MedianStopping(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="median_stopping"):
    """Stop a trial whose best value is worse than the median of the running averages of all trials."""

    evaluation_interval: int = 1
    delay_evaluation: int = 0


class TruncationSelection(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="truncation_selection"):
    """Stop the lowest `truncation_percentage` percent of the trials at each evaluation.

    Attributes
    ----------
    exclude_finished_jobs
        Whether the comparison leaves out trials that have ended.
    """

    truncation_percentage: int
    evaluation_interval: int = 1
    delay_evaluation: int = 0
    exclude_finished_jobs: bool = False


Policy = Bandit | MedianStopping | TruncationSelection

POLICIES: dict[str, type[Any]] = {
    "bandit": Bandit,
    "median_stopping": MedianStopping,
    "truncation_selection": TruncationSelection,
}

_POLICY_EXAMPLES = {
    "bandit": "bandit(slack_factor=0.1,evaluation_interval=1,delay_evaluation=5)",
    "median_stopping": "median_stopping(evaluation_interval=1,delay_evaluation=5)",
    "truncation_selection": "truncation_selection(20,evaluation_interval=1,delay_evaluation=5)",
}


class SweepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a sweep.

    Attributes
    ----------
    max_trials
        Number of trials; ``None`` for :func:`default_trials`.
    max_concurrent
        Number of trials at the same time.
    max_duration_s
        Run time of the sweep; its trials are canceled after it.
    trial_timeout_s
        Run time of each trial.
    """

    max_trials: int | None = None
    max_concurrent: int = 1
    max_duration_s: float | None = None
    trial_timeout_s: float | None = None


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A hyperparameter search.

    Attributes
    ----------
    space
        Expressions by parameter name.
    seed
        Seed of the sampler; ``None`` in a sweep that has not started.
    policy
        Early termination; ``None`` for none.
    """

    space: dict[str, Expression]
    objective: Objective
    sampler: Sampler = "random"
    seed: int | None = None
    policy: Policy | None = None
    limits: SweepLimits = SweepLimits()


def default_trials(sampler: str) -> int | None:
    """Return the number of trials without a limit; ``None`` for all points of a grid."""
    return None if sampler == "grid" else DEFAULT_TRIALS


def trial_count(sweep: Sweep) -> int:
    """Return the number of trials that a sweep has at most; a finite space has each point once."""
    count = sweep.limits.max_trials or default_trials(sweep.sampler) or MAX_TRIALS
    if all(map(search_space.is_finite, sweep.space.values())):
        count = min(count, search_space.grid_size(sweep.space))
    return count


# -- flags -----------------------------------------------------------------------------------------------------------


def _refusal(flag: str, message: str, hint: str, code: str, field: str = "") -> SpecError:
    return SpecError(message, hint=hint, code=f"sweep.{code}", field=field or code).about(flag)


def parse_goal(text: str) -> Objective:
    """Return the objective of ``maximize accuracy``, also written ``maximize:accuracy``."""
    match = re.fullmatch(r"\s*([A-Za-z]+)\s*(?:[:\s]\s*(.*?))?\s*", text, re.S)
    word = match[1].lower() if match else ""
    metric = (match[2] or "") if match else ""
    word = {"max": "maximize", "min": "minimize", "maximise": "maximize", "minimise": "minimize"}.get(word, word)
    flag = f"--goal {text[:80]!r}"
    if word not in GOALS:
        near = close_matches(word, GOALS, 1)
        hint = did_you_mean(
            [f"--goal '{near[0]} {metric or 'accuracy'}'"] if near else [], "Try: --goal 'maximize accuracy'"
        )
        raise _refusal(flag, "a goal starts with maximize or minimize.", hint, "goal", "objective.goal")
    if not metric:
        raise _refusal(flag, "the metric is missing.", f"Try: --goal '{word} accuracy'", "metric", "objective.metric")
    return Objective(metric, "maximize" if word == "maximize" else "minimize")


def goal_text(objective: Objective) -> str:
    """Return the text that :func:`parse_goal` reads: ``maximize accuracy``."""
    return f"{objective.goal} {objective.metric}"


_POLICY = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.S)


def parse_policy(text: str) -> Policy | None:
    """Return the policy of ``bandit(slack_factor=0.1,delay_evaluation=5)``, ``truncation_selection(20)``, ``none``.

    The first argument may be without its name: the slack factor, and the percentage.
    """
    flag = f"--policy {text[:80]!r}"
    match = _POLICY.fullmatch(text)
    kind = match[1].lower().replace("-", "_") if match else ""
    if match and kind == "none" and not match[2]:
        return None
    if match is None or kind not in POLICIES:
        near = close_matches(kind, [*POLICIES, "none"], 1)
        raise _refusal(
            flag, "unknown policy.", did_you_mean(near, f"Supported: {', '.join([*POLICIES, 'none'])}."), "policy"
        )
    fields = POLICIES[kind].__struct_fields__
    values: dict[str, Any] = {}
    example = f"Try: --policy '{_POLICY_EXAMPLES[kind]}'"
    for number, part in enumerate(filter(str.strip, (match[2] or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            if number or kind == "median_stopping":
                raise _refusal(flag, f"the argument {part.strip()!r} needs a name.", example, "policy")
            name, value = fields[0], name
        if name not in fields or name in values:
            near = close_matches(name, fields, 1)
            what = "is given twice" if name in values else "is not an argument"
            hint = did_you_mean(near, f"Arguments: {', '.join(fields)}.") if name not in values else "Give it once."
            raise _refusal(flag, f"{name!r} {what} of {kind}.", hint, "policy")
        values[name] = _policy_value(flag, name, value, example)
    return _policy(flag, kind, values)


def _policy_value(flag: str, name: str, value: str, hint: str) -> Any:
    if name == "exclude_finished_jobs" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if name == "truncation_percentage":
        value = value.removesuffix("%").rstrip()
    try:
        return int(value) if re.fullmatch(r"[+-]?\d+", value) else float(value)
    except ValueError:
        raise _refusal(flag, f"{name}={value[:80]} is not a number.", hint, "policy", f"policy.{name}") from None


def _policy(flag: str, kind: str, values: Mapping[str, Any]) -> Policy:
    if kind == "truncation_selection" and "truncation_percentage" not in values:
        raise _refusal(
            flag,
            "the percentage of trials to stop is missing.",
            f"Try: {_POLICY_EXAMPLES[kind]}",
            "policy",
            "policy.truncation_percentage",
        )
    policy: Policy = POLICIES[kind](**values)
    check_policy(policy, flag)
    return policy


def check_policy(policy: Policy, flag: str = "--policy") -> None:
    """Raise :class:`SpecError` for a policy that lacks a number, or has one that is out of range."""

    def refuse(name: str, message: str, hint: str) -> SpecError:
        return _refusal(flag, message, hint, "policy", f"policy.{name}")

    if isinstance(policy, Bandit):
        slack = {"slack_factor": policy.slack_factor, "slack_amount": policy.slack_amount}
        given = {name: value for name, value in slack.items() if value is not None}
        if not given:
            raise refuse("slack_factor", "bandit needs a slack.", "Add slack_factor=0.1 or slack_amount=0.05.")
        if len(given) == 2:
            raise refuse("slack_amount", "bandit has slack_factor and slack_amount.", "Give one of them.")
        for name, value in given.items():
            if not _is_number(value) or value < 0:
                raise refuse(name, f"{name} must be 0 or more, not {value}.", f"Try: {name}=0.1")
    if isinstance(policy, TruncationSelection):
        percent = policy.truncation_percentage
        if not _is_whole(percent) or not 1 <= percent <= 99:
            text = f"truncation_percentage must be a whole number from 1 to 99, not {percent}."
            raise refuse("truncation_percentage", text, "Try: truncation_selection(20)")
        if not isinstance(policy.exclude_finished_jobs, bool):
            raise refuse("exclude_finished_jobs", "exclude_finished_jobs must be true or false.", "Leave it out.")
    for name, least in (("evaluation_interval", 1), ("delay_evaluation", 0)):
        value = getattr(policy, name)
        if not _is_whole(value) or value < least:
            raise refuse(
                name, f"{name} must be a whole number of {least} or more, not {value}.", f"Try: {name}={least}"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def policy_text(policy: Policy | None) -> str:
    """Return the text that :func:`parse_policy` reads: ``bandit(slack_factor=0.1,delay_evaluation=5)``."""
    if policy is None:
        return "none"
    kind = str(type(policy).__struct_config__.tag)
    args = []
    for field in msgspec.structs.fields(type(policy)):
        value = getattr(policy, field.name)
        if field.name == "truncation_percentage":
            args.append(str(value))
        elif value != field.default:
            args.append(f"{field.name}={str(value).lower()}")
    return f"{kind}({','.join(args)})" if args else kind


# -- checks ----------------------------------------------------------------------------------------------------------


def check_sweep(sweep: Sweep, fixed: Mapping[str, Any]) -> None:
    """Raise :class:`SpecError` for a sweep that cannot run.

    Parameters
    ----------
    fixed
        Parameters of the job that have a value.
    """
    search_space.check_space(sweep.space)
    for name in [*sweep.space, *search_space.parameter_names(sweep.space)]:
        if name in fixed:
            raise SpecError(
                "is both a fixed value and varied by the sweep.",
                hint="Give it once.",
                code="sweep.fixed",
                field=f"space.{name}",
            ).about(f"--param {name}")
    if sweep.sampler not in SAMPLERS:
        near = close_matches(str(sweep.sampler), SAMPLERS, 1)
        hint = did_you_mean(near, f"Supported: {', '.join(SAMPLERS)}.")
        raise _refusal(f"--sampler {str(sweep.sampler)[:80]!r}", "unknown sampler.", hint, "sampler")
    if sweep.seed is not None and (not _is_whole(sweep.seed) or not 0 <= sweep.seed < 2**32):
        raise _refusal(f"--seed {sweep.seed}", "must be a whole number from 0 to 2**32 - 1.", "Try: --seed 1", "seed")
    if not sweep.objective.metric.strip() or sweep.objective.goal not in GOALS:
        raise _refusal(
            "--goal", "the metric is missing.", "Try: --goal 'maximize accuracy'", "metric", "objective.metric"
        )
    if sweep.policy is not None:
        check_policy(sweep.policy)
    _check_limits(sweep)
    if sweep.sampler == "grid":
        search_space.check_grid(sweep.space)
        size = search_space.grid_size(sweep.space)
        if sweep.limits.max_trials is None and size > MAX_TRIALS:
            raise _refusal(
                "--sampler grid",
                f"the grid has {size:,} points, and a sweep has at most {MAX_TRIALS:,} trials.",
                f"Vary fewer values, or run the first ones: --max-trials {MAX_TRIALS}",
                "max_trials",
                "limits.max_trials",
            )


def _check_limits(sweep: Sweep) -> None:
    limits = sweep.limits
    for name, flag, value, most in (
        ("max_trials", "--max-trials", limits.max_trials, MAX_TRIALS),
        ("max_concurrent", "--max-concurrent", limits.max_concurrent, MAX_CONCURRENT),
    ):
        if value is not None and (not _is_whole(value) or not 1 <= value <= most):
            text = f"must be a whole number from 1 to {most:,}."
            raise _refusal(f"{flag} {value}", text, f"Try: {flag} {20 if most > 20 else most}", name, f"limits.{name}")
    for name, flag, seconds in (
        ("max_duration_s", "--max-duration", limits.max_duration_s),
        ("trial_timeout_s", "--trial-timeout", limits.trial_timeout_s),
    ):
        if seconds is not None and not (_is_number(seconds) and 0 < seconds < 10**9):
            raise _refusal(f"{flag} {seconds}", "not a valid time.", f"Try: {flag} 30m", name, f"limits.{name}")


def azure_problem(sweep: Sweep) -> str:
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


# -- az ml YAML ------------------------------------------------------------------------------------------------------


def _azure_error(field: str, message: str, hint: str, code: str) -> SpecError:
    return _refusal(field, message, hint, code, field)


def _section(doc: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = doc.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _azure_error(key, f"{str(value)[:80]!r} is not a mapping.", "See the schema of sweep jobs.", "yaml")
    return value


def _space_of_grid(sweep: Sweep) -> dict[str, Expression]:
    if sweep.sampler != "grid":
        return dict(sweep.space)
    return {name: search_space.as_choice(e) for name, e in sweep.space.items()}


def sweep_from_yaml(doc: Mapping[str, Any]) -> Sweep:
    """Return the sweep of an ``az ml`` file with ``type: sweep``.

    Only ``search_space``, ``sampling_algorithm``, ``objective``, ``early_termination`` and ``limits`` are read.

    Raises
    ------
    SpecError
    """
    sampler, seed, base = _sampler_from_yaml(doc.get("sampling_algorithm", "random"))
    space = _section(doc, "search_space")
    if not space:
        raise _azure_error("search_space", "is missing or empty.", "Add a parameter expression.", "space")
    return Sweep(
        space={str(name): search_space.expression_from_azure(e, str(name), base) for name, e in space.items()},
        sampler=sampler,
        seed=seed,
        objective=_objective("objective", *(_section(doc, "objective").get(key) for key in ("primary_metric", "goal"))),
        policy=_policy_from_azure("early_termination", doc.get("early_termination")),
        limits=_limits_from_yaml(_section(doc, "limits")),
    )


def _sampler_from_yaml(value: Any) -> tuple[Sampler, int | None, float]:
    field = "sampling_algorithm"
    fields = value if isinstance(value, Mapping) else {"type": value}
    kind = str(fields.get("type") or "").lower()
    if kind not in ("random", "grid", "bayesian"):
        hint = "Supported: random, grid, bayesian."
        raise _azure_error(field, f"unknown type {kind[:80]!r}.", hint, "sampler")
    rule = str(fields.get("rule") or "random").lower()
    if rule not in ("random", "sobol"):
        raise _azure_error(f"{field}.rule", f"unknown rule {rule[:80]!r}.", "Supported: random, sobol.", "sampler")
    seed = fields.get("seed")
    if seed is not None and not _is_whole(seed):
        raise _azure_error(f"{field}.seed", f"{str(seed)[:80]!r} is not a whole number.", "Try: seed: 1", "seed")
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
        raise _azure_error("sampling_algorithm.logbase", text, "Try: logbase: e", "sampler")
    return base


def _objective(field: str, metric: Any, goal: Any) -> Objective:
    word = str(goal or "").lower()
    if word not in GOALS:
        text = f"the goal {str(goal)[:80]!r} is not maximize or minimize."
        raise _azure_error(field, text, "Try: goal: maximize", "goal")
    if not isinstance(metric, str) or not metric.strip():
        raise _azure_error(field, "the primary metric is missing.", "Try: primary_metric: accuracy", "metric")
    return Objective(metric, "maximize" if word == "maximize" else "minimize")


def _policy_from_azure(field: str, value: Any) -> Policy | None:
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
        raise _azure_error(field, text, did_you_mean(near, f"Supported: {', '.join(POLICIES)}."), "policy")
    values = {name: fields[name] for name in POLICIES[kind].__struct_fields__ if fields.get(name) is not None}
    if kind == "bandit" and len(slacks := values.keys() & {"slack_factor", "slack_amount"}) == 2:
        for name in slacks:  # the SDK writes both, and 0 for the one without a value
            if values[name] == 0:
                del values[name]
    if values.get("evaluation_interval") == 0:  # the SDK's default
        del values["evaluation_interval"]
    return _policy(field, kind, values)


def _limits_from_yaml(limits: Mapping[str, Any]) -> SweepLimits:
    numbers = {}
    for key in ("max_total_trials", "max_concurrent_trials", "timeout", "trial_timeout"):
        value = limits.get(key)
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value):
            value = int(value)
        if value is not None and not _is_whole(value):
            text = f"{str(value)[:80]!r} is not a whole number."
            raise _azure_error(f"limits.{key}", text, f"Try: {key}: 20", "limits")
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
        "search_space": {name: search_space.expression_to_azure(e) for name, e in _space_of_grid(sweep).items()},
        "objective": {"goal": sweep.objective.goal, "primary_metric": sweep.objective.metric},
    }
    if sweep.policy is not None:
        doc["early_termination"] = dict(_policy_fields(sweep.policy))
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


def _policy_fields(policy: Policy) -> Iterator[tuple[str, Any]]:
    yield "type", type(policy).__struct_config__.tag
    for field in msgspec.structs.fields(type(policy)):
        value = getattr(policy, field.name)
        if value is not None and (field.name != "exclude_finished_jobs" or value):
            yield field.name, value


# -- REST ------------------------------------------------------------------------------------------------------------


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
        "searchSpace": search_space.space_to_rest(_space_of_grid(sweep)),
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
        fields = dict(_policy_fields(sweep.policy))
        policy = {"policyType": _camel(str(fields.pop("type")), upper=True)}
        rest["earlyTermination"] = policy | {_camel(name): value for name, value in fields.items()}
    return rest


def sweep_from_rest(properties: Mapping[str, Any]) -> Sweep:
    """Return the sweep of the properties of a ``SweepJob``, as the service returns them; raises :class:`SpecError`."""
    algorithm, limits = _section(properties, "samplingAlgorithm"), _section(properties, "limits")
    fields = {_snake(str(name)): value for name, value in algorithm.items()}
    sampler, seed, _ = _sampler_from_yaml({**fields, "type": fields.get("sampling_algorithm_type") or "Random"})
    policy = {_snake(str(name)): value for name, value in _section(properties, "earlyTermination").items()}
    times = {name: round(iso_seconds(limits.get(name)) or 0) or None for name in ("timeout", "trialTimeout")}
    space = search_space.space_from_rest(_section(properties, "searchSpace"))
    objective = _section(properties, "objective")
    return Sweep(
        space=space,
        sampler=sampler,
        seed=seed,
        objective=_objective("objective", objective.get("primaryMetric"), objective.get("goal")),
        policy=_policy_from_azure("earlyTermination", {**policy, "type": policy["policy_type"]} if policy else None),
        limits=_limits_from_yaml(
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


# -- HyperDrive (v1) -------------------------------------------------------------------------------------------------


def sweep_from_hdconfig(doc: Mapping[str, Any]) -> Sweep:
    """Return the sweep of a HyperDrive configuration file of ``az ml run submit-hyperdrive`` (v1).

    The names of script parameters lose their dashes: ``--learning-rate`` is ``learning_rate``.
    """
    sampling = _section(doc, "sampling")
    kind = str(sampling.get("type") or "").lower()
    if kind not in ("random", "grid", "bayesian"):
        hint = "Supported: random, grid, bayesian."
        raise _azure_error("sampling.type", f"unknown sampling {kind[:80]!r}.", hint, "sampler")
    space = dict(_hyperdrive_space(sampling.get("parameter_space")))
    if not space:
        raise _azure_error("sampling.parameter_space", "is missing or empty.", "Add a parameter.", "space")
    minutes = doc.get("max_duration_minutes")
    if minutes is not None and not _is_number(minutes):
        text = f"{str(minutes)[:80]!r} is not a number."
        raise _azure_error("max_duration_minutes", text, "Try: max_duration_minutes: 100", "limits")
    limits = {
        "max_total_trials": doc.get("max_total_runs"),
        "max_concurrent_trials": doc.get("max_concurrent_runs"),
        "timeout": None if minutes is None else round(minutes * 60),
    }
    return Sweep(
        space=space,
        sampler="grid" if kind == "grid" else "bayesian" if kind == "bayesian" else "random",
        objective=_objective("primary_metric", doc.get("primary_metric_name"), doc.get("primary_metric_goal")),
        policy=_policy_from_azure("policy", doc.get("policy")),
        limits=_limits_from_yaml(limits),
    )


def _hyperdrive_space(value: Any) -> Iterator[tuple[str, Expression]]:
    field = "sampling.parameter_space"
    if isinstance(value, Mapping):  # the form of the SDK: {"--lr": ["uniform", [0, 1]]}
        value = [{"name": name, "expression": e[0], "values": e[1]} for name, e in value.items() if len(e) == 2]
    for row in value if isinstance(value, list | tuple) else []:
        if not isinstance(row, Mapping) or not row.get("name"):
            raise _azure_error(field, "a parameter has no name.", "Add name, expression and values.", "space")
        name = str(row["name"]).lstrip("-").replace("-", "_")
        values = row.get("values")
        values = list(values) if isinstance(values, list | tuple) else [values]
        kind = str(row.get("expression") or "").lower()
        if kind == "choice" and not (len(values) == 1 and isinstance(values[0], list | tuple)):
            values = [values]
        yield name, search_space.space_from_rest({name: [kind, values]})[name]

"""Sweep: search space, sampler, objective, early termination and limits of a hyperparameter search.

Names, defaults and limits are those of sweep jobs of ``az ml``, so that a file means the same on every target: see
:mod:`~jupyter_amltrain.schema.sweep_file`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import search_space
from jupyter_amltrain.schema.search_space import Expression
from jupyter_amltrain.text import close_matches, did_you_mean

#: Maximum number of trials and of concurrent trials ("Set limits for your sweep job"; HyperDrive, v1, allowed 100
#: concurrent runs).
MAX_TRIALS = 1000
MAX_CONCURRENT = 1000

#: Number of trials without a limit. That of ``az ml`` is 1,000, which nobody wants by accident.
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


class OwnTrials(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that a job runs in its own process, and writes into :data:`~.child_run.CHILDREN` of its run folder.

    Attributes
    ----------
    objective
        What the trials are compared by.
    searcher
        What chooses them, as people read it.
    max_trials
        Their number; ``None`` if it is not known.
    """

    objective: Objective
    searcher: str = ""
    max_trials: int | None = None


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


def sweep_error(flag: str, message: str, hint: str, code: str, field: str = "") -> SpecError:
    """Return the error about a flag or a key of a file; `field` is its field in a :class:`Sweep`."""
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
        raise sweep_error(flag, "a goal starts with maximize or minimize.", hint, "goal", "objective.goal")
    if not metric:
        raise sweep_error(
            flag, "the metric is missing.", f"Try: --goal '{word} accuracy'", "metric", "objective.metric"
        )
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
        raise sweep_error(
            flag, "unknown policy.", did_you_mean(near, f"Supported: {', '.join([*POLICIES, 'none'])}."), "policy"
        )
    fields = POLICIES[kind].__struct_fields__
    values: dict[str, Any] = {}
    example = f"Try: --policy '{_POLICY_EXAMPLES[kind]}'"
    for number, part in enumerate(filter(str.strip, (match[2] or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            if number or kind == "median_stopping":
                raise sweep_error(flag, f"the argument {part.strip()!r} needs a name.", example, "policy")
            name, value = fields[0], name
        if name not in fields or name in values:
            near = close_matches(name, fields, 1)
            what = "is given twice" if name in values else "is not an argument"
            hint = did_you_mean(near, f"Arguments: {', '.join(fields)}.") if name not in values else "Give it once."
            raise sweep_error(flag, f"{name!r} {what} of {kind}.", hint, "policy")
        values[name] = _policy_value(flag, name, value, example)
    return policy_of(flag, kind, values)


def _policy_value(flag: str, name: str, value: str, hint: str) -> Any:
    if name == "exclude_finished_jobs" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if name == "truncation_percentage":
        value = value.removesuffix("%").rstrip()
    try:
        return int(value) if re.fullmatch(r"[+-]?\d+", value) else float(value)
    except ValueError:
        raise sweep_error(flag, f"{name}={value[:80]} is not a number.", hint, "policy", f"policy.{name}") from None


def policy_of(flag: str, kind: str, values: Mapping[str, Any]) -> Policy:
    """Return a checked policy; `flag` names it in errors."""
    if kind == "truncation_selection" and "truncation_percentage" not in values:
        raise sweep_error(
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
        return sweep_error(flag, message, hint, "policy", f"policy.{name}")

    if isinstance(policy, Bandit):
        slack = {"slack_factor": policy.slack_factor, "slack_amount": policy.slack_amount}
        given = {name: value for name, value in slack.items() if value is not None}
        if not given:
            raise refuse("slack_factor", "bandit needs a slack.", "Add slack_factor=0.1 or slack_amount=0.05.")
        if len(given) == 2:
            raise refuse("slack_amount", "bandit has slack_factor and slack_amount.", "Give one of them.")
        for name, value in given.items():
            if not is_number(value) or value < 0:
                raise refuse(name, f"{name} must be 0 or more, not {value}.", f"Try: {name}=0.1")
    if isinstance(policy, TruncationSelection):
        percent = policy.truncation_percentage
        if not is_whole(percent) or not 1 <= percent <= 99:
            text = f"truncation_percentage must be a whole number from 1 to 99, not {percent}."
            raise refuse("truncation_percentage", text, "Try: truncation_selection(20)")
        if not isinstance(policy.exclude_finished_jobs, bool):
            raise refuse("exclude_finished_jobs", "exclude_finished_jobs must be true or false.", "Leave it out.")
    for name, least in (("evaluation_interval", 1), ("delay_evaluation", 0)):
        value = getattr(policy, name)
        if not is_whole(value) or value < least:
            raise refuse(
                name, f"{name} must be a whole number of {least} or more, not {value}.", f"Try: {name}={least}"
            )


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, and not true or false."""
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
        raise sweep_error(f"--sampler {str(sweep.sampler)[:80]!r}", "unknown sampler.", hint, "sampler")
    if sweep.seed is not None and (not is_whole(sweep.seed) or not 0 <= sweep.seed < 2**32):
        raise sweep_error(
            f"--seed {sweep.seed}", "must be a whole number from 0 to 2**32 - 1.", "Try: --seed 1", "seed"
        )
    if not sweep.objective.metric.strip() or sweep.objective.goal not in GOALS:
        raise sweep_error(
            "--goal", "the metric is missing.", "Try: --goal 'maximize accuracy'", "metric", "objective.metric"
        )
    if sweep.policy is not None:
        check_policy(sweep.policy)
    _check_limits(sweep)
    if sweep.sampler == "grid":
        search_space.check_grid(sweep.space)
        size = search_space.grid_size(sweep.space)
        if sweep.limits.max_trials is None and size > MAX_TRIALS:
            raise sweep_error(
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
        if value is not None and (not is_whole(value) or not 1 <= value <= most):
            text = f"must be a whole number from 1 to {most:,}."
            raise sweep_error(
                f"{flag} {value}", text, f"Try: {flag} {20 if most > 20 else most}", name, f"limits.{name}"
            )
    for name, flag, seconds in (
        ("max_duration_s", "--max-duration", limits.max_duration_s),
        ("trial_timeout_s", "--trial-timeout", limits.trial_timeout_s),
    ):
        if seconds is not None and not (is_number(seconds) and 0 < seconds < 10**9):
            raise sweep_error(f"{flag} {seconds}", "not a valid time.", f"Try: {flag} 30m", name, f"limits.{name}")

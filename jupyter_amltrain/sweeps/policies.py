"""Early termination of trials: the policies of Azure ML, evaluated on reports of the primary metric.

Sources: "Specify early termination policy" of "Hyperparameter tuning a model (v2)"
(https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#early-termination), and the classes of
HyperDrive: ``BanditPolicy``, ``MedianStoppingPolicy`` and ``TruncationSelectionPolicy``
(https://learn.microsoft.com/python/api/azureml-train-core/azureml.train.hyperdrive.truncationselectionpolicy).

Each report of the primary metric counts as one interval, and a policy applies at every multiple of its
`evaluation_interval` that is at least `delay_evaluation`. At interval N a trial is compared with the reports 1 to N of
the others, also if they have more, so that no trial is stopped because it is younger.

Where the pages leave something open:

* A trial's performance at interval N is its best value up to N.
* A trial with fewer than N reports takes part in ``bandit`` and ``median_stopping`` with those that it has. In
  ``truncation_selection``, which compares the trials *at* interval N, it takes part only if it has ended.
* ``slack_factor`` is a ratio of positive values. For negative ones the limit is on the worse side of the best value
  too: minimizing x stops the same trials as maximizing -x.
* Trials of equal performance are stopped by ``truncation_selection`` only if all of them are in the lowest percentage.
* NaN counts as the worst value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from jupyter_amltrain.schema.sweep import Bandit, Goal, MedianStopping, Policy, TruncationSelection


class EarlyStopping:
    """Decides after each report of the primary metric whether its trial is stopped.

    The decisions are a pure function of the sequence of calls.

    Parameters
    ----------
    policy
        ``None`` stops no trial.
    goal
        ``maximize`` or ``minimize``.
    """

    def __init__(self, policy: Policy | None, goal: Goal) -> None:
        self._policy = policy
        self._sign = 1.0 if goal == "maximize" else -1.0
        self._trials: dict[int, _Reports] = {}
        self._ended: set[int] = set()
        self._reasons: dict[int, str] = {}

    def observe(self, trial: int, value: float) -> str | None:
        """Take one report of the primary metric; return why the trial is to be stopped, or ``None``.

        Reports of a trial that was stopped or has ended do not count; a stopped one returns its reason again.
        """
        if trial in self._reasons or trial in self._ended:
            return self._reasons.get(trial)
        reports = self._trials.setdefault(trial, _Reports())
        reports.add(-math.inf if math.isnan(value) else self._sign * value)
        policy, interval = self._policy, len(reports)
        if policy is None or interval % policy.evaluation_interval or interval < policy.delay_evaluation:
            return None
        reason = self._evaluate(policy, trial, interval)
        if reason is not None:
            self._reasons[trial] = reason
        return reason

    def finish(self, trial: int) -> None:
        """Take the end of a trial, for any reason."""
        self._ended.add(trial)

    def _evaluate(self, policy: Policy, trial: int, interval: int) -> str | None:
        own = self._trials[trial].best(interval)
        if isinstance(policy, Bandit):
            best = max(reports.best(interval) for reports in self._trials.values())
            limit = _bandit_limit(policy, best)
            rule = f"the limit of bandit for a best value of {self._text(best)}"
        elif isinstance(policy, MedianStopping):
            limit = _median(reports.mean(interval) for reports in self._trials.values())
            rule = "the median of the running averages"
        else:
            return self._truncate(policy, trial, own, interval)
        if own >= limit:
            return None
        side = "below" if self._sign > 0 else "above"
        return f"Its best value {self._text(own)} at report {interval} is {side} {self._text(limit)}, {rule}."

    def _truncate(self, policy: TruncationSelection, trial: int, own: float, interval: int) -> str | None:
        scores = [
            reports.best(interval)
            for number, reports in self._trials.items()
            if (number not in self._ended and len(reports) >= interval)
            or (number in self._ended and not policy.exclude_finished_jobs)
        ]
        not_better = sum(score <= own for score in scores)  # with this trial
        if not_better * 100 > policy.truncation_percentage * len(scores):
            return None
        percent = f"the lowest {policy.truncation_percentage} % of {len(scores)} trials"
        return f"Its best value {self._text(own)} at report {interval} is in {percent}."

    def _text(self, score: float) -> str:
        return f"{self._sign * score + 0.0:.4g}"


class _Reports:
    """Best value and running average after each report of one trial; larger is better."""

    def __init__(self) -> None:
        self._bests: list[float] = []
        self._means: list[float] = []
        self._sum = 0.0

    def __len__(self) -> int:
        return len(self._bests)

    def add(self, score: float) -> None:
        best, mean = (self._bests[-1], self._means[-1]) if self._bests else (-math.inf, 0.0)
        self._bests.append(max(best, score))
        if mean == -math.inf or score == -math.inf:
            self._means.append(-math.inf)  # also with an infinitely good value before
            return
        self._sum += score
        self._means.append(self._sum / len(self._bests))

    def best(self, interval: int) -> float:
        return self._bests[min(interval, len(self._bests)) - 1]

    def mean(self, interval: int) -> float:
        return self._means[min(interval, len(self._means)) - 1]


def _bandit_limit(policy: Bandit, best: float) -> float:
    if policy.slack_amount is not None:
        return best - policy.slack_amount
    factor = 1 + (policy.slack_factor or 0.0)
    return best / factor if best > 0 else best * factor


def _median(scores: Iterable[float]) -> float:
    ordered = sorted(scores)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    middle = low if low == high else (low + high) / 2
    return low if math.isnan(middle) else middle

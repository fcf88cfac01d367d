"""Early termination of trials: the policies of ``az ml``, evaluated on reports of the primary metric.

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

import numpy as np

from jupyter_amltrain.schema.sweep import Bandit, Goal, MedianStopping, Policy, TruncationSelection

#: Trials for which there is room at first.
_FIRST_TRIALS = 64


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
        self._trials: dict[int, _Trial] = {}
        self._scores = _Scores()
        self._ended: set[int] = set()
        self._reasons: dict[int, str] = {}

    def observe(self, trial: int, value: float) -> str | None:
        """Take one report of the primary metric; return why the trial is to be stopped, or ``None``.

        Reports of a trial that was stopped or has ended do not count; a stopped one returns its reason again.
        """
        policy = self._policy
        if policy is None or trial in self._reasons or trial in self._ended:
            return self._reasons.get(trial)
        own = self._trials.setdefault(trial, _Trial(len(self._trials)))
        own.report(-math.inf if math.isnan(value) else self._sign * value)
        applies = own.interval % policy.evaluation_interval == 0 and own.interval >= policy.delay_evaluation
        score = own.mean if isinstance(policy, MedianStopping) else own.best
        self._scores.put(own.column, score, own.interval if applies else None)
        reason = self._evaluate(policy, own) if applies else None
        if reason is not None:
            self._reasons[trial] = reason
        return reason

    def finish(self, trial: int) -> None:
        """Take the end of a trial, for any reason."""
        self._ended.add(trial)
        if trial in self._trials:
            self._scores.ended[self._trials[trial].column] = True

    def _evaluate(self, policy: Policy, trial: _Trial) -> str | None:
        own, interval = trial.best, trial.interval
        if isinstance(policy, TruncationSelection):
            return self._truncate(policy, own, interval)
        scores = self._scores.up_to(interval)
        if isinstance(policy, Bandit):
            best = float(scores.max())
            limit = _bandit_limit(policy, best)
            rule = f"the limit of bandit for a best value of {self._text(best)}"
        elif isinstance(policy, MedianStopping):
            limit = _median(scores)
            rule = "the median of the running averages"
        else:
            raise TypeError(f"no rule for {policy!r}")
        if own >= limit:
            return None
        side = "below" if self._sign > 0 else "above"
        return f"Its best value {self._text(own)} at report {interval} is {side} {self._text(limit)}, {rule}."

    def _truncate(self, policy: TruncationSelection, own: float, interval: int) -> str | None:
        scores, ended = self._scores.up_to(interval), self._scores.ended[: self._scores.count]
        if policy.exclude_finished_jobs:
            counts = self._scores.has(interval) & ~ended
        else:
            counts = self._scores.has(interval) | ended
        total = int(counts.sum())
        not_better = int((scores[counts] <= own).sum())  # with this trial
        if not_better * 100 > policy.truncation_percentage * total:
            return None
        percent = f"the lowest {policy.truncation_percentage} % of {total} trials"
        return f"Its best value {self._text(own)} at report {interval} is in {percent}."

    def _text(self, score: float) -> str:
        return f"{self._sign * score + 0.0:.4g}"


class _Trial:
    """Best value and running average of the reports of one trial so far; larger is better."""

    def __init__(self, column: int) -> None:
        self.column = column  #: its place among the scores
        self.interval = 0  #: number of reports
        self.best, self.mean, self._sum = -math.inf, 0.0, 0.0

    def report(self, score: float) -> None:
        self.interval += 1
        self.best = max(self.best, score)
        if self.mean == -math.inf or score == -math.inf:
            self.mean = -math.inf  # also with an infinitely good value before
            return
        self._sum += score
        self.mean = self._sum / self.interval


class _Scores:
    """What a policy compares, by trial: the newest score, and the score at each interval at which the policy applies.

    Arrays over the trials, because a policy compares each report with all trials.
    """

    def __init__(self) -> None:
        self.count = 0  #: number of trials
        self.ended = np.zeros(_FIRST_TRIALS, bool)
        self._newest = np.full(_FIRST_TRIALS, np.nan)
        self._at: dict[int, np.ndarray] = {}  #: by interval; NaN for trials without so many reports

    def put(self, column: int, score: float, interval: int | None) -> None:
        """Set the newest score of a trial, which is that of `interval` too if the policy applies there."""
        self.count = max(self.count, column + 1)
        if column >= len(self._newest):
            self._newest = np.concatenate([self._newest, np.full(len(self._newest), np.nan)])
            self.ended = np.concatenate([self.ended, np.zeros_like(self.ended)])
        self._newest[column] = score
        if interval is not None:
            self._row(interval)[column] = score

    def has(self, interval: int) -> np.ndarray:
        """Whether each trial has so many reports."""
        is_absent: np.ndarray = np.isnan(self._row(interval)[: self.count])
        return ~is_absent

    def up_to(self, interval: int) -> np.ndarray:
        """Return the score of each trial at an interval; the newest one of a trial with fewer reports."""
        return np.where(self.has(interval), self._row(interval)[: self.count], self._newest[: self.count])

    def _row(self, interval: int) -> np.ndarray:
        row = self._at.get(interval, self._newest[:0])
        if len(row) < len(self._newest):
            row = self._at[interval] = np.concatenate([row, np.full(len(self._newest) - len(row), np.nan)])
        return row


def _bandit_limit(policy: Bandit, best: float) -> float:
    if policy.slack_amount is not None:
        return best - policy.slack_amount
    factor = 1 + (policy.slack_factor or 0.0)
    return best / factor if best > 0 else best * factor


def _median(scores: np.ndarray) -> float:
    ordered = np.sort(scores)
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    middle = low if low == high else (low + high) / 2
    return low if math.isnan(middle) else middle

"""What a sweep has tried and tries next: its sampler and its policy, in the order of the journal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.sweeps.policies import EarlyStopping
from jupyter_amltrain.sweeps.samplers import Proposer
from jupyter_amltrain.sweeps.trial import Trial


class Search:
    """Sampler and policy of a sweep. Its methods block on the sampler.

    Attributes
    ----------
    points
        Number and values of the next trials, as far as the sampler has proposed them.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._proposer = Proposer(sweep)
        self._policy = EarlyStopping(sweep.policy, sweep.objective.goal)
        self.points: deque[tuple[int, dict[str, Any]]] = deque()

    def ask(self, count: int = 1) -> bool:
        """Ask the sampler until `count` points are known; return whether they are."""
        while len(self.points) < count:
            proposal = self._proposer.ask()
            if proposal is None:
                return False
            self.points.append(proposal)
        return True

    def replay(self, number: int) -> bool:
        """Ask the sampler as an earlier process did; return whether it has proposed this trial."""
        proposal = self._proposer.ask()
        return proposal is not None and proposal[0] == number

    def learn(self, values: Mapping[str, Any], value: float) -> None:
        """Take the result of a trial of another sweep."""
        self._proposer.learn(values, value)

    def observe(self, trial: Trial, points: Sequence[tuple[int, float]]) -> str:
        """Pass reports to the policy; return why the trial is to be stopped."""
        reasons = [self._policy.observe(trial.number, value) for _, value in points]
        return next(filter(None, reasons), "")

    def end(self, trial: Trial) -> None:
        """Pass an end to the sampler and the policy."""
        value = trial.value if trial.value is not None and math.isfinite(trial.value) else None
        self._proposer.tell(trial.number, value)
        self._policy.finish(trial.number)

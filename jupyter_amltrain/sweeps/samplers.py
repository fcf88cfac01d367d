"""Proposals of a sweep: which values the next trial gets. Optuna draws them, and the search space gives them meaning.

The sequence of proposals is a pure function of the sweep and of the sequence of calls, so that a driver that was ended
replays its recorded calls into a new :class:`Proposer`. Another version of Optuna may propose other values.
"""

from __future__ import annotations

import abc
import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.schema import search_space
from jupyter_amltrain.schema.search_space import (
    Choice,
    Expression,
    LogNormal,
    LogUniform,
    Normal,
    QLogNormal,
    QLogUniform,
    QNormal,
    QUniform,
    RandInt,
    Uniform,
)
from jupyter_amltrain.schema.sweep import Sweep

if TYPE_CHECKING:
    import optuna

#: Draws in a row that repeat earlier trials, before the next free point of the grid is proposed.
MAX_REPEATED_DRAWS = 20

#: Importances of fewer finished trials change from one trial to the next: the share of one that is 45 % varies by 25
#: points between samples of 14 to 30 random trials, by 15 with 100.
MIN_IMPORTANCE_TRIALS = 30


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide Optuna's log and its warnings of experimental features, which are about this module and not the user."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class Proposer:
    """Proposes the values of each trial.

    Proposal n of ``random``, ``sobol`` and ``grid`` depends only on the sweep, its seed and n. That of ``bayesian``
    depends also on the results, and on the order of the calls. A finite space has no trial twice.

    Parameters
    ----------
    sweep
        A checked sweep with a seed.
    """

    def __init__(self, sweep: Sweep) -> None:
        if sweep.seed is None and sweep.sampler != "grid":
            raise ValueError("the sweep has no seed")
        self._space = sweep.space
        self._finite = all(map(search_space.is_finite, sweep.space.values()))
        self._size = search_space.grid_size(sweep.space) if self._finite else 0
        self._next_point = 0  # of the grid, or of the points that replace repeated draws
        self._keys: set[bytes] = set()
        self._count = 0
        self._learned = 0
        self._told: set[int] = set()
        self._draws: _Draws | None = None
        if sweep.sampler == "bayesian":
            self._draws = _TpeDraws(sweep)
        elif sweep.sampler != "grid":
            self._draws = _QuantileDraws(sweep)

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        """Return number and values of the next trial; ``None`` if all points of a finite space are proposed."""
        values = self._drawn() if self._draws is not None else self._free_point()
        if values is None:
            return None
        number = self._count
        self._count += 1
        return number, values

    def tell(self, number: int, value: float | None) -> None:
        """Report the result of a trial.

        Parameters
        ----------
        value
            Final value of the primary metric, or the last one of a trial that was stopped early; ``None`` (or NaN) for
            a trial without one.

        Raises
        ------
        ValueError
            The trial was not proposed, or its result was reported before.
        """
        if not 0 <= number < self._count or number in self._told:
            raise ValueError(f"trial {number} is not waiting for a result")
        self._told.add(number)
        if self._draws is not None:
            self._draws.tell(number, None if value is None or math.isnan(value) else float(value))

    def learn(self, values: Mapping[str, Any], value: float) -> bool:
        """Take the result of a trial of another sweep; return whether it is in the space of this one.

        Called before the first :meth:`ask`. A finite space does not propose its values again.
        """
        if search_space.positions(self._space, values) is None:
            return False
        if self._finite:
            self._is_new(values)
        if isinstance(self._draws, _TpeDraws):
            self._learned += 1
            return self._draws.learn(-self._learned, values, value)
        return True

    def _drawn(self) -> dict[str, Any] | None:
        assert self._draws is not None
        if not self._finite:
            return self._draws.draw(self._count)
        if len(self._keys) < self._size:
            for _ in range(MAX_REPEATED_DRAWS):
                values = self._draws.draw(self._count)
                if self._is_new(values):
                    return values
                self._draws.reject(self._count)
        values_or_none = self._free_point()
        if values_or_none is not None:
            self._draws.put(self._count, values_or_none)
        return values_or_none

    def _free_point(self) -> dict[str, Any] | None:
        """Return the next point of the grid that was not proposed; the points before it are skipped for good."""
        while self._next_point < self._size:
            values = search_space.grid_point(self._space, self._next_point)
            self._next_point += 1
            if self._is_new(values):
                return values
        return None

    def _is_new(self, values: Mapping[str, Any]) -> bool:
        key = search_space.value_key(sorted(values.items()))
        if key in self._keys:
            return False
        self._keys.add(key)
        return True


class _Draws(abc.ABC):
    """Source of proposals; the methods take the number that the proposal gets."""

    @abc.abstractmethod
    def draw(self, number: int) -> dict[str, Any]:
        """Return values for the next proposal."""

    def reject(self, number: int) -> None:  # noqa: B027 - only some sources keep state
        """Forget the last draw, which repeats a trial."""

    def put(self, number: int, values: Mapping[str, Any]) -> None:  # noqa: B027
        """Take values that this source did not draw."""

    def tell(self, number: int, value: float | None) -> None:  # noqa: B027
        """Take the result of a proposal."""


class _QuantileDraws(_Draws):
    """Random or quasi-random quantiles, one for each expression of the space and of all options.

    Each parameter is a quantile in the study, so that all expressions have their distribution, and results are not
    part of the study, so that they cannot change what follows.
    """

    def __init__(self, sweep: Sweep) -> None:
        with _quiet():
            import optuna
            from optuna.distributions import FloatDistribution
            from optuna.samplers import QMCSampler, RandomSampler

            self._space = sweep.space
            self._distributions: dict[str, Any] = {
                key: FloatDistribution(0.0, 1.0) for key in search_space.dimensions(sweep.space)
            }
            sampler: optuna.samplers.BaseSampler
            if sweep.sampler == "sobol":
                sampler = QMCSampler(qmc_type="sobol", scramble=True, seed=sweep.seed)
            else:
                sampler = RandomSampler(seed=sweep.seed)
            self._study = optuna.create_study(sampler=sampler)
            if sweep.sampler == "sobol":
                # QMCSampler takes the parameters of its sequence from the first completed trial.
                middle = dict.fromkeys(self._distributions, 0.5)
                self._study.add_trial(
                    optuna.trial.create_trial(params=middle, distributions=self._distributions, value=0.0)
                )

    def draw(self, number: int) -> dict[str, Any]:
        with _quiet():
            trial = self._study.ask(self._distributions)
        return search_space.quantile_point(self._space, trial.params)


class _TpeDraws(_Draws):
    """Tree-structured Parzen estimator: options of a choice are categories, other expressions quantiles."""

    def __init__(self, sweep: Sweep) -> None:
        with _quiet():
            import optuna
            from optuna.samplers import TPESampler

            self._space = sweep.space
            # Optuna's joint estimate of parameters that only some trials have is experimental.
            conditional = len(search_space.dimensions(sweep.space)) > len(sweep.space)
            sampler = TPESampler(
                seed=sweep.seed, multivariate=not conditional, constant_liar=sweep.limits.max_concurrent > 1
            )
            self._study = optuna.create_study(direction=sweep.objective.goal, sampler=sampler)
            self._trials: dict[int, optuna.Trial] = {}

    def draw(self, number: int) -> dict[str, Any]:
        with _quiet():
            trial = self._study.ask()
            self._trials[number] = trial

            def draw(key: str, e: Expression) -> Any:
                if isinstance(e, Choice):
                    return trial.suggest_categorical(key, range(len(e.values)))
                return search_space.quantile(e, trial.suggest_float(key, 0.0, 1.0))

            return search_space.point(self._space, draw)

    def reject(self, number: int) -> None:
        self.tell(number, None)

    def put(self, number: int, values: Mapping[str, Any]) -> None:
        found = search_space.positions(self._space, values) or {}
        expressions = search_space.dimensions(self._space)
        fixed = {key: _quantile_of(expressions[key], value) for key, value in found.items()}
        with _quiet():
            self._study.enqueue_trial(fixed)
        self.draw(number)

    def learn(self, number: int, values: Mapping[str, Any], value: float) -> bool:
        """Add a result to the study; return whether all values are possible in the space."""
        found = search_space.positions(self._space, values) or {}
        expressions = search_space.dimensions(self._space)
        if any(_quantile_of(expressions[key], one) is None for key, one in found.items()):
            return False
        self.put(number, values)
        self.tell(number, value)
        return True

    def tell(self, number: int, value: float | None) -> None:
        with _quiet():
            import optuna

            trial = self._trials.pop(number)
            if value is None:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, value)


def _quantile_of(e: Expression, value: Any) -> Any:
    """Return a quantile at which an expression has this value; the index of a choice is itself.

    ``None`` for a value outside of the range.
    """
    if isinstance(e, Choice):
        return value
    if isinstance(e, RandInt):
        return (value + 0.5) / e.upper if 0 <= value < e.upper else None
    if isinstance(e, Normal | QNormal):
        return NormalDist(e.mu, e.sigma).cdf(value)
    if isinstance(e, LogNormal | QLogNormal):
        return NormalDist(e.mu, e.sigma).cdf(math.log(value)) if value > 0 else 0.0
    margin = e.q / 2 if isinstance(e, QUniform | QLogUniform) else 0.0
    if not e.low - margin <= value <= e.high + margin:
        return None
    inside = min(max(value, e.low), e.high)
    if isinstance(e, LogUniform | QLogUniform):
        return math.log(inside / e.low) / math.log(e.high / e.low)
    return (inside - e.low) / (e.high - e.low)


# -- analysis --------------------------------------------------------------------------------------------------------


def study_of(sweep: Sweep, trials: Sequence[tuple[Mapping[str, Any], float]]) -> optuna.Study:
    """Return an in-memory Optuna study with the values and results of trials, for Optuna's plots.

    Parameters
    ----------
    trials
        Values and final value of the primary metric of each finished trial. Trials without a finite value, and those
        that are not of this space, are left out. Lists are their JSON text in the study.
    """
    with _quiet():
        import optuna

        study = optuna.create_study(study_name="sweep", direction=sweep.objective.goal)
        rows = [
            (dict(values), float(value), search_space.active_parameters(sweep.space, values))
            for values, value in trials
            if math.isfinite(value) and search_space.positions(sweep.space, values) is not None
        ]
        names = search_space.parameter_names(sweep.space)
        distributions = {
            name: _distribution(
                [active[name] for _, _, active in rows if name in active],
                [values[name] for values, _, active in rows if name in active],
            )
            for name in names
            if any(name in active for _, _, active in rows)
        }
        for values, value, active in rows:
            own = {name: distributions[name] for name in names if name in active}
            params = {name: _category(values[name]) if _is_categorical(own[name]) else values[name] for name in own}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=own, value=value))
        return study


def importances(sweep: Sweep, trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return the share of each parameter in the differences between good and other trials (PED-ANOVA), largest first.

    Empty with fewer than :data:`MIN_IMPORTANCE_TRIALS` finished trials, or if all have the same result.
    """
    study = study_of(sweep, trials)
    finished = study.trials
    if len(finished) < MIN_IMPORTANCE_TRIALS or len({trial.value for trial in finished}) < 2:
        return {}
    with _quiet():
        import optuna

        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        result = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in result.items() if math.isfinite(share)}


def _is_categorical(distribution: Any) -> bool:
    return hasattr(distribution, "choices")


def _category(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return search_space.value_key(list(value)).decode()
    return value


def _distribution(expressions: Sequence[Expression], values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    """Return the distribution of a parameter's values; one that differs between options covers the values seen."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    first = expressions[0]
    same = all(e == first for e in expressions)
    numeric = not any(isinstance(e, Choice) for e in expressions)
    if not numeric:
        options = [option for e in expressions if isinstance(e, Choice) for option in e.values]
        plain = [_category(value) for value in [*options, *values] if not isinstance(value, Mapping)]
        return CategoricalDistribution(list({(type(value), value): value for value in plain}.values()))
    if same and isinstance(first, Uniform | LogUniform):
        return FloatDistribution(float(first.low), float(first.high), log=isinstance(first, LogUniform))
    if same and isinstance(first, RandInt):
        return IntDistribution(0, int(first.upper) - 1)
    low, high = float(min(values)), float(max(values))
    logarithmic = all(isinstance(e, LogUniform | QLogUniform | LogNormal | QLogNormal) for e in expressions)
    return FloatDistribution(low, high, log=logarithmic and low > 0)

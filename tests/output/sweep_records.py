"""Records of sweeps, as the driver of a sweep would have them."""

from __future__ import annotations

import math
import random
from typing import Any

from jupyter_amltrain.kernel.sweep_board import drawn
from jupyter_amltrain.schema.record import MetricSeries, RunRecord
from jupyter_amltrain.schema.run import Phase
from jupyter_amltrain.schema.sweep_board import MAX_BOARD_CURVES, SweepBoard, TrialCurve

SPACE = {
    "lr": "loguniform(-9, -2)",
    "layers": "choice(1, 2, 3, 4)",
    "dropout": "uniform(0, 0.5)",
    "optimizer": "choice('adam', 'sgd', 'adamw')",
    "momentum": "uniform(0.5, 0.99)",
}
STEPS = 40


def board(trials: int = 40, **changes: Any) -> SweepBoard:
    """A sweep of an accuracy in which the last four trials still run; `momentum` only goes with ``sgd``."""
    rng = random.Random(7)
    columns: dict[str, list[Any]] = {name: [] for name in SPACE}
    state, value, seconds, early, curves = [], [], [], [], []
    reason: dict[str, str] = {}
    for i in range(trials):
        lr, layers, dropout = math.exp(rng.uniform(-9, -2)), rng.choice((1, 2, 3, 4)), rng.uniform(0, 0.5)
        optimizer = rng.choice(("adam", "sgd", "adamw"))
        momentum = rng.uniform(0.5, 0.99) if optimizer == "sgd" else None
        for name, one in zip(SPACE, (lr, layers, dropout, optimizer, momentum), strict=True):
            columns[name].append(one)
        peak = 0.96 - 0.018 * (math.log(lr) + 5.5) ** 2 - 0.02 * abs(layers - 3) - 0.1 * dropout
        peak = max(0.1, peak - (0.04 if optimizer == "sgd" else 0) + rng.gauss(0, 0.008))
        is_running, is_early, has_failed = i >= trials - 4, peak < 0.72 and i > 5, i % 13 == 8
        steps = STEPS // 4 if is_early or is_running else 3 if has_failed else STEPS
        points = tuple(peak * (1 - math.exp(-(k + 2) / 7)) + rng.gauss(0, 0.006) for k in range(steps))
        state.append("running" if is_running else "failed" if has_failed else "canceled" if is_early else "completed")
        value.append(None if has_failed else points[-1])
        seconds.append(4.0 * steps + rng.uniform(0, 5))
        if has_failed:
            reason[str(i)] = "CUDA out of memory. Tried to allocate 2.00 GiB <on GPU 0>"
        elif is_early and not is_running:
            early.append(i)
            reason[str(i)] = f"0.{rng.randint(300, 600)} at step {steps - 1} is below the median 0.712 of 9 trials"
        curves.append(TrialCurve(trial=i, step=tuple(range(steps)), value=points))
    completed = [i for i in range(trials) if state[i] == "completed"]
    fields: dict[str, Any] = {
        "metric": "val_accuracy",
        "goal": "maximize",
        "sampler": "bayesian",
        "policy": "median(delay_evaluation=5)",
        "space": SPACE,
        "max_trials": max(60, trials),
        "max_concurrent": 4,
        "number": tuple(range(1, trials + 1)),
        "state": tuple(state),
        "value": tuple(value),
        "seconds": tuple(seconds),
        "handle": tuple(f"local/trial-{i}" for i in range(1, trials + 1)),
        "params": {name: tuple(column) for name, column in columns.items()},
        "early": tuple(early),
        "reason": reason,
        "curves": tuple(curves[-MAX_BOARD_CURVES:]),
        "best": max(completed, key=lambda i: value[i], default=None),
        "importance": {"lr": 0.61, "layers": 0.18, "dropout": 0.12, "optimizer": 0.085, "momentum": 0.004},
        "message": "",
    }
    return drawn(SweepBoard(**{**fields, **changes}))


def sweep_record(sweep: SweepBoard | None = None, **changes: Any) -> RunRecord:
    """The record of a driver."""
    sweep = board() if sweep is None else sweep
    fields: dict[str, Any] = {
        "handle": "local/digits-sweep-k3f9x",
        "run_id": "digits-sweep-k3f9x",
        "name": "digits-sweep",
        "target": "local",
        "experiment": "digits",
        "state": "running",
        "created": 1_000.0,
        "seen_at": 1_400.0,
        "phases": (
            Phase(name="queued", start=1_000.0, end=1_000.2, seconds=0.2),
            Phase(name="running", start=1_000.2, end=None, seconds=None),
        ),
        "metrics": {"val_accuracy": MetricSeries(step=(1, 2), value=(0.8, 0.9), last=0.9, n=2)},
        "sweep": sweep,
    }
    return RunRecord(**{**fields, **changes})


def ended(trials: int = 40) -> RunRecord:
    """The record of a sweep that has ended."""
    live = board(trials)
    state = tuple("completed" if one == "running" else one for one in live.state)
    phases = (Phase(name="running", start=1_000.0, end=1_400.0, seconds=400.0),)
    sweep = board(trials, state=state, max_trials=trials, message=f"All {trials} trials have ended.")
    return sweep_record(sweep, state="completed", done=True, phases=phases)

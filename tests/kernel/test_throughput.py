"""Throughput of a run from its metrics."""

from __future__ import annotations

import pytest

from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.kernel.throughput import MAX_ERROR, measure
from jupyter_amltrain.schema.scaling import ScalingSlice


def metric(*points: tuple[int, float, float]) -> Metric:
    found = Metric()
    for point in points:
        found.append(*point)
    return found


def rates(*values: float) -> Metric:
    return metric(*((step, float(step), value) for step, value in enumerate(values)))


def steps(n: int, second: float = 0.1, first: float = 0.1, every: int = 1) -> Metric:
    """A loss of `n` points; the first two take `first` seconds each."""
    times = [0.0, first, *(2 * first + second * i for i in range(n - 2))]
    return metric(*((i * every, times[i], 1.0) for i in range(n)))


def restarting(epochs: int, length: int, rest: int = 0) -> Metric:
    """A loss of one process with ten points in a second, whose steps start again in each epoch."""
    return metric(*((i % length, i / 10, 1.0) for i in range(epochs * length + rest)))


def slice_of(width: int = 1, **more: object) -> ScalingSlice:
    fields = {"group": "g", "widths": (1, 2), "seconds": 10.0, "start_s": 600.0, **more}
    return ScalingSlice(width=width, **fields)


@pytest.mark.parametrize(
    ("metrics", "counted", "rate"),
    [
        ({"samples_per_second": rates(1, 50, *[100] * 8)}, "samples", 100),
        ({"images/s": rates(*[7] * 8), "loss": steps(20)}, "images", 7),
        ({"it/s": rates(*[3] * 8), "samples_per_second": rates(*[9] * 8)}, "samples", 9),
        ({"throughput": rates(*[5] * 8)}, "units", 5),
        ({"throughput/device/samples_per_sec": rates(*[5] * 20), "loss": steps(20)}, "steps", 10),
        ({"eval_samples_per_second": rates(*[5] * 20), "loss": steps(20)}, "steps", 10),
        ({"loss": steps(20, first=9.0)}, "steps", 10),  # the first two are warm-up
        ({"loss": steps(20, every=50)}, "steps", 500),
        ({"loss": restarting(epochs=4, length=30)}, "steps", 10),  # the counter starts again in each epoch
        ({"loss": restarting(epochs=3, length=30, rest=7)}, "steps", 10),
        ({"train_samples_per_second": rates(900), "loss": steps(120)}, "steps", 10),  # one summary at the end
        ({"train_samples_per_second": rates(900), "it/s": rates(*[3] * 8)}, "steps", 3),
        ({"val_loss": steps(40), "loss": steps(20, second=0.5)}, "steps", 2),
        ({"loss": steps(20), "rare": steps(3, second=5.0)}, "steps", 10),
        ({"samples_per_second": metric(*((0, float(i), 4.0) for i in range(10)))}, "samples", 4),  # without step
    ],
)
def test_measure_finds_rate_after_warm_up(metrics: dict[str, Metric], counted: str, rate: float) -> None:
    found = measure(metrics, slice_of())
    assert (found.problem, found.counted) == ("", counted)
    assert found.rate == pytest.approx(rate) and found.error < 1e-6


@pytest.mark.parametrize(
    ("metrics", "width", "problem"),
    [
        ({}, 1, "none"),
        ({"loss": metric((0, 1.0, 0.5))}, 1, "none"),
        ({"loss": metric(*((0, float(i), 0.5) for i in range(20)))}, 1, "none"),  # no step
        ({"val_loss": steps(20)}, 1, "none"),
        ({"loss": steps(6)}, 1, "few"),
        ({"samples_per_second": rates(*[8] * 6)}, 1, "few"),
        ({"samples_per_second": rates(*[float("nan"), 0.0, -1.0] * 6)}, 1, "none"),
        ({"loss": metric(*((i, 5.0, 1.0) for i in range(20)))}, 1, "few"),  # all at once
        ({"samples_per_second": rates(*[10] * 4, *[90] * 4, *[10] * 4, *[90] * 4)}, 1, "noisy"),
        ({"loss": metric(*((i // 2, float(i), 1.0) for i in range(40)))}, 2, "ranks"),
        ({"loss": metric(*((i // 2, float(i), 1.0) for i in range(40)))}, 1, ""),
        ({"loss": metric(*((i // 2 % 10, float(i), 1.0) for i in range(80)))}, 2, "ranks"),
        ({"loss": restarting(epochs=4, length=30)}, 2, ""),
        ({"samples_per_second": metric(*((i // 2, float(i), 8.0) for i in range(40)))}, 2, "ranks"),
    ],
)
def test_measure_says_why_it_cannot_tell(metrics: dict[str, Metric], width: int, problem: str) -> None:
    found = measure(metrics, slice_of(width))
    assert found.problem == problem
    assert (found.error > MAX_ERROR) == (problem == "noisy")


@pytest.mark.parametrize(
    ("limits", "whole"),
    [({}, False), ({"seconds": 2.0}, True), ({"steps": 19}, True), ({"steps": 20}, False)],
)
def test_slice_is_whole_if_metrics_cover_it(limits: dict[str, float], whole: bool) -> None:
    assert measure({"loss": steps(20), "once": metric((0, 0.0, 1.0))}, slice_of(**limits)).whole is whole

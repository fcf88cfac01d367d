"""How fast a run trains, from metrics of the names that people use."""

from __future__ import annotations

import pytest

from jupyter_amltrain.kernel.throughput import throughput_text


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("samples_per_second", "samples"),
        ("train_samples_per_second", "samples"),  # transformers
        ("train/samples_per_sec", "samples"),
        ("images/s", "images"),
        ("imgs_per_sec", "images"),
        ("throughput/device/samples_per_sec", "samples"),  # Composer
        ("tokens/sec", "tokens"),
        ("tokensPerSecond", "tokens"),
        ("tok/s", "tokens"),
        ("it/s", "steps"),
        ("fps", ""),
        ("throughput", "throughput"),
        ("train_throughput", "throughput"),
        ("eval_samples_per_second", ""),
        ("loss", ""),
        ("steps", ""),
        ("samples", ""),
        ("maps", ""),
        ("epochs", ""),
    ],
)
def test_throughput_metric_name_is_recognized(name: str, unit: str) -> None:
    words = throughput_text({"loss": 0.1, name: 412.4})
    assert words == ("" if not unit else "throughput 412" if unit == "throughput" else f"412 {unit}/s")


def test_throughput_prefers_samples_over_steps() -> None:
    assert throughput_text({"it/s": 3.21, "samples/s": 12345.0}) == "12,345 samples/s"
    assert throughput_text({"samples/s": None, "it/s": 3.214}) == "3.21 steps/s"
    assert throughput_text({"samples/s": float("nan"), "x/s": -1.0, "it/s": 0.0}) == ""

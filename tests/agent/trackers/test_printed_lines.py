"""Lines of known libraries, and proposals for those of others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from jupyter_amltrain.agent.trackers.line_pattern import parse_pattern
from jupyter_amltrain.agent.trackers.line_shapes import LineShapes
from jupyter_amltrain.agent.trackers.printed_lines import PrintedLines


def points(lines: Sequence[str], patterns: Sequence[str] = ()) -> list[tuple[str, float, int | None]]:
    """Names, values and steps that are found in lines."""
    reader = PrintedLines([parse_pattern(text) for text in patterns])
    found = []
    for line in lines:
        own, known = reader.read(line)
        found += [*own, *(point for _, point in known)]
    return [(point.name, point.value, point.step) for point in [*found, *(point for _, point in reader.end())]]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[3]\ttrain-rmse:0.5\teval-rmse:0.6", [("train-rmse", 0.5, 3), ("eval-rmse", 0.6, 3)]),
        ("[10]\tvalid_0's l2: 0.34\tvalid_0's auc: 0.9", [("valid_0-l2", 0.34, 10), ("valid_0-auc", 0.9, 10)]),
        ("[5]\tcv_agg's valid l2: 0.3 + 0.01", [("cv_agg-valid l2", 0.3, 5)]),
        ("7:\tlearn: 0.68\ttest: 0.67\tbest: 0.67 (0)\ttotal: 50ms", [("learn", 0.68, 7), ("test", 0.67, 7)]),
        ("[I 2026-11-29 10:00:00,1] Trial 3 finished with value: 0.1 and parameters: {'x': 1}.", [("value", 0.1, 3)]),
        ("Trial 4 finished with values: [0.1, 2.0] and", [("value_0", 0.1, 4), ("value_1", 2.0, 4)]),
        ("{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1}", [("loss", 0.5, None), ("learning_rate", 5e-05, None)]),
        (" 3%|# | 3/90{'loss': '0.69', 'epoch': '0.5'}", [("loss", 0.69, None)]),
        ("[12] some text: 3", []),
        ("[10:30:00] INFO: loss:0.5", []),
        ("{'a': __import__('os').abort(), 'epoch': 1}", []),
    ],
)
def test_line_of_known_library_gives_its_points(line: str, found: list[tuple[str, float, int | None]]) -> None:
    assert points([line]) == found


def test_epochs_of_keras_give_their_last_line_once() -> None:
    lines = [
        "Epoch 1/2",
        "\x1b[1m 1/45\x1b[0m \x1b[32m━\x1b[0m \x1b[1m2s\x1b[0m 50ms/step - accuracy: 0.1 - loss: 2.5",
        "\x1b[1m45/45\x1b[0m \x1b[32m━━\x1b[0m \x1b[1m1s\x1b[0m 3ms/step - accuracy: 0.8 - loss: 0.5",
        "45/45 - 1s - 30ms/step - accuracy: 0.8 - loss: 0.5 - val_loss: 0.4",
        "Epoch 2/2",
        "45/45 - 1s - 30ms/step - accuracy: 0.9 - loss: 0.3",
        "13/13 - 0s - 3ms/step - accuracy: 0.7 - loss: 0.9",
    ]
    assert points(lines) == [
        ("accuracy", 0.8, 0), ("loss", 0.5, 0), ("val_loss", 0.4, 0), ("accuracy", 0.9, 1), ("loss", 0.3, 1)
    ]  # fmt: skip


def test_table_of_epochs_gives_its_columns() -> None:
    lines = [
        "  epoch    train_loss    valid_acc     dur",
        "-------  ------------  -----------  ------",
        "      1        \x1b[36m0.6868\x1b[0m       0.5950  0.0233",
        "      2        0.6000       0.7500  +  0.0233",
        "done",
        "      3        0.5       0.5  0.1",
    ]
    found = [("train_loss", 0.6868, 1), ("valid_acc", 0.595, 1), ("train_loss", 0.6, 2), ("valid_acc", 0.75, 2)]
    assert points(lines) == found


def test_line_of_own_pattern_is_not_read_as_that_of_library() -> None:
    assert points(["[3]\ttrain-rmse:0.5"], ["error=rmse:{value}"]) == [("error", 0.5, None)]


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ([f"Loss: {1 / i:.5f} after {i} batches" for i in range(1, 9)], [("loss", 1.0, 1)]),
        ([f"loss: {2.5 / (i + 1):>7f}  [{i * 6400:>5d}/60000]" for i in range(10)], [("loss", 2.5, 0)]),
        ([f" Accuracy: {10 * i + 0.1:>0.1f}%, Avg loss: {1 / (i + 1):>8f}" for i in range(5)],
         [("accuracy", 0.1, None), ("avg_loss", 1.0, None)]),
        ([f"2026-11-29 08:15:{i:02d},123 INFO epoch {i} [12/40] train loss 0.{i}5 time 1.{i}s" for i in range(5)],
         [("train_loss", 0.05, 0)]),
        ([f"Train Epoch: 1 [{i * 640}/60000 ({i}%)]\tLoss: {2.5 / (i + 1):.6f}" for i in range(9)], [("loss", 2.5, 0)]),
        ([f"epoch {i:3d} | loss {1 / (i + 1):.4f} | ppl {9 / (i + 1):8.2f}" for i in range(9)],
         [("loss", 1.0, 0), ("ppl", 9.0, 0)]),
        ([f"[{i}, {2000 * j:5d}] loss: {1 / (i + j):.3f}" for i in (1, 2) for j in (1, 2)], [("loss", 0.5, 1)]),
        ([f"Iteration {i}, loss = {1 / i:.8f}" for i in range(1, 5)], [("loss", 1.0, 1)]),
    ],
)  # fmt: skip
def test_proposed_patterns_find_the_values(lines: list[str], first: list[tuple[str, float, int | None]]) -> None:
    shapes = LineShapes()
    for line in lines:
        shapes.add(line)
    words = shlex.split(shapes.proposal().rpartition("To record them: ")[2])
    assert words[::2] == ["--metric"] * len(first)
    found = points(lines, words[1::2])
    assert found[: len(first)] == first
    assert len(found) == len(lines) * len(first)


@pytest.mark.parametrize("line", ["hello", "{i} of 9", "{i} {i}.5", "step {i} took {i}.5 seconds", "version 1.{i}.3"])
def test_lines_without_metric_propose_nothing(line: str) -> None:
    shapes = LineShapes()
    for i in range(9):
        shapes.add(line.replace("{i}", str(i)))
    assert shapes.proposal() == ""

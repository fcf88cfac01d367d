"""Each GPU of a target with its use and its users, as text."""

from __future__ import annotations

from typing import Any

from jupyter_amltrain.kernel.target_gpus import MAX_ROWS, MAX_USERS, gpu_rows, slots_reason
from jupyter_amltrain.schema.target import TargetInfo

GIB = 1 << 30
ANN = {"pid": 4711, "user": "ann", "command": "python train.py", "memory": 3 * GIB, "run": "", "system": False}
OURS = {"pid": 812, "user": "ben", "command": "python", "memory": None, "run": "digits-k3f9", "system": False}
XORG = {"pid": 3, "user": "root", "command": "Xorg", "memory": GIB, "run": "", "system": True}


def info(*gpus: dict[str, Any]) -> TargetInfo:
    facts = {"utilization": 98, "temperature": 56, "memory_used": 12 * GIB, "memory_total": 80 * GIB, "users": []}
    return TargetInfo(
        target="box", kind="ssh", gpus=tuple({"index": i, **facts, **gpu} for i, gpu in enumerate(gpus))
    )  # fmt: skip


def test_gpu_row_has_readings_and_users() -> None:
    (row,) = gpu_rows(info({"users": [ANN, OURS], "assigned": 0.25}))
    assert row[0] == "GPU 0"
    for word in (
        "98 %",
        "12.0 GiB of 80.0 GiB",
        "56 °C",
        "box/digits-k3f9",
        "812",
        "ann (pid 4711, python train.py, 3.0 GiB)",
    ):
        assert word in row[1]
    assert "0.75 of it is free" in row[1]


def test_gpu_row_leaves_unknown_readings_out() -> None:
    (row,) = gpu_rows(info({"utilization": None, "temperature": None, "memory_used": None}))
    assert row[1] == "free"


def test_gpu_row_of_run_without_process_names_the_run() -> None:
    (row,) = gpu_rows(info({"users": [{"run": "digits-k3f9"}], "assigned": 1}))
    assert "box/digits-k3f9" in row[1] and "of it is free" not in row[1]


def test_gpu_rows_of_targets_without_users_are_empty() -> None:
    assert gpu_rows(TargetInfo(target="x", kind="fake", gpus=({"index": 0, "name": "A"},))) == ()


def test_long_lists_are_cut() -> None:
    rows = gpu_rows(info(*[{}] * (MAX_ROWS + 3)))
    assert len(rows) == MAX_ROWS + 1 and "3 more" in rows[-1][1]
    (row,) = gpu_rows(info({"users": [{**ANN, "pid": pid} for pid in range(MAX_USERS + 2)]}))
    assert "2 more" in row[1]


def test_slots_reason_names_users_and_reservations_but_no_system_process() -> None:
    text = slots_reason(info({"users": [XORG]}, {"users": [ANN, XORG]}, {"reserved": "ben (uid 1001)"}))
    assert "GPU 0" not in text and "Xorg" not in text
    assert "GPU 1: ann" in text and "GPU 2: reserved by ben" in text and slots_reason(info({})) == ""

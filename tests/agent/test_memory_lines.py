"""Out of GPU memory: the lines whose tensors fill it, from a snapshot of PyTorch's allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.agent.failures.memory_lines import lines_of
from jupyter_amltrain.kernel.failures import frame_tables, frames_of
from jupyter_amltrain.schema.failure import MEMORY
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from tests.agent.test_failure_hook import run

GIB = 1 << 30


def block(size: int, *frames: tuple[str, int, str], state: str = "active_allocated") -> dict[str, Any]:
    """A block as in a snapshot of PyTorch 2.13 with a history: the innermost frame first."""
    rows = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {"size": size + 512, "requested_size": size, "address": 1, "state": state, "frames": rows}


def is_library(file: str) -> bool:
    return "site-packages" in file


LINEAR = ("/v/site-packages/torch/nn/functional.py", 9, "linear")


def test_blocks_count_for_the_users_line_that_made_them() -> None:
    blocks = [
        block(GIB, LINEAR, ("/p/script.py", 4, "forward"), ("/p/script.py", 9, "<module>")),
        block(GIB, ("/p/script.py", 4, "forward")),
        block(3 * GIB, ("/p/script.py", 7, "<module>")),
        block(9 * GIB, ("/p/script.py", 8, "<module>"), state="inactive"),
        block(5),
        block(7, LINEAR),
    ]
    rows = lines_of({"segments": [{"device": 1, "blocks": blocks}]}, is_library)
    assert [(row["line"], row["bytes"], row["count"], row["device"]) for row in rows] == [
        (7, 3 * GIB, 1, 1), (4, 2 * GIB, 2, 1), (9, 7, 1, 1)
    ]  # fmt: skip


def test_snapshot_without_history_has_no_lines() -> None:
    plain = {"size": 512, "state": "active_allocated"}
    assert lines_of({"segments": [{"device": 0, "blocks": [plain]}]}, is_library) == []
    assert lines_of({"segments": []}, is_library) == []


def test_snapshot_with_many_lines_is_bounded() -> None:
    blocks = [block(number, ("/p/script.py", number, "f" * 999)) for number in range(1, 5000)]
    rows = lines_of({"segments": [{"device": 0, "blocks": blocks}]}, is_library)
    assert len(rows) == 8 and rows[0]["line"] == 4999 and len(rows[0]["function"]) == 200


#: Has the parts of PyTorch that are called, with a history.
TORCH = """
import sys, types
class OutOfMemoryError(RuntimeError): pass
def snapshot():
    {snapshot}
memory = types.SimpleNamespace(_snapshot=snapshot)
cuda = types.SimpleNamespace(memory=memory, is_initialized=lambda: True, OutOfMemoryError=OutOfMemoryError)
version = types.SimpleNamespace(cuda=None)
"""
SCRIPT = """
import torch
big = "a tensor"
raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
"""


def fails(folder: Path, snapshot: str, script: str = SCRIPT) -> dict[str, Any]:
    (folder / "torch.py").write_text(TORCH.format(snapshot=snapshot))
    done, kept = run(folder, script)
    assert done.returncode == 1 and "Traceback" in done.stderr
    return kept["rank-0"]


ROWS = """frames = [{"filename": sys.argv[0], "line": 3, "name": "<module>"}]
    block = {"size": 2 << 30, "state": "active_allocated", "frames": frames}
    return {"segments": [{"device": 0, "blocks": [block, block]}]}"""


def test_script_out_of_memory_keeps_the_lines_and_its_record_shows_them(tmp_path: Path) -> None:
    content = fails(tmp_path, ROWS)
    (row,) = content["memory"]
    assert (row["line"], row["bytes"], row["count"], row["code"]) == (3, 4 * GIB, 2, 'big = "a tensor"')
    status = RunStatus(state=RunState.FAILED)
    one = Run(handle=make_handle("local", "r"), spec=JobSpec(name="r", script="x"), status=status, created=0.0)
    frames = frames_of(msgspec.json.encode(content), one)
    assert frames[-1].relation == MEMORY
    first, memory = frame_tables(frames, one)[:2]
    assert first.title.startswith("line 4") and "memory" in memory.title
    assert memory.table.rows == (("line 3", '4.0 GiB in 2 tensors: big = "a tensor"'),)


def test_other_error_or_other_torch_has_no_lines(tmp_path: Path) -> None:
    assert fails(tmp_path, "raise AttributeError")["memory"] == []
    assert fails(tmp_path, ROWS, "import torch\n1/0\n")["memory"] == []

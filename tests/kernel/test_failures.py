"""The values at failure in a record: what a job may have written there, and what is shown of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.failures import MAX_BYTES, frame_tables, frames_of, read_failure
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.output.run_html import run_html
from jupyter_amltrain.output.text_view import record_text
from jupyter_amltrain.schema.failure import FailedFrame
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle

SCRIPT = "/home/me/runs/r-22222/source/script.py"


def run_of(state: RunState = RunState.FAILED) -> Run:
    spec = JobSpec(name="r", cell="own line", script="a\nown line\nc")
    return Run(handle=make_handle("local", "r-22222"), spec=spec, status=RunStatus(state=state), created=1.0)


def tensor(name: str, *shape: int, named: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "named": named, "type": "Tensor", "shape": shape, "dtype": "float32", **more}


def frame(line: int, *values: dict[str, Any], file: str = SCRIPT, **more: Any) -> dict[str, Any]:
    return {"file": file, "line": line, "function": "<module>", "code": "x @ w", "values": values, **more}


def content(*frames: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": 1, "time": 100.0, "errors": [{"type": "RuntimeError", "frames": frames}], **more}


def frames(value: Any, started: float = 0.0) -> tuple[FailedFrame, ...]:
    return frames_of(json.dumps(value).encode(), run_of(), started)


SHAPES = content(
    frame(3, tensor("x", 32, 784, device="cuda:0"), tensor("w", 512, 10, low="0", high="1", nan=2), function="forward"),
    frame(2, {"name": "cfg", "type": "dict", "shape": [1], "text": "{'lr': 0.1}"}, code=""),
)


def test_frames_have_lines_of_the_cell_and_typed_values() -> None:
    first, second = frames(SHAPES)
    assert (first.cell_line, first.function, first.error) == (3, "forward", "RuntimeError")
    x, w = first.values
    assert (x.shape, x.dtype, x.device, x.low) == ((32, 784), "float32", "cuda:0", None)
    assert (w.low, w.high, w.nan) == (0.0, 1.0, 2) and "2 NaN" in w.summary and "32×784" in x.summary
    assert first.code == "x @ w" and second.code == "own line"
    assert second.values[0].shape == (1,) and "'lr': 0.1" in second.values[0].summary


def test_frame_of_another_file_has_no_line_of_the_cell() -> None:
    (found,) = frames(content(frame(7, tensor("x", 3), file="/lib/site-packages/torch/nn/linear.py", library=True)))
    (table,) = frame_tables([found], run_of())
    assert found.cell_line is None and found.library and "torch/nn/linear.py" in table.title


def test_frame_of_a_library_stands_below_its_caller_and_both_are_open() -> None:
    library = frame(7, tensor("input", 3), file="/lib/site-packages/torch/nn/linear.py", library=True)
    found = frame_tables(frames(content(library, frame(2, tensor("x", 3)), frame(1, tensor("y", 3)))), run_of())
    assert [one.table.rows[0][0] for one in found] == ["x", "input", "y"]
    assert [one.folded for one in found] == [False, False, True]


def test_record_text_and_saved_html_show_the_values() -> None:
    entry = Entry(run_of())
    entry.frames = frames(SHAPES)
    record = record_of(entry)
    text, html = record_text(record), run_html(record, None)
    assert "line 3 of the cell, in forward" in text and "Tensor 512×10 float32, 0 to 1, 2 NaN" in text
    assert html.count("<details") == 2 and html.count("<details open") == 1 and "32×784" in html
    assert record.frames[0].named == 2 and record.frames[1].named == 0


def test_record_of_a_run_that_did_not_fail_shows_none() -> None:
    entry = Entry(run_of(RunState.COMPLETED))
    entry.frames = frames(SHAPES)
    assert record_of(entry).frames == ()


def test_title_says_how_exceptions_are_related() -> None:
    cause = {"type": "OSError", "relation": "cause", "frames": [frame(1, tensor("p", 2))]}
    found = frames({"time": 1, "errors": [*content(frame(2, tensor("x", 3)))["errors"], cause]})
    titles = [table.title for table in frame_tables(found, run_of())]
    assert "OSError" not in titles[0] and "OSError" in titles[1]


def test_file_of_an_earlier_attempt_is_not_shown() -> None:
    assert frames(SHAPES, started=101.0) and not frames(SHAPES, started=200.0)


@pytest.mark.parametrize(
    ("reason", "rank", "path"), [("exit", None, 0), ("signal", 3, 3), ("timeout", None, None), ("oom", 1, None)]
)
def test_file_of_the_process_that_failed_is_read(reason: str, rank: int | None, path: int | None) -> None:
    paths: list[str] = []

    async def read(run_id: str, path: str, limit: int) -> bytes:
        paths.append(path)
        return json.dumps(SHAPES).encode()

    backend: Any = SimpleNamespace(files=SimpleNamespace(read=read))
    run = msgspec.structs.replace(run_of(), folder="/runs/r-22222")
    status = RunStatus(state=RunState.FAILED, reason=reason, failed_rank=rank)
    found = asyncio.run(read_failure(backend, run, status))
    assert paths == ([] if path is None else [f"failure/rank-{path}.json"]) and bool(found) == bool(paths)


DAMAGED: list[Any] = [
    b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"errors": 1}', b'{"errors": [{"type": 1, "frames": []}]}',
    json.dumps(content(frame(-1))).encode(), json.dumps(content({**frame(1), "values": 3})).encode(),
    json.dumps(content(frame(1, tensor("x", *range(100))))).encode(), b'{"errors": ' + b"[" * 50_000,
    json.dumps(content(frame(1, tensor("x", -3)))).encode(),
    json.dumps(content(frame(1, tensor("x", 1 << 80)))).encode(),
    json.dumps(content(frame(1, {**tensor("x"), "nan": 1e400}))).encode(), b'{"time": "a", "errors": []}',
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED)
def test_damaged_file_shows_nothing(data: bytes) -> None:
    assert frames_of(data, run_of()) == ()


def test_text_of_a_job_is_shown_as_text() -> None:
    name, code = "<script>alert(1)</script>\x1b[31m\n", "</pre><img src=x onerror=y>\u202e"
    entry = Entry(run_of())
    entry.frames = frames(content(frame(1, {"name": name, "type": code, "text": name}, code=code, function=code)))
    record = record_of(entry)
    html, text = run_html(record, None), record_text(record)
    assert "<script" not in html and "<img" not in html and "\x1b" not in text + html and "\u202e" not in text + html
    assert all("\n" not in cell for row in record.frames[0].table.rows for cell in row)


def test_odd_numbers_of_a_job_do_not_break_the_record() -> None:
    entry = Entry(run_of())
    values = [
        {"name": f"v{n}", "type": "Tensor", "dtype": "f", "low": low, "high": "x" * 9}
        for n, low in enumerate(["", "nan", "1e999"])
    ]
    entry.frames = frames(content(frame(1, *values, {"name": "empty", "type": "list", "shape": []})))
    record = record_of(entry)
    assert (
        json.loads(json.dumps(msgspec.to_builtins(record), allow_nan=False)) and len(record.frames[0].table.rows) == 4
    )


def test_large_file_is_bounded_in_the_record() -> None:
    text = "é" * 300
    many = [frame(line, *(tensor(f"{text}{n}", 3, text=text) for n in range(24))) for line in range(1, 40)]
    entry = Entry(run_of())
    entry.frames = frames(content(*many))
    record = record_of(entry)
    assert sum(len(json.dumps(msgspec.to_builtins(one), ensure_ascii=False)) for one in record.frames) < 30_000
    assert len(record_text(record)) < 30_000 and MAX_BYTES == 64 << 10

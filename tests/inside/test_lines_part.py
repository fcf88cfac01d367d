"""Lines in the record of a run: what is read when, and what the record, its text and its HTML have of them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.inside.line_files import processes_of
from jupyter_amltrain.inside.line_report import LineReader, report_of
from jupyter_amltrain.inside.lines_part import MAX_LINES, LinesPart, lines_of
from jupyter_amltrain.kernel.record_parts import PARTS, PartFiles, PartState, parts_html, parts_text
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.schema.run_file import RunFile
from jupyter_amltrain.schema.run_lines import RunLines

CELL = "import time\nfor x in loader:\n    y = x.mean()\n    work(y)\n"
SPEC = JobSpec(name="x", script=f"# %%aml_submit\n{CELL}", script_name="cell.py", cell=CELL)


def lines(*samples: list[Any], seconds: float = 100.0, name: str = "", count: int = 3) -> bytes:
    rows: list[Any] = [["h", 1, 7, 0, 1000.0, name, "/x/cell.py", 1], ["f", 0, "/x/source/cell.py"]]
    rows += [["n", at, 0, 0, at + 2, "<module>"] for at in range(1, count + 1)]
    rows += [["t", 1, "pin"], ["w", 1000.0, 1000.0 + seconds, list(samples)]]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def shown(data: bytes, spec: JobSpec = SPEC) -> RunLines:
    return lines_of(report_of(processes_of(data), LineReader(spec)))


class Files:
    """The files of a run, which counts what is read."""

    are_local, lists_by_service = True, False

    def __init__(self, **files: bytes) -> None:
        self.files, self.read_count = {f"lines/{name}.jsonl": data for name, data in files.items()}, 0

    async def list(self, run_id: str, folder: str) -> list[RunFile]:
        names = [name for name in self.files if name.startswith(f"{folder}/")]
        return [RunFile(path=name[len(folder) + 1 :], size=len(self.files[name])) for name in names]

    async def read(self, run_id: str, path: str, limit: int) -> bytes:
        self.read_count += 1
        return self.files.get(path, b"")


def run_of(spec: JobSpec = SPEC) -> Run:
    status = RunStatus(state=RunState.RUNNING, version=1)
    return Run(handle=RunHandle("local/x-1"), spec=spec, status=status, created=1000.0, folder="/x")


def entry_of(spec: JobSpec = SPEC) -> Any:
    return SimpleNamespace(run=run_of(spec), handle="local/x-1", parts={})


def test_marks_are_lines_of_the_cell_with_what_computes() -> None:
    found = shown(lines([0, 1, "DataLoader", 61_000, 500, 0, 61_000, 4.0], [0, 3, "", 39_000, 9, 0, 39_000, 95.0]))
    assert [(mark.line, mark.share, mark.work) for mark in found.marks] == [(3, 0.61, 0.04), (5, 0.39, 0.95)]
    assert found.table.rows[found.marks[0].row][-1] == "for x in loader:"
    assert "line 3" in found.sentence


def test_mark_without_gpu_has_the_share_of_the_processor() -> None:
    (mark,) = shown(lines([0, 2, "", 50_000, 12_500, 0])).marks
    assert (mark.line, mark.work) == (4, 0.25)


def test_line_of_two_threads_has_one_mark() -> None:
    found = shown(lines([0, 1, "", 50_000, 0, 0], [1, 1, "queue", 90_000, 0, 0]))
    assert [(mark.line, mark.share) for mark in found.marks] == [(3, 0.5)] and len(found.table.rows) == 2


def test_text_of_a_line_is_that_of_its_author() -> None:
    cell = "x = 1\nx\n"
    spec = JobSpec(name="x", script="# %%aml_submit\nx = 1\n_ = x\n", script_name="cell.py", cell=cell)
    assert shown(lines([0, 1, "", 50_000, 0, 0]), spec).table.rows[0][-1] == "x"


def test_lines_that_no_author_wrote_are_outside_of_the_cell() -> None:
    at = len(CELL.split("\n"))  # node of the first line behind those of the cell
    report = report_of(
        processes_of(lines([0, 1, "", 30_000, 9, 0], [0, at, "", 10_000, 9, 0], count=at)), LineReader(SPEC)
    )
    assert {(use.line, use.text) for use in report.lines} == {(3, "for x in loader:"), (0, "")}


def test_record_of_many_lines_is_small() -> None:
    cell = "\n".join(f"x{at} = {'y' * 300}" for at in range(100))
    spec = msgspec.structs.replace(SPEC, script=f"#\n{cell}", cell=cell)
    found = shown(lines(*[[0, at, "", 1_000, 0, 0] for at in range(1, 91)], count=90), spec)
    assert len(msgspec.json.encode(found)) < 14_000
    assert len(found.marks) <= len(found.table.rows) <= MAX_LINES and found.table.more + len(found.table.rows) == 90


def test_damaged_text_can_be_sent() -> None:
    found = shown(lines([0, 1, "\ud800\n", 90_000, 0, 0], name="\ud800\x1b[2J"))
    assert "\x1b" not in msgspec.json.encode(found).decode()


def test_sentence_is_in_the_text_and_the_table_in_the_html() -> None:
    part = shown(lines([0, 1, "DataLoader", 61_000, 500, 0, 61_000, 4.0]))
    record = RunRecord(handle="local/x-1", run_id="x-1", name="x", target="local", experiment="e", state="running")
    assert parts_text(record) == [] and parts_html(record) == ""
    with_lines = msgspec.structs.replace(record, lines=part)
    assert parts_text(with_lines) == [part.sentence]
    assert "DataLoader" in parts_html(with_lines) and "<code>for x in loader:</code>" in parts_html(with_lines)


def test_files_are_read_again_only_after_they_have_grown() -> None:
    async def check() -> None:
        data = lines([0, 1, "", 50_000, 0, 0])
        files = Files(**{"0-7": data})
        backend, kind, entry = SimpleNamespace(files=files), PartFiles(LinesPart()), entry_of()
        assert await kind.read(entry, backend, has_ended=False)  # type: ignore[arg-type]
        assert kind.is_known(entry, has_ended=False) and not kind.is_known(entry, has_ended=True)
        count = files.read_count
        assert not await kind.read(entry, backend, has_ended=False)  # type: ignore[arg-type]
        assert files.read_count == count
        files.files["lines/0-7.jsonl"] = data + b'["w",1100.0,1200.0,[[0,2,"",90000,0,0]]]\n'
        assert await kind.read(entry, backend, has_ended=True)  # type: ignore[arg-type]
        assert kind.is_known(entry, has_ended=True)
        state: PartState = entry.parts["lines"]
        assert {mark.line for mark in state.known.shown.marks} == {3, 4}

    asyncio.run(check())


@pytest.mark.parametrize("sampled", [True, False])
def test_only_sampled_runs_are_read(sampled: bool) -> None:
    entry = entry_of(msgspec.structs.replace(SPEC, no_lines=not sampled))
    assert PartFiles(LinesPart()).is_known(entry, has_ended=True) is not sampled


def test_each_part_is_a_field_of_the_record() -> None:
    assert {part.name for part in PARTS} <= set(RunRecord.__struct_fields__)

"""Lines of a run: what the job's Python writes, and what readers make of it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.inside.line_files import ProcessLines, processes_of
from jupyter_amltrain.inside.line_report import LineReader, LineReport, report_of
from jupyter_amltrain.inside.line_table import line_table, sentence, table_text
from jupyter_amltrain.inside.speedscope import speedscope_of
from jupyter_amltrain.schema.job import JobSpec
from tests.inside.sampled import run_sampled

SCRIPT = "import time\nfor x in loader:\n    y = x.mean().item()\n    work(y)\n"


def process(
    samples: list[list[Any]], *, rank: int = 0, name: str = "", seconds: float = 100.0, started: float = 1000.0
) -> list[ProcessLines]:
    rows: list[Any] = [
        ["h", 1, 7 + rank, rank, started, name, "/x/script.py", 1],
        ["f", 0, "/x/source/script.py"],
        ["n", 1, 0, 0, 2, "<module>"],
        ["n", 2, 0, 0, 3, "<module>"],
        ["n", 3, 2, 0, 4, "work"],
        ["t", 1, "pin_memory"],
        ["w", started, started + seconds, samples],
    ]
    return processes_of("".join(f"{json.dumps(row)}\n" for row in rows).encode())


def reader() -> LineReader:
    return LineReader(JobSpec(name="x", script=SCRIPT, script_name="script.py"))


def report(samples: list[list[Any]], **more: Any) -> LineReport:
    return report_of(process(samples), reader(), **more)


def test_line_counts_itself_and_what_it_calls() -> None:
    uses = {use.line: use for use in report([[0, 2, "", 20_000, 100, 0], [0, 3, "", 30_000, 30_000, 0]]).lines}
    assert (uses[3].share, uses[3].total_share, uses[4].share) == (0.2, 0.5, 0.3)
    assert uses[4].busy == 1.0 and uses[3].busy == pytest.approx(0.602)
    assert uses[3].waits == {"GPU result": pytest.approx(19.9)}
    assert uses[4].text == "work(y)"


def test_range_of_time_takes_the_part_of_a_window() -> None:
    found = report([[0, 1, "", 100_000, 0, 0]], start=10.0, end=35.0)
    assert found.lines[0].own == pytest.approx(25.0) and found.seconds == pytest.approx(25.0)


def test_ranks_count_together_or_alone() -> None:
    both = [*process([[0, 1, "", 80_000, 0, 0]]), *process([[0, 1, "", 20_000, 0, 0]], rank=1)]
    assert report_of(both, reader()).lines[0].share == pytest.approx(0.5)
    assert report_of(both, reader(), rank=1).lines[0].share == pytest.approx(0.2)


def test_threads_and_workers_have_names_in_the_table() -> None:
    found = [
        *process([[1, 1, "queue", 50_000, 0, 0]]),
        *process([[0, 2, "", 90_000, 0, 0]], name="DataLoader worker 0"),
    ]
    rows = line_table(report_of(found, reader())).rows
    assert {row[0] for row in rows} == {"pin_memory", "DataLoader worker 0"}


def test_sentence_names_the_line_in_which_the_gpu_idles() -> None:
    found = report([[0, 1, "DataLoader", 61_000, 500, 0, 61_000, 4.0], [0, 3, "", 39_000, 9, 0, 39_000, 95.0]])
    assert "61 %" in sentence(found) and "line 2" in sentence(found) and "4 %" in sentence(found)


@pytest.mark.parametrize(
    "samples",
    [
        [[0, 1, "", 90_000, 90_000, 0]],
        [[0, 2, "sleep", 90_000, 0, 0]],
        [[0, 1, "", 90_000, 500, 0, 90_000, 92.0]],
    ],
)
def test_sentence_is_empty_where_nothing_is_wrong(samples: list[list[Any]]) -> None:
    assert sentence(report(samples)) == ""


def test_sentence_of_a_short_run_is_empty() -> None:
    found = report_of(process([[0, 1, "DataLoader", 5_000, 0, 0, 5_000, 4.0]], seconds=6.0), reader())
    assert sentence(found) == ""


def test_damaged_lines_of_a_file_are_left_out() -> None:
    good = json.dumps(["h", 1, 7, 0, 1.0, "", "/x"])
    bad = [
        "",
        "{",
        "null",
        "[]",
        '["n",1,5,0,1,"f"]',
        '["w",1,2,[[0,1]]]',
        '["w",1,"x",[]]',
        '["w",NaN,2,[]]',
        "[" * 9999,
    ]
    text = "\n".join([*bad, good, *bad, '["w",1.0,2.0,[[0,9,"",1000,0,0]]]', '["w",1.0,2.0,[[0,'])
    (found,) = processes_of(text.encode() + b"\xff\n")
    (window,) = found.windows
    assert window.samples[0].node == 0 and report_of([found], reader()).lines[0].line == 0


def test_table_as_text_has_its_columns_and_rows() -> None:
    text = table_text(line_table(report([[0, 3, "", 50_000, 0, 4096]])))
    assert text.splitlines()[0].split()[0] == "line" and "work(y)" in text and "+4.0 MiB" in text


def test_speedscope_file_has_a_stack_for_each_sample() -> None:
    found = speedscope_of(process([[0, 3, "", 50_000, 0, 0], [1, 1, "queue", 1_000, 0, 0]]), reader(), "x")
    frames = [frame["line"] for frame in found["shared"]["frames"]]
    main, thread = found["profiles"]
    assert [[frames[at] for at in stack] for stack in main["samples"]] == [[3, 4]]
    assert "pin_memory" in thread["name"] and main["endValue"] == 50.0


WORK = "import time\nend = time.time() + {}\nwhile time.time() < end:\n    sum(range(50))\n"


def test_script_writes_its_lines(tmp_path: Path) -> None:
    run = run_sampled(tmp_path, WORK.format(1.5), prelude="")
    assert run.done.returncode == 0 and not run.done.stderr
    (one,) = run.processes
    assert sum(use.share for use in run.report.lines if use.line in (3, 4)) > 0.7
    assert one.name == "" and one.rank == 0


def test_script_that_is_not_sampled_writes_nothing(tmp_path: Path) -> None:
    run = run_sampled(tmp_path, WORK.format(0.6), prelude="", AMLTRAIN_LINES="0")
    assert run.done.returncode == 0 and not (tmp_path / "lines").exists()


def test_full_disk_does_not_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a file where the folder should be")
    run = run_sampled(tmp_path, WORK.format(1.0) + "print('end')\n", prelude="")
    assert run.done.stdout == "end\n" and not run.done.stderr


FORKS = """
import os, sys, time, warnings
warnings.simplefilter("error")
def work(seconds):
    end = time.time() + seconds
    while time.time() < end: sum(range(50))
if __name__ == "__main__":
    work(0.5)
    for number in range(5):
        child = os.fork()
        if not child:
            work(0.8 if number == 2 else 0)
            os._exit(0)
        os.waitpid(child, 0)
    work(1.2)
    print("end")
"""


def pythons() -> list[str]:
    """Return this Python, and others that are installed here."""
    found = [sys.executable]
    root = Path.home() / ".pyenv" / "versions"
    for folder in sorted(root.iterdir()) if root.exists() else ():
        version = tuple(map(int, folder.name.split(".")[:2])) if folder.name[:1].isdigit() else (0, 0)
        if version >= (3, 8) and (folder / "bin" / "python").exists():
            found.append(str(folder / "bin" / "python"))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.rpartition("/versions/")[2].partition("/")[0])
def test_fork_warns_of_no_thread_and_both_go_on(python: str, tmp_path: Path) -> None:
    run = run_sampled(tmp_path, FORKS, python=python, prelude="")
    assert (run.done.stdout, run.done.stderr) == ("end\n", "")
    parent, child = sorted(run.processes, key=lambda one: one.started)
    assert parent.windows[-1].samples and child.windows[-1].samples
    assert parent.windows[-1].end - parent.started > 2.0


@pytest.mark.thorough
@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.rpartition("/versions/")[2].partition("/")[0])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
        ("raise ValueError", 1),
        ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", 0),
        ("os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(5)'])", 5),
        ("os.kill(os.getpid(), 9)", -9),
    ],
)
def test_process_ends_as_without_samples(end: str, code: int, python: str, tmp_path: Path) -> None:
    script = f"import os, sys, threading, time\ntime.sleep(0.4)\n{end}\n"
    run = run_sampled(tmp_path, script, python=python, prelude="")
    assert run.done.returncode == code
    assert "ValueError" in end or not run.done.stderr


@pytest.mark.thorough
def test_workers_and_spawned_processes_are_named(tmp_path: Path) -> None:
    script = """
import multiprocessing, time
def work(seconds):
    end = time.time() + seconds
    while time.time() < end: sum(range(50))
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=work, args=(1.5,), name="child by " + method)
        child.start()
        child.join()
"""
    run = run_sampled(tmp_path, script, prelude="")
    assert {one.name for one in run.processes} == {"", "child by fork", "child by spawn"}


@pytest.mark.thorough
def test_script_that_closes_all_descriptors_keeps_its_own_files(tmp_path: Path) -> None:
    script = """
import os, time
for at in range(20):
    os.closerange(3, 100)
    handle = os.open("own.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    time.sleep(0.1)
    os.write(handle, b"x")
"""
    run = run_sampled(tmp_path, script, prelude="")
    assert run.done.returncode == 0 and (tmp_path / "own.txt").read_text() == "x" * 20 and run.processes


@pytest.mark.thorough
def test_start_loads_no_module_of_pythons_library(tmp_path: Path) -> None:
    script = "import sys\nprint(sorted(name for name in sys.modules))\n"
    with_lines = run_sampled(tmp_path, script, prelude="")
    without = run_sampled(tmp_path, script, prelude="", AMLTRAIN_LINES="0")
    more = {*ast.literal_eval(with_lines.done.stdout)} - {*ast.literal_eval(without.done.stdout)}
    assert more <= {"atexit", "_signal", "time"}


@pytest.mark.thorough
def test_lines_of_a_submitted_run_are_shown(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\nfor _ in range(30):\n    time.sleep(0.1)\n")
    env = {**os.environ, "AMLTRAIN_HOME": str(tmp_path / "home"), "AMLTRAIN_QUEUE": str(tmp_path / "queue")}

    def amltrain(*words: str) -> str:
        command = [sys.executable, "-m", "jupyter_amltrain.cli", *words]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout

    amltrain("submit", "train.py")
    amltrain("runs", "wait", "last")
    assert "time.sleep(0.1)" in amltrain("runs", "lines", "last")
    amltrain("submit", "train.py", "--no-lines")
    amltrain("runs", "wait", "last")
    assert "--no-lines" in amltrain("runs", "lines", "last")

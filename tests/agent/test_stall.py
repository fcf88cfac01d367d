"""Stacks of ranks, and what they tell about a run that makes no progress."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_amltrain.agent.distributed import stall

WAITS = """\
{head}
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/runs/a/source/script.py", line 8 in <module>
"""
BACKWARD = """\
{head}
  File "/v/lib/python3.11/site-packages/torch/autograd/graph.py", line 824 in _engine_run_backward
  File "/v/lib/python3.11/site-packages/torch/_tensor.py", line 626 in backward
  File "/runs/a/source/script.py", line 9 in <module>
"""
BUSY = """\
{head}
  File "/v/lib/python3.11/socket.py", line 706 in readinto
  File "/runs/a/source/script.py", line 7 in load
  File "/runs/a/source/script.py", line 12 in <module>
"""
HEADS = ("Stack (most recent call first):", "Current thread 0x00007f (most recent call first):")


@pytest.mark.parametrize("head", HEADS)
def test_file_with_several_stacks_yields_each(head: str) -> None:
    found = stall.stacks("12 34\n" + WAITS.format(head=head) + "\n" + BUSY.format(head=head))
    assert [len(stack.frames) for stack in found] == [3, 3]
    assert [stack.waits_in for stack in found] == ["all_reduce", ""]


@pytest.mark.parametrize("text", ["", "12 34\n", "12 34\nStack (most recent call first):\n", "Stack\n\x00\xff"])
def test_file_without_frames_has_no_stack(text: str) -> None:
    assert stall.stacks(text) == []


def test_rank_that_compiles_inside_a_collective_module_does_not_wait() -> None:
    text = BUSY.replace(
        '/runs/a/source/script.py", line 7 in load', '/v/lib/deepspeed/comm/torch.py", line 51 in build'
    )
    assert of(text).waits_in == ""


def of(text: str) -> stall.Stack:
    return stall.stacks(text.format(head=HEADS[0]))[0]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        pytest.param([WAITS, BUSY], ["rank 1 is in line 5 of the cell", "rank 0 waits in all_reduce"], id="hung"),
        pytest.param([BUSY, BACKWARD, BACKWARD], ["rank 0", "ranks 1, 2 wait in backward"], id="backward"),
        pytest.param([WAITS, WAITS], [], id="all-wait"),
        pytest.param([BUSY, BUSY], [], id="all-compute"),
    ],
)
def test_sentence_names_ranks_that_others_wait_for(ranks: list[str], words: list[str]) -> None:
    found = stall.sentence({rank: of(text) for rank, text in enumerate(ranks)}, "script.py", 2, "cell")
    assert all(word in found for word in words) and bool(found) == bool(words)


def test_rank_outside_of_the_script_is_shown_with_its_call() -> None:
    library = BUSY.replace("/runs/a/source/script.py", "/v/lib/x.py")
    assert "readinto (socket.py:706)" in stall.sentence({0: of(WAITS), 1: of(library)}, "script.py", 0, "cell")


def test_ended_rank_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.stack").write_text("1 12345\n")  # a process with this number, started at another time
    signaled: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: signaled.append(pid))
    assert stall.request(str(tmp_path)) is False and signaled == []


def test_process_that_closed_the_file_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ranks").mkdir()
    path = tmp_path / "ranks" / "0.stack"
    signaled: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: signaled.append(pid))
    with path.open("w") as file, (tmp_path / "other").open("w") as other:
        start = stall._start_time(os.getpid())
        path.write_text(f"{os.getpid()} {start} {other.fileno()}\n")
        assert not stall.request(str(tmp_path)) and not signaled
        path.write_text(f"{os.getpid()} {start} {file.fileno()}\n")
        assert stall.request(str(tmp_path)) and signaled == [os.getpid()]

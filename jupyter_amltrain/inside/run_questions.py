"""Questions to a run: where its threads are, what an expression is in there, and statements that change it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.agent.plain_text import without_codes
from jupyter_amltrain.agent.protocol import SAVE_REQUEST
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import CommandError, RunError
from jupyter_amltrain.inside.line_report import LineReader
from jupyter_amltrain.inside.run_lines import line_reader
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.text import seconds_text

#: Calls of a stack and threads that are shown.
MAX_CALLS, MAX_THREADS = 12, 40
_MAX_TEXT = 400


class StackCall(NamedTuple):
    """A call on a stack.

    Attributes
    ----------
    file
        Name of the file; empty for the cell or script of the run.
    line
        Line of the file, or of the cell.
    text
        The line itself, if the run has a copy of its file.
    own
        Whether it is a line of the user's.
    """

    file: str
    line: int
    function: str
    text: str
    own: bool


class ThreadStack(NamedTuple):
    """Where one thread of a run is, outermost call first.

    Attributes
    ----------
    process
        Name of the process; empty for the main one of a rank.
    thread
        Name of the thread; empty for the main one.
    """

    rank: int
    pid: int
    process: str
    thread: str
    calls: tuple[StackCall, ...]


class RunStack(NamedTuple):
    """Where the threads of a run are.

    Attributes
    ----------
    silent
        Rank and pid of processes that did not answer.
    """

    threads: tuple[ThreadStack, ...]
    silent: tuple[tuple[int, int], ...]


async def read_stack(backend: Backend, run: Run) -> RunStack:
    """Ask all processes of a run where they are."""
    reply = await put_question(backend, run, {"kind": "stack"})
    raw = [(answer, thread) for answer in _rows(reply, "answers") for thread in _rows(answer, "threads")]
    paths = list(dict.fromkeys(call[0] for _, thread in raw for call in _calls(thread)))
    reader = await line_reader(backend, run, [path for path in paths if is_own(run, path)])
    threads = [
        ThreadStack(
            rank=_number(answer, "rank"),
            pid=_number(answer, "pid"),
            process=_line(answer.get("name")),
            thread="" if thread.get("main") is True else _line(thread.get("name")) or "thread",
            calls=tuple(_call(run, reader, call) for call in reversed(_calls(thread))),
        )
        for answer, thread in raw
    ]
    silent = tuple((_number(row, "rank"), _number(row, "pid")) for row in _rows(reply, "silent"))
    return RunStack(tuple(threads), silent)


async def ask(backend: Backend, run: Run, kind: str, text: str, rank: int) -> str:
    """Evaluate an expression (``peek``) or run statements (``poke``) in the main process of a rank; return the text.

    Raises
    ------
    CommandError
        The expression raised, or the main thread did not get to it: then the message says where it is.
    """
    reply = await put_question(backend, run, {"kind": kind, "text": text, "rank": rank, "who": socket.gethostname()})
    answers = _rows(reply, "answers")
    if not answers:
        where = where_text(await read_stack(backend, run), rank)
        raise CommandError(f"{run.handle} did not answer: {where}.", hint="Try again later.", code=f"{kind}.silent")
    error = answers[0].get("error")
    if isinstance(error, str) and error:
        raise CommandError(f"{kind}: {_line(error)}", code=f"{kind}.error")
    value = answers[0].get("text")
    return value if isinstance(value, str) else ""


class CheckpointAnswer(NamedTuple):
    """What became of the request for a checkpoint.

    Attributes
    ----------
    is_saved
        Whether the script has saved one since.
    folder
        Checkpoint folder, on the machine of the run.
    name
        Newest file or folder in there; empty without one.
    time
        Unix seconds of its last change.
    """

    is_saved: bool
    folder: str
    name: str
    time: float


async def ask_checkpoint(backend: Backend, run: Run) -> CheckpointAnswer:
    """Ask the script of a run for a checkpoint now, and wait for it for some seconds."""
    reply = await put_question(backend, run, {"kind": "save"})
    seconds = reply.get("time")
    return CheckpointAnswer(
        is_saved=reply.get("is_saved") is True,
        folder=_line(reply.get("folder")),
        name=_line(reply.get("name")),
        time=float(seconds) if isinstance(seconds, (int, float)) else 0.0,
    )


def checkpoint_text(answer: CheckpointAnswer, now: float) -> str:
    """Return what became of the request, as a sentence or two.

    Parameters
    ----------
    now
        Unix seconds.
    """
    place = f"{answer.folder}/{answer.name}"
    if answer.is_saved:
        return f"Saved: {place}" if answer.name else f"The script has answered, but {answer.folder} is empty."
    newest = f"The newest one, {seconds_text(max(0.0, now - answer.time))} old, is {place}." if answer.name else ""
    text = f"Asked: the script saves when it next looks for {answer.folder}/{SAVE_REQUEST} (docs/checkpoints.md)."
    return f"{text} {newest}".strip()


async def put_question(backend: Backend, run: Run, question: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put a question to a run that is running; return what its agent answers.

    Raises
    ------
    CommandError
        The target has no agent.
    RunError
        The run has ended.
    """
    if backend.questions is None:
        raise CommandError(
            f"Runs on {run.target!r} cannot be asked.",
            hint="Targets with our agent can: this machine and machines over SSH.",
            code="ask.target",
        )
    if run.status.state.terminal:
        raise RunError(f"{run.handle} has ended.", code="ask.ended")
    return await backend.questions.ask(run.run_id, question)


def is_own(run: Run, path: str) -> bool:
    """Whether a file is the user's: the script, or beside it in the project."""
    return path.endswith(f"/{run.spec.script_name}") or bool(_project_file(run, path))


def _project_file(run: Run, path: str) -> str:
    from jupyter_amltrain.inside.line_report import source_path

    return "" if "-packages/" in path else source_path(run.spec, path)


def _call(run: Run, reader: LineReader, call: Sequence[Any]) -> StackCall:
    path, line, function = call
    own = is_own(run, path)
    name = reader.file(path) if own else "/".join(path.split("/")[-2:])
    return StackCall(name, reader.line(path, line), function, reader.text(path, line) if own else "", own)


def stack_text(stack: RunStack) -> str:
    """Return the stacks as text, each with its outermost call first."""
    parts = []
    for thread in stack.threads[:MAX_THREADS]:
        shown = thread.calls[-MAX_CALLS:]
        lines = [f"  ... {len(thread.calls) - len(shown)} outer calls"] if len(shown) < len(thread.calls) else []
        lines += [f"  {'' if call.own else '  '}{call_text(call)}" for call in shown]
        parts.append("\n".join([_head(thread), *lines]))
    if len(stack.threads) > MAX_THREADS:
        parts.append(f"and {len(stack.threads) - MAX_THREADS} more threads")
    parts += [
        f"rank {rank}, process {pid}: no answer; a native function may keep the lock of its interpreter"
        for rank, pid in stack.silent
    ]
    return "\n".join(parts) or "No process of this run has run a file of yours so far."


def _head(thread: ThreadStack) -> str:
    process = thread.process or "main process"
    return f"rank {thread.rank}, {process} ({thread.pid}), {thread.thread or 'main thread'}:"


def call_text(call: StackCall) -> str:
    """Return ``line 14, train: for x, y in loader`` or ``threading.py:320, wait``."""
    place = f"line {call.line}" if not call.file else f"{call.file}:{call.line}"
    function = "" if call.function == "<module>" else f", {call.function}"
    return f"{place}{function}" + (f": {call.text}" if call.text else "")


def where_text(stack: RunStack, rank: int) -> str:
    """Return where the main thread of a rank is, as a phrase."""
    main = next((one for one in stack.threads if one.rank == rank and not one.process and not one.thread), None)
    if main is None or not main.calls:
        return "its main thread is in a native function, or its script has not begun"
    own = next((call for call in reversed(main.calls) if call.own), main.calls[-1])
    return f"its main thread is in {call_text(own)}"


# ---- values of a job, which may be anything


def _rows(value: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = value.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _calls(thread: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    calls = thread.get("calls")
    found = []
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, list) and len(call) == 3 and isinstance(call[1], int):
            found.append((_line(call[0]), call[1], _line(call[2])))
    return found


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) else 0


def _line(text: Any) -> str:
    """Return a text of a job as one line of bounded length."""
    return without_codes(str(text or "")[:_MAX_TEXT])

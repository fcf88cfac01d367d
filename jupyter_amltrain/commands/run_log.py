"""``runs logs``: the log of a run, of a step or of a trial; printed or followed."""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parser import Parser, run_flag
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError, RunError, TargetError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.text import bytes_text

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.run import TrackedRun

#: Maximum size of a log that is printed whole; of a larger log the start and the end are printed (bytes).
MAX_LOG_BYTES = 200_000
_LOG_HEAD_BYTES = 20_000
#: Bytes that are read for the last lines of a log, and for each of them: a progress bar may write many for one line.
_TAIL_BYTES, _TAIL_LINE_BYTES = 64 * 1024, 4096
#: Pause between two reads of a followed log (seconds).
_FOLLOW_INTERVAL_S = 0.25
#: Bytes of a followed log that are read again before the new ones: a difference shows that the job rewrote the log.
_OVERLAP_BYTES = 64
#: Bytes of a log that are read in one call.
_BLOCK_BYTES = 1 << 20


def _flags(parser: Parser) -> None:
    run_flag(parser)
    parser.flag("--tail", metavar="N", type=flag_types.count, help="only the last N lines", samples=("50", "200"))
    parser.flag("-f", "--follow", action="store_true", help="continue until the run ends")
    parser.flag(
        "--rank",
        metavar="N",
        type=flag_types.count,
        help="log of one process of a distributed run; default all, marked",
    )
    parser.flag("--raw", action="store_true", help="as written, with each refresh of a progress bar")
    parser.flag("--step", metavar="NAME", help="log of one step or trial, by its name or id")


def _logs(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    run = api.attach(args.run)
    tail = args.tail if args.tail is not None else (context.log_lines or None)
    rank, spec = args.rank, run.spec
    # At a service all processes share one status; a log may show more of them than the submit named.
    ranks = max(run.status.ranks, spec.resources.nodes * (spec.distribution.processes or 1))
    if rank is not None and rank >= ranks and not run.read_log(0, 1, rank)[0]:
        raise CommandError(
            f"--rank {rank}: {run.handle} has {ranks} process{'es' if ranks > 1 else ''}.",
            hint=f"Ranks: 0 to {ranks - 1}." if ranks > 1 else "Leave --rank out.",
        )
    if not args.follow:
        text = child_log_text(run, args.step, tail, args.raw) if args.step else log_text(run, tail, rank, args.raw)
        return Result(text, verbatim=True, notice="" if text.strip("\n") else no_log_text(run))
    try:
        if args.step:
            follow_child(run, args.step, context.write, tail)
        else:
            follow(run, context.write, tail, rank)
    except KeyboardInterrupt:
        if not context.magic:
            raise
        return Result(f"\n{run.handle} continues. {continue_hint(run)}")
    return Result()


LOGS = Command(
    verb="logs",
    summary="Print a run's log.",
    run=_logs,
    flags=_flags,
    examples=Examples(("%aml_runs logs last --tail 50",), ("amltrain runs logs last --follow",)),
)


def log_text(run: TrackedRun, tail: int | None = None, rank: int | None = None, raw: bool = False) -> str:
    """Return the log as a terminal would show it; of a long log the start, the end and the path.

    Without a rank, the logs of all processes follow one after another, marked.

    Parameters
    ----------
    raw
        Return what the job has written, with each refresh of a progress bar.
    """
    from jupyter_amltrain.kernel.terminal_screen import shown
    from jupyter_amltrain.run import marked

    if rank is None and (ranks := run.status.ranks) > 1:
        return "".join(marked(log_text(run, tail, one, raw), one) for one in range(ranks))
    show = str if raw else shown
    if tail is not None:
        return _last_lines(show(run.log_end(max(_TAIL_BYTES, tail * _TAIL_LINE_BYTES), rank=rank or 0)), tail)
    data, size = run.read_log(-MAX_LOG_BYTES, MAX_LOG_BYTES, rank or 0)
    if size <= MAX_LOG_BYTES:
        return show(data.decode("utf-8", "replace"))
    head = run.read_log(0, _LOG_HEAD_BYTES, rank or 0)[0].decode("utf-8", "replace").rpartition("\n")[0]
    end = data[_LOG_HEAD_BYTES:].decode("utf-8", "replace").partition("\n")[2]
    gap = f"... {bytes_text(size - MAX_LOG_BYTES)} omitted; the whole log: {run.log_path} ..."
    return f"{show(head)}\n{gap}\n{show(end)}"


def child_log_text(run: TrackedRun, step: str, tail: int | None = None, raw: bool = False) -> str:
    """Return the log of a step or trial as a terminal would show it."""
    from jupyter_amltrain.kernel.terminal_screen import shown

    text = run.logs(step=step) if raw else shown(run.logs(step=step))
    return text if tail is None else _last_lines(text, tail)


def _last_lines(text: str, count: int) -> str:
    lines = text.removesuffix("\n").split("\n")
    return "\n".join(lines[-count:]) if count else ""


def follow_child(run: TrackedRun, step: str, write: Callable[[str], Any], tail: int | None = None) -> None:
    """Write the log of a step or trial as it grows, until the step or trial has ended."""
    written = 0
    while True:
        done = run.child(step).ended is not None or run.status.state.terminal  # before the read, as in `follow`
        text = run.logs(step=step)
        if not written and tail is not None:
            written = len(text) - len("\n".join(text.splitlines()[-tail:])) if tail else len(text)
        write(text[written:])
        written = max(written, len(text))
        if done:
            return
        time.sleep(_FOLLOW_INTERVAL_S)


def no_log_text(run: TrackedRun) -> str:
    """Return the message that is printed instead of an empty log."""
    ended = run.run.status.state.terminal
    state = "wrote no log" if ended else "has no log yet"
    return f"{run.handle} {state}. To see its state: %aml_runs show {run.handle}"


class _Follower:
    """Writes what is new in the log of one process.

    Parameters
    ----------
    tail
        Number of lines to begin with; ``None`` for all.
    mark
        Text before each line; with it only whole lines are written.
    """

    def __init__(self, run: TrackedRun, write: Callable[[str], Any], rank: int, tail: int | None, mark: str) -> None:
        self._run, self._write, self._rank, self._mark = run, write, rank, mark
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset, self._last, self._line = 0, b"", ""
        if tail is not None:
            text = run.logs(tail=tail, rank=rank)
            self._last, self._offset = run.read_log(-_OVERLAP_BYTES, _OVERLAP_BYTES, rank)
            if text:
                self._emit(text + "\n", last=False)

    def read(self, *, last: bool) -> None:
        """Write the bytes that have arrived; `last` means that no more will come."""
        from jupyter_amltrain.kernel.streams import LOG_RESTARTED

        while True:
            with contextlib.suppress(TargetError):
                data, end = self._run.read_log(self._offset - len(self._last), _BLOCK_BYTES, self._rank)
                if not data.startswith(self._last):  # emptied or rewritten, perhaps to fewer bytes
                    self._offset, self._last = 0, b""
                    self._decoder.reset()
                    self._write(LOG_RESTARTED)
                    continue
                if block := data[len(self._last) :]:
                    self._offset, self._last = end, data[-_OVERLAP_BYTES:]
                    self._emit(self._decoder.decode(block), last=False)
                    continue
            break
        if last:
            self._emit("", last=True)

    def _emit(self, text: str, *, last: bool) -> None:
        if not self._mark:
            if text:
                self._write(text)
            return
        whole, _, self._line = (self._line + text).rpartition("\n")
        lines = whole.splitlines() if whole else []
        if last and self._line:
            lines, self._line = [*lines, self._line], ""
        if lines:
            self._write("".join(f"{self._mark}{line}\n" for line in lines))


def follow(run: TrackedRun, write: Callable[[str], Any], tail: int | None = None, rank: int | None = None) -> None:
    """Write the log as it grows, until the run has ended; does not raise if the run failed.

    Without a rank, lines of all processes are written as they arrive, marked.
    """
    readers: dict[int, _Follower] = {}
    while True:
        status = run.status  # before the read: if it has ended, this read gets the whole rest
        done, ranks = status.state.terminal, status.ranks if rank is None else 1
        for one in range(ranks) if rank is None else [rank]:
            if one not in readers:
                mark = f"[rank {one}] " if ranks > 1 else ""
                readers[one] = _Follower(run, write, one, tail, mark)
            readers[one].read(last=done)
        if done:
            return
        try:
            run.wait(_FOLLOW_INTERVAL_S)
        except (TimeoutError, RunError):
            continue


def continue_hint(run: TrackedRun) -> str:
    """Return the commands for a run that continues."""
    return f"To stop it: %aml_runs cancel {run.handle}. To wait again: %aml_runs wait {run.handle}."

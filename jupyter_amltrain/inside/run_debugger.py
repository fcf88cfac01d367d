"""A debugger for a run: what a person types goes to the process that is stopped, what it shows comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_amltrain.agent.plain_text import without_codes
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import CommandError, RunError
from jupyter_amltrain.inside.run_lines import line_reader
from jupyter_amltrain.inside.run_questions import put_question
from jupyter_amltrain.schema.run import Run

#: What the prompt says, as Python's own does.
PROMPT = "(Pdb) "
_MAX_TEXT = 200_000
#: Seconds between two looks at a run that has not started.
_QUEUED_S = 0.5

Answer = Mapping[str, Any]


class RunDebugger:
    """Talks to one process of a run.

    Parameters
    ----------
    call
        Runs a question to a run, and returns its answer.
    rank
        Number of the process in a distributed run.
    write
        Shows a text to the person.
    """

    def __init__(
        self,
        call: Callable[[Callable[[Backend, Run], Any]], Any],
        rank: int,
        write: Callable[[str], None],
    ) -> None:
        self._call, self._rank, self._write = call, rank, write

    def run(self, read: Callable[[str], str]) -> None:
        """Show where the process is stopped, and pass on lines until the run has ended.

        Parameters
        ----------
        read
            Asks the person for a line: ``input``.

        Raises
        ------
        CommandError
            The run has no debugger.
        """
        answer: Answer = {"state": "going"}
        is_noted = False
        try:
            while answer.get("state") != "ended":
                if answer.get("state") == "stopped":
                    is_noted = False
                    answer = self._ask(text=read(PROMPT).replace("\n", " "))
                elif answer.get("state") == "waiting":
                    answer = self._ask(pid=answer.get("pid"), number=answer.get("number"))
                else:
                    answer = self._ask(text=None)
                    if answer.get("state") == "stopped":
                        self._write(self._place_text(answer))
                    elif not is_noted:
                        is_noted = True
                        self._write("The run goes on until a breakpoint or an exception. Interrupt to leave it.")
                text = without_codes(str(answer.get("text") or "")[:_MAX_TEXT], "\n\t").rstrip("\n")
                if text:
                    self._write(text)
        except RunError as error:
            if error.code != "ask.ended":
                raise
        except (KeyboardInterrupt, EOFError):
            self._write("Left. A process that is stopped stays so for up to an hour.")
            return
        self._write("The script has ended.")

    def _place_text(self, answer: Answer) -> str:
        text: str = self._call(lambda backend, run: _place_text(backend, run, answer))
        return text

    def _ask(self, **question: Any) -> Answer:
        try:
            found: Answer = self._call(
                lambda backend, run: put_question(backend, run, {"kind": "debug", "rank": self._rank, **question})
            )
        except CommandError as error:
            if error.code != "ask.state":
                raise
            time.sleep(_QUEUED_S)  # in the queue, or it has just ended
            return {"state": "going"}
        return found


async def _place_text(backend: Backend, run: Run, answer: Answer) -> str:
    """Return ``Stopped in line 12 of the cell, in train: loss.backward()``, and the exception that has ended it."""
    path, line = str(answer.get("file") or ""), answer.get("line")
    reader = await line_reader(backend, run, [path])
    number = line if isinstance(line, int) else 0
    place = reader.file(path)
    where = f"{place}:{number}" if place else f"line {reader.line(path, number)}"
    if "/ipykernel_" in path:  # a notebook as a job, whose cells are no files
        where = f"line {number} of its cell"
    raised = str(answer.get("raised") or "")
    return f"{raised} in {where}." if raised else f"Stopped in {where}."

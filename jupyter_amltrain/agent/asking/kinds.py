"""The kinds of questions to a run, and what answers each: a row, and a function of a run and the question."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from ..debugging import debugger
from ..protocol import AgentError
from . import checkpoint_request, questions
from .asked_run import AskedRun

Json = Dict[str, Any]

KINDS: Dict[str, Callable[[AskedRun, Mapping[str, Any]], Json]] = {
    "stack": questions.ask,
    "peek": questions.ask,
    "poke": questions.ask,
    "save": checkpoint_request.save,
    "debug": debugger.talk,
}


def answer(run: AskedRun, question: Mapping[str, Any]) -> Json:
    """Return what the run answers to a question.

    Raises
    ------
    AgentError
        The run answers no such question, or not now, or not to this user.
    """
    if run.spec.get("sealed"):
        raise AgentError("CommandError", "This run does not answer: it was submitted with --sealed.", "ask.sealed")
    kind = question.get("kind")
    if kind not in KINDS:
        raise AgentError("CommandError", "Not a question that a run answers.")
    run.check_open()
    return KINDS[kind](run, question)

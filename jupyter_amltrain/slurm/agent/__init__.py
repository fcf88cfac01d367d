"""Agent's part of the guest for Slurm: calls on the login node, and the supervisor of a node of an allocation.

It travels in the agent's file (:mod:`jupyter_amltrain.agent.guests`): Python 3.8 and the standard library.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List


def _call(module: str, function: str) -> Callable[..., Dict[str, Any]]:
    def call(*args: Any) -> Dict[str, Any]:
        found = importlib.import_module("%s.%s" % (__name__, module))  # a node of an allocation does not need it
        answer: Dict[str, Any] = getattr(found, function)(*args)
        return answer

    return call


#: Calls of a kernel, by name: ``slurm.submit`` and so on.
CALLS = {
    **{name: _call("calls", name) for name in ("submit", "poll", "cancel", "delete", "info", "limits", "ask")},
    **{name: _call("calls", name) for name in ("probe", "overview")},
    "quota": _call("accounting", "quota"),
    "list": _call("calls", "list_runs"),
    **{name: _call("arrays", name) for name in ("open_array", "release_array", "cancel_array")},
}


def main(argv: List[str]) -> int:
    """Command ``agent.pyz guest slurm``: the supervisor of a node; returns its exit code."""
    from .node import main as node_main

    return node_main(argv)

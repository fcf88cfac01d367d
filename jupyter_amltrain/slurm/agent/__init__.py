"""Agent's part of the guest for Slurm: calls on the login node, and the supervisor of a node of an allocation.

It travels in the agent's file (:mod:`jupyter_amltrain.agent.guests`): Python 3.8 and the standard library.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List


def _call(name: str) -> Callable[..., Dict[str, Any]]:
    def call(*args: Any) -> Dict[str, Any]:
        from .calls import CALLS as found  # a node of an allocation does not need them

        return found[name](*args)

    return call


#: Calls of a kernel, by name: ``slurm.submit`` and so on.
CALLS = {
    name: _call(name)
    for name in ("submit", "poll", "list", "cancel", "delete", "info", "limits", "probe", "overview", "ask")
}


def main(argv: List[str]) -> int:
    """Command ``agent.pyz guest slurm``: the supervisor of a node; returns its exit code."""
    from .node import main as node_main

    return node_main(argv)

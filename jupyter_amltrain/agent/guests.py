"""Agent parts of plug-ins: packages that travel in the agent's file, with calls and a command of their own.

The call ``NAME.OP`` is ``CALLS["OP"]`` of the package, and ``agent.pyz guest NAME ...`` is its ``main``.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict

#: Package of the agent's file that has the parts of plug-ins as subpackages.
PACKAGE = "amltrain_guests"
#: Packages by name where this is not the agent's file: a kernel calls its own agent.
_registered: Dict[str, str] = {}


def register(name: str, package: str) -> None:
    """Let the calls ``name.OP`` of this process be those of a package."""
    _registered[name] = package


def clear() -> None:
    """Forget what was registered; for tests."""
    _registered.clear()


def part(name: str) -> Any:
    """Import and return the package of a plug-in.

    Raises
    ------
    ImportError
        This agent has no such part.
    """
    return importlib.import_module(_registered.get(name) or "%s.%s" % (PACKAGE, name))


def handler(op: str) -> Callable[..., Dict[str, Any]]:
    """Return the function of a call ``NAME.OP``.

    Raises
    ------
    LookupError, ImportError
        There is none.
    """
    name, _, call = op.partition(".")
    if not call or not name.isidentifier():
        raise LookupError(op)
    found: Callable[..., Dict[str, Any]] = part(name).CALLS[call]
    return found

"""Runs a script in this process, and returns what is kept of the exception that ends it."""

from __future__ import annotations

import itertools
import linecache
import time
from typing import Any, NamedTuple

from jupyter_amltrain.agent.failures.failure_hook import FailureReader
from jupyter_amltrain.agent.failures.value_facts import summary

_numbers = itertools.count()


class Failed(NamedTuple):
    """What is kept of a failure."""

    content: dict[str, Any]
    seconds: float

    @property
    def frames(self) -> list[dict[str, Any]]:
        """All frames, those of the last exception first."""
        return [frame for error in self.content["errors"] for frame in error["frames"]]

    def named(self) -> dict[str, str]:
        """Names in the failing lines, and what is shown of each; the innermost frame counts."""
        return self._shown(True)

    def shown(self) -> dict[str, str]:
        """All variables, and what is shown of each."""
        return {**self._shown(False), **self._shown(True)}

    def _shown(self, named: bool) -> dict[str, str]:
        values = [value for frame in reversed(self.frames) for value in frame["values"] if value["named"] is named]
        return {value["name"]: summary(value) for value in values}


def failed(code: str, **names: Any) -> Failed:
    """Run the code of a script, whose exception must end it.

    Parameters
    ----------
    names
        Further names of the script.
    """
    file = f"/nowhere/project/script-{next(_numbers)}.py"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    compiled = compile(code, file, "exec")
    try:
        exec(compiled, {"__name__": "__main__", **names})
    except BaseException as error:
        slot = BaseException.__dict__["__traceback__"]  # the exception may have attributes of its own making
        slot.__set__(error, slot.__get__(error).tb_next)  # without this file
        reader = FailureReader()
        began = time.monotonic()
        reader.read(error)
        return Failed(reader.content(), time.monotonic() - began)
    raise AssertionError("the script has not failed")

"""One Python process that holds the unmodified SDK: it runs snippets that tests send and answers with their value.

``import azure.ai.ml`` takes seconds, so the tests of a file share one. `main` runs in the child.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from typing import Any

_SETUP = """
import os, time
from azure.ai.ml import MLClient
from azure.ai.ml.entities import *
from azure.core.exceptions import *
from azure.identity import DefaultAzureCredential

def field(found, name):
    "The SDK's objects read with snake or camel case (1.35 changed it)."
    head, *rest = name.split("_")
    value = getattr(found, name, None)
    return found.__dict__.get(head + "".join(part.title() for part in rest)) if value is None else value
"""


class SnippetError(Exception):
    """The snippet raised: `kind` is the exception's class, `status` its HTTP status where it has one."""

    def __init__(self, kind: str, text: str, status: int | None) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.status = kind, status


class SdkProcess:
    """Starts the process with an environment and sends it snippets."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-u", __file__],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, code: str) -> Any:
        """Run statements; the last line is an expression whose JSON value comes back.

        Raises
        ------
        Said
            The snippet raised.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("\x01"):
                answer = json.loads(line[1:])
                if "error" in answer:
                    raise SnippetError(*answer["error"])
                return answer["value"]
        raise AssertionError("the SDK's process died")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def _main() -> None:
    names: dict[str, Any] = {}
    out = sys.stdout
    sys.stdout = sys.stderr
    exec(_SETUP, names)
    for line in sys.stdin:
        *before, last = json.loads(line).strip().splitlines()
        try:
            exec("\n".join(before), names)
            answer: dict[str, Any] = {"value": eval(last, names)}
            text = json.dumps(answer)
        except Exception as error:
            traceback.print_exc()
            text = json.dumps({"error": [type(error).__name__, str(error), getattr(error, "status_code", None)]})
        out.write("\x01" + text + "\n")
        out.flush()


if __name__ == "__main__":
    _main()

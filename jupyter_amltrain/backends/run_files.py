"""Which file of a run folder a stream is, and what a file with a value of ``--out`` holds."""

from __future__ import annotations

import json
from typing import Any

from jupyter_amltrain.backends.base import stream_of
from jupyter_amltrain.errors import ResultMissing

_FILES = {
    "log": "log/rank-0.txt",
    "metrics": "metrics/rank-0.jsonl",
    "telemetry": "telemetry/node-{}.jsonl",
    "minutes": "telemetry/minutes-{}.jsonl",
    "summary": "telemetry/summary-{}.json",
}
#: Bytes of a value.
OUTPUT_LIMIT = 1 << 20


def file_of(stream: str) -> str:
    """Path of a stream in a run folder."""
    name, node = stream_of(stream)
    return _FILES[name].format(node)


def output_of(name: str, data: bytes, handle: str) -> Any:
    """The value in ``outputs/NAME.json``, or the :class:`ResultMissing` that says why there is none."""
    if not data:
        return ResultMissing(
            f"--out {name}: the script of {handle} left no value; they are taken after its last line.",
            hint=f"Does it end before, by sys.exit()? See: %aml_runs logs {handle}",
        )
    if len(data) > OUTPUT_LIMIT:
        return ResultMissing(
            f"--out {name}: the value is over {OUTPUT_LIMIT >> 20} MiB.",
            hint="Log it as an artifact: mlflow.log_dict, or save a file in $AML_OUTPUT_DIR.",
        )
    try:
        value = json.loads(data)
    except ValueError:
        value = {"error": "not JSON"}
    if "error" in value or "value" not in value:
        return ResultMissing(
            f"--out {name}: {value.get('error', 'no value')} in {handle}.",
            hint=f"Set {name} to a number, text, list or dict at the top level of the cell.",
        )
    return value["value"]

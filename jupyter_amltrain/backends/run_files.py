"""Files of a run: which one a stream is, what a file with a value of ``--out`` holds, and how a thread reads them."""

from __future__ import annotations

import json
from typing import Any

from jupyter_amltrain.backends.base import Backend, stream_of
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.naming import tilde

_FILES = {
    "log": "log/rank-{}.txt",
    "metrics": "metrics/rank-0.jsonl",
    "telemetry": "telemetry/node-{}.jsonl",
    "minutes": "telemetry/minutes-{}.jsonl",
    "summary": "telemetry/summary-{}.json",
}
#: Bytes of a value, and levels of lists and mappings in it.
OUTPUT_LIMIT, MAX_DEPTH = 1 << 20, 100
#: Key of a record that the end of a cell writes; all other JSON is a value.
MARK = "amltrain"
#: How long a small file of a run is waited for.
READ_TIMEOUT_S = 60.0
_READERS = {
    "parquet": "pandas.read_parquet({})",
    "csv": "pandas.read_csv({})",
    "npy": "numpy.load({})",
    "skops": "skops.io.load({})",
    "joblib": "joblib.load({})",
    "pt": "torch.load({})",
    "pickle": "pickle.load(open({}, 'rb'))",
    "json": "json.load(open({}))",
}


class RunFiles:
    """Files of one run, for code beside the loop. Every method blocks; a run without files has none of them.

    Parameters
    ----------
    run_id
        Empty for a run that its target has not accepted.
    """

    def __init__(self, loop: LoopThread, backend: Backend, run_id: str) -> None:
        self._loop, self._backend, self._run_id = loop, backend, run_id

    def read(self, path: str) -> bytes:
        """A file, by its path in the run's folder; empty where there is none or the target does not answer."""
        if not self._run_id:
            return b""
        try:
            return self._loop.call(self._backend.read_file(self._run_id, path), READ_TIMEOUT_S)
        except AmlTrainError:
            return b""

    def local_copy(self, path: str = "") -> str | None:
        """Path on this machine of a file or folder of the run; ``None`` where there is none."""
        return self._loop.call(self._backend.local_copy(self._run_id, path), None) if self._run_id else None


def file_of(stream: str) -> str:
    """Path of a stream in a run folder."""
    name, number = stream_of(stream)
    return _FILES[name].format(number)


def output_of(name: str, data: bytes, handle: str, folder: str = "") -> Any:
    """The value in ``outputs/NAME.json``, or the :class:`ResultMissing` that says why there is none.

    A cell's file is a record that we wrote there. What a ``.py`` file wrote itself is the value, whatever it is.

    Parameters
    ----------
    folder
        Where the run's ``outputs/`` is, for people; empty where it is not on this machine.
    """

    def missing(why: str, hint: str = "") -> ResultMissing:
        return ResultMissing(f"--out {name}: {why} ({handle}).", hint=hint, name=name, why=why)

    where = f"It is in {f'{tilde(folder)}/' if folder else 'the outputs of the run: '}{name}.json"
    if not data:
        return missing(
            "the script left no value; they are taken after its last line",
            f"Does it end before, by sys.exit()? See: %aml_runs logs {handle}",
        )
    if len(data) > OUTPUT_LIMIT:
        return missing(f"the value is over {OUTPUT_LIMIT >> 20} MiB", where)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return missing(f"{name}.json is not JSON", f"Write it by: json.dump(value, open({name + '.json'!r}, 'w'))")
    if _depth(value) > MAX_DEPTH:
        return missing(f"the value nests over {MAX_DEPTH} levels deep", where)
    record = _record(name, value)
    if record is None:
        return value
    if "value" in record and "error" not in record:
        return record["value"]
    why, file = str(record.get("error") or "no value"), record.get("file")
    if not isinstance(file, str) or "/" in file or "\\" in file:
        return missing(why, f"Set {name} to a number, text, list or dict at the top level of the cell.")
    place = f"{tilde(folder)}/{file}" if folder else f"{file} in the outputs of the run"
    return missing(f"{why}, saved as {place}", _reader(place if folder else file))


def _record(name: str, value: Any) -> dict[str, Any] | None:
    """`value` where it is a record of our own; those of older versions have no mark."""
    if not isinstance(value, dict):
        return None
    old = value.get("name") == name and value.keys() in ({"name", "value"}, {"name", "error"})
    return value if MARK in value or old else None


def _depth(value: Any) -> int:
    """Levels of lists and mappings in a JSON value."""
    depth, level = 0, [value]
    while level := [
        inner
        for one in level
        if isinstance(one, dict | list)
        for inner in (one.values() if isinstance(one, dict) else one)
    ]:
        depth += 1
    return depth


def _reader(file: str) -> str:
    """What to type to have the value of a file again."""
    call = _READERS.get(file.rpartition(".")[2])
    return f"Read it: {call.format(repr(file))}" if call else ""

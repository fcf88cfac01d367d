"""Imports a run folder into the MLflow store; repeatable at any point, also while the run is going.

The number of the last replayed record is a hidden tag of the run, written in the same
transaction as the rows of its chunk. If the import is killed, the next one resumes there;
everything outside the transaction (experiments, traces, files) may be repeated
without any effect. :mod:`jupyter_amltrain.tracking.live_import` repeats a short form of it while a run lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent import testing
from jupyter_amltrain.agent.mlflow.journal import clean, parse, well_formed
from jupyter_amltrain.agent.mlflow.sink_state import experiments_of
from jupyter_amltrain.agent.mlflow.sink_traces import change_traces
from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.errors import AmlTrainError, StateError
from jupyter_amltrain.schema.provenance import provenance_of
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.state_dir import check_schema, locked, project_store, read_json, write_json

#: Tag of the job's run: number of its last record in the store. MLflow's page hides tags that begin with ``mlflow.``.
CURSOR = "mlflow.amltrain.cursor"
#: Its name in older stores.
OLD_CURSOR = "amltrain.cursor"
#: Tag with the digest of the source.
SOURCE = "mlflow.amltrain.source_sha256"
#: File of the run folder with what live imports leave for the last one.
LIVE_FILE = "tracking-live.json"
#: Records in the list of those that the store refused.
MAX_REJECTS = 20
#: Records per transaction.
CHUNK = 5000
#: Seconds to wait for another import into the same project.
LOCK_TIMEOUT_S = 300.0

_MLFLOW_STATUS = {
    RunState.COMPLETED: "FINISHED",
    RunState.FAILED: "FAILED",
    RunState.LOST: "FAILED",
    RunState.CANCELED: "KILLED",
}


def import_run(run_dir: str, project: str, *, handle: str | None = None, chunk: int = CHUNK) -> dict[str, Any]:
    """Update the project's MLflow store from a run folder.

    Parameters
    ----------
    run_dir
        The run folder, finished or not.
    project
        Folder that owns ``.amltrain``.
    handle
        ``"<target>/<run-id>"`` for the tag ``amltrain.handle``; default local.
    chunk
        Records per transaction.

    Returns
    -------
    dict
        See :func:`blank_result`; also written to ``tracking.json`` in the run folder.

    Raises
    ------
    StateError
        The run folder cannot be read, the lock cannot be taken, or the store cannot be opened; the
        reason is in ``tracking.json`` too (``state`` "failed", ``error``).
    """
    started = time.monotonic()
    folder = Path(run_dir)
    job = clean(read_json(folder / "job.json"))
    check_schema(job, folder / "job.json")
    result = blank_result(job, project)
    try:
        if result["mode"] == "direct":
            result["state"] = "direct"
            result["notes"].append("the script logs to its own tracking server; nothing to import")
        else:
            _locked_import(folder, project, job, handle, chunk, result)
    except Exception as error:  # whatever MLflow raises: tracking.json says that the import failed
        reported = _as_state_error(error, folder, result["store"])
        result.update(state="failed", error=str(reported).splitlines()[0])
        if reported is error:
            raise
        raise reported from error
    finally:
        result.update(clean(result))
        result["seconds"] = round(time.monotonic() - started, 3)
        result["updated"] = time.time()
        with contextlib.suppress(OSError):
            write_json(folder / "tracking.json", result)
    return result


def _as_state_error(error: Exception, folder: Path, store: str) -> Exception:
    """Return a one-sentence error if the machine's state is the cause; a bug's error is returned as it is."""
    if isinstance(error, AmlTrainError):
        return error
    text = str(getattr(error, "orig", None) or error)
    full = "disk is full" in text or "disk I/O error" in text
    if full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        return StateError(
            f"The MLflow record of {folder.name} cannot be written: the disk of {store} is full.",
            hint="Free some space; the import is repeated when you view the run.",
        )
    if isinstance(error, OSError):
        return StateError(f"The MLflow record of {folder.name} cannot be written: {error}.")
    return error


def blank_result(job: dict[str, Any], project: str) -> dict[str, Any]:
    """Return the result of an import that has not begun.

    ``state`` is "partial" while the run lives, then "imported", "failed" or "direct" (the script has its own server).
    ``seq``: last record; ``records``: those of this call; ``damaged``: lines of the journal that cannot be read;
    ``system``: points of system metrics of this call. Later also ``experiment_id``, ``seconds``, ``mlflow`` (version).
    """
    tracking = job.get("tracking") or {}
    return {
        "schema": 1,
        "state": "partial",
        "mode": tracking.get("mode", "sink"),
        "run_id": tracking.get("run_id", ""),
        "experiment": job.get("experiment") or "default",
        "store": str(project_store(project) / "mlflow.db"),
        "seq": 0,
        "records": 0,
        "rejects": [],
        "damaged": 0,
        "notes": [],
        "files": 0,
        "bytes": 0,
        "traces": 0,
        "system": 0,
    }


@contextlib.contextmanager
def open_store(project: str, timeout: float, result: dict[str, Any]) -> Iterator[Any]:
    """Open the project's store under the import lock; `result` gets MLflow's version and notes."""
    from jupyter_amltrain.tracking.mlflow_store import TrackingStore

    store_folder = project_store(project)
    store_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignore = store_folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    lock = store_folder / "import.lock"
    with locked(lock, timeout), TrackingStore(project) as store:
        if lock.with_name("import.lock.soft").exists():
            result["notes"].append(f"{store_folder} is on a file system without locks; a lock file is used instead")
        result["mlflow"] = store.version
        yield store


def create_store(project: str) -> None:
    """Create the project's store if there is none, wholly or not at all.

    Raises
    ------
    StateError
        It cannot be created.
    """
    if not (project_store(project) / "mlflow.db").exists():
        with open_store(project, LOCK_TIMEOUT_S, blank_result({}, project)):
            pass


def _locked_import(
    folder: Path,
    project: str,
    job: dict[str, Any],
    handle: str | None,
    chunk: int,
    result: dict[str, Any],
) -> None:
    from jupyter_amltrain.tracking.registrations import repeat_registrations

    with open_store(project, LOCK_TIMEOUT_S, result) as store:
        # Read before the journal: the journal already has everything that this state refers to.
        state: dict[str, Any] = {}
        if (path := folder / "state.json").exists():
            state = read_json(path)
            check_schema(state, path)
        replay = JournalImport(store, folder, job, result, JournalPosition())
        result["rejects"] = _earlier_rejects(folder, replay.cursor())
        replay.records(chunk)
        copy_files(replay)
        handle = handle or f"local/{job.get('run', folder.name)}"
        repeat_registrations(replay, project, handle)
        replay.finish(state, handle)
    with contextlib.suppress(OSError):
        (folder / LIVE_FILE).unlink(missing_ok=True)


def copy_files(replay: JournalImport) -> None:
    """Copy traces, artifacts, models and figures of the run that are new or have changed."""
    from jupyter_amltrain.tracking.copies import copy_artifacts, copy_figures, copy_traces

    store, folder, result = replay.store, replay.folder, replay.result
    note = result["notes"].append
    artifacts = folder / "artifacts"
    result["traces"] = copy_traces(store, artifacts, replay.traces, replay.experiments, note)
    figures = copy_figures(store, folder, str((replay.job.get("tracking") or {}).get("run_id") or ""), note)
    logged = copy_artifacts(store, artifacts, note)
    result["files"], result["bytes"] = logged[0] + figures[0], logged[1] + figures[1]


def _earlier_rejects(folder: Path, cursor: int) -> list[dict[str, Any]]:
    """Return the records that earlier imports of this run could not store: this import does not replay them."""
    known: dict[int, str] = {}
    for name in (LIVE_FILE, "tracking.json"):
        with contextlib.suppress(AmlTrainError, OSError, ValueError, KeyError, TypeError, AttributeError):
            for entry in clean(read_json(folder / name))["rejects"][:MAX_REJECTS]:  # a job can write anything there
                known[int(entry["seq"])] = str(entry["why"])[:500]
    return [{"seq": seq, "why": why} for seq, why in sorted(known.items()) if seq <= cursor][:MAX_REJECTS]


@dataclass
class JournalPosition:
    """What an import has learned from the journal up to `offset`; a new one is the beginning.

    It is valid only while the store's own cursor is at least `seq`: the store may have been replaced.
    """

    offset: int = 0  #: bytes of whole lines that are in the store
    seq: int = 0  #: number of the last record there
    main: str = "0"  #: the sink's experiment id of the job's own run
    run_id: str = ""
    experiments: dict[str, int] = field(default_factory=dict)  #: the sink's experiment id -> the store's
    looked_up: dict[str, dict[str, Any]] = field(default_factory=dict)  #: records of experiments that are not used yet
    traces: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)  #: records that the store refused, with reasons


class JournalImport:
    """One import of the journal; the lock is held.

    Parameters
    ----------
    position
        Where the previous import of this process ended; moved to the end of this one.
    """

    def __init__(
        self, store: Any, folder: Path, job: dict[str, Any], result: dict[str, Any], position: JournalPosition
    ) -> None:
        self.store = store
        self.folder = folder
        self.job = job
        self.result = result
        self.run_id: str = position.run_id or result["run_id"]
        if position.seq > self.cursor():
            position, self.run_id = JournalPosition(), result["run_id"]  # its run was removed from the store
        #: Where this import began and, after :meth:`records`, where it ended.
        self.position = position
        self.experiments, self.looked_up = dict(position.experiments), dict(position.looked_up)
        self.traces = list(position.traces)
        #: Records of the model registry; of those read by this import.
        self.registrations: list[dict[str, Any]] = []
        self.main = position.main
        self._offset = position.offset
        result["run_id"] = self.run_id
        result["rejects"] = list(position.rejects)

    def cursor(self) -> int:
        """Return the number of the last record in the store."""
        with self.store.rows() as rows:
            tags = [rows.tag(self.run_id, name) or "" for name in (CURSOR, OLD_CURSOR)]
        return next((int(tag) for tag in tags if tag.isdecimal()), 0)

    def _read(self) -> Iterator[dict[str, Any]]:
        """Yield the whole records of the journal; a torn last line is left for the next import."""
        import msgspec

        decoder = msgspec.json.Decoder()
        path = self.folder / "metrics" / "rank-0.jsonl"
        try:
            descriptor = open_regular(str(path))
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as file:
            if self._offset > os.fstat(descriptor).st_size:
                self._offset = 0  # the job has rewritten it
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    record = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    record = parse(line)  # accepts lone surrogates, too
                if well_formed(record):
                    yield record
                else:
                    self.result["damaged"] += 1

    def records(self, chunk: int) -> None:
        """Replay the records that the store does not have yet."""
        cursor, waiting = -1, list[dict[str, Any]]()
        for record in self._read():
            op, added = record["op"], record.get("a") or {}
            if op == "init" and {"id", "exp_id", "exp_name"} <= added.keys():
                self.main, self.run_id = str(added["exp_id"]), str(added["id"])
                self.result["run_id"] = self.run_id
                self._begin(str(self.job.get("experiment") or added["exp_name"]))
            elif not self.experiments:  # the first line is damaged
                self._begin(str(self.result["experiment"]))
                self._make_run()
            self._note(record, op, added)
            if cursor < 0:
                cursor = self.cursor()
            if record["seq"] > cursor:
                waiting.append(record)
            if len(waiting) >= chunk:
                self._commit(waiting)
                waiting = []
        if waiting:
            self._commit(waiting)
        if self.result["damaged"]:
            lines = "1 damaged line" if self.result["damaged"] == 1 else f"{self.result['damaged']} damaged lines"
            self.result["notes"].append(f"{lines} of the journal could not be read; all others were imported")
        if not self.result["seq"]:
            self.result["seq"] = max(cursor, self.position.seq)
        if not self.experiments:
            self._begin(str(self.result["experiment"]))
        self._make_run()
        with self.store.rows() as rows:
            self.result["experiment_id"] = str(rows.run(self.run_id).experiment_id)
        self.position = JournalPosition(
            offset=self._offset,
            seq=self.result["seq"],
            main=self.main,
            run_id=self.run_id,
            experiments=self.experiments,
            looked_up=self.looked_up,
            traces=self.traces,
            rejects=self.result["rejects"],
        )

    def _note(self, record: dict[str, Any], op: str, added: dict[str, Any]) -> None:
        """Note what later records refer to: experiments, traces, registered models."""
        self._add_looked_up(op, record["b"])
        if op == "experiments/create" and added.get("looked_up"):
            self.looked_up[str(added.get("id"))] = record
        elif op == "experiments/create":
            self._add_experiment(str(added.get("id")), record)
        elif op == "traces" and isinstance(record["b"].get("trace"), dict):
            self.traces.append(record["b"]["trace"].get("trace_info") or {})
        elif op.startswith("traces/"):
            self._change_traces(op, record["b"])
        elif op.startswith(("registered-models/", "model-versions/")):
            self.registrations.append(record)

    def _begin(self, name: str) -> None:
        self.experiments[self.main] = self.store.experiment(clean(name))
        self.result["experiment"] = name

    def _make_run(self) -> None:
        """Create the row of the job's own run if the journal has no line for it: other rows refer to it."""
        with self.store.rows() as rows:
            if rows.run(self.run_id) is None:
                title = str(self.job.get("name") or self.job.get("run") or self.folder.name)
                start = int(float(self.job.get("submitted") or 0) * 1000)
                self._replay(rows).new_run(self.run_id, self.experiments[self.main], title, start)
                rows.commit()

    def _change_traces(self, op: str, body: dict[str, Any]) -> None:
        """Apply a change to the traces that were read so far."""
        traces = {str(trace.get("trace_id")): trace for trace in self.traces}
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a damaged line
            change_traces(traces, op, body)
        self.traces = list(traces.values())

    def _add_looked_up(self, op: str, body: dict[str, Any]) -> None:
        """Find or make the experiments that a change uses and whose names the script has only looked up before."""
        if self.looked_up:
            with contextlib.suppress(AttributeError):  # a damaged line
                for sink_id in experiments_of(op, body):
                    if sink_id in self.looked_up:
                        self._add_experiment(sink_id, self.looked_up.pop(sink_id))

    def _add_experiment(self, sink_id: str, record: dict[str, Any]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.experiments[sink_id] = self.store.experiment(record["b"]["name"])
        except (MlflowException, KeyError, TypeError, AttributeError, ValueError) as error:
            self.experiments[sink_id] = self.experiments[self.main]
            self._reject(
                record, f"experiments/create: {str(error).splitlines()[0]}; its runs are in the job's experiment"
            )

    def _reject(self, record: dict[str, Any], reason: str) -> None:
        known = {entry["seq"] for entry in self.result["rejects"]}
        if len(known) < MAX_REJECTS and record["seq"] not in known:
            self.result["rejects"].append({"seq": record["seq"], "why": clean(reason)[:500]})

    def _replay(self, rows: Any) -> Any:
        from jupyter_amltrain.tracking.journal_replay import Replay

        return Replay(self.store, rows, self.experiments, self.main)

    def _commit(self, records: list[dict[str, Any]]) -> None:
        """Commit records. A failing record is found by bisection, and only that record is left out."""
        from sqlalchemy.exc import OperationalError, SQLAlchemyError

        try:
            self._commit_whole(records)
        except OperationalError:
            raise  # an error of the store, not of a record
        except (SQLAlchemyError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            if len(records) == 1:
                lines = str(getattr(error, "orig", None) or error).splitlines()
                self._make_run()
                self._reject(records[0], f"{records[0]['op']}: {type(error).__name__}: {lines[0] if lines else ''}")
                self._commit_whole([], records[0]["seq"])
                return
            half = len(records) // 2
            self._commit(records[:half])
            self._commit(records[half:])

    def _commit_whole(self, records: list[dict[str, Any]], cursor: int = 0) -> None:
        from jupyter_amltrain.tracking.journal_replay import Rejected

        cursor = cursor or records[-1]["seq"]
        rejected = list[tuple[dict[str, Any], str]]()
        with self.store.rows() as rows:
            replay = self._replay(rows)
            for record in records:
                try:
                    replay.record(record)
                except Rejected as error:
                    rejected.append((record, str(error)))
            if self.run_id in replay.system_runs:
                from jupyter_amltrain.tracking.system_metrics import remove_series

                remove_series(replay, self.run_id)
            replay.flush()
            replay.tag(self.run_id, CURSOR, cursor)
            rows.remove_tag(self.run_id, OLD_CURSOR)
            rows.flush()
            testing.hit("import_before_commit")
            rows.commit()
        testing.hit("import_after_commit")
        for record, reason in rejected:
            self._reject(record, reason)
        self.result["seq"] = cursor
        self.result["records"] += len(records)

    def finish(self, state: dict[str, Any], handle: str, *, with_system: bool = True) -> None:
        """Write tags, parameters of the submission, system metrics, and MLflow's status.

        The status comes from the state and the exit code: a script's own ``FINISHED`` only means that
        its interpreter shut down or a ``with`` block ended, which it also does after an exception.
        """
        spec = self.job.get("spec") or {}
        run_state = str(state.get("state", "preparing"))
        status = _MLFLOW_STATUS.get(RunState(run_state)) if run_state in set(RunState) else None
        system = self._system(status is not None) if with_system else None
        with self.store.rows() as rows:
            replay = self._replay(rows)
            if not self.result["seq"]:
                self.result["notes"].append("the script logged nothing to MLflow")
            digest = spec.get("source_sha256") or (self.job.get("snapshot") or {}).get("digest")
            tags = {"amltrain.handle": handle, "amltrain.state": run_state}
            if digest:
                tags[SOURCE] = str(digest)
            tags.update(_git_tags(self.job))
            if state.get("exit_code") is not None:
                tags["amltrain.exit_code"] = str(state["exit_code"])
            tags.update({key: str(value) for key, value in (spec.get("tags") or {}).items()})
            for key, value in tags.items():
                replay.tag(self.run_id, key, value)
            for key, value in (spec.get("params") or {}).items():
                if not rows.has_param(self.run_id, key):
                    replay.param(self.run_id, key, value)
            if system is not None:
                self.result["system"] = system.put(replay, self.run_id)
            if status is not None:
                self._end(rows, status, int(float(_end(state)) * 1000))
            else:
                run = rows.run(self.run_id)
                run.status, run.end_time = "RUNNING", None
            testing.hit("import_before_end")
            rows.commit()
        if status is not None:
            self.result["state"] = "imported"

    def _system(self, ended: bool) -> Any:
        from jupyter_amltrain.tracking.system_metrics import SystemMetrics

        try:
            return SystemMetrics(self.folder, ended)
        except Exception as error:  # telemetry of any version must not keep a run out of the store
            self.result["notes"].append(f"system metrics cannot be read: {type(error).__name__}: {error}")
            return None

    def _end(self, rows: Any, status: str, end: int) -> None:
        run = rows.run(self.run_id)
        run.status, run.end_time = status, end
        # also nested children: every nested run of this job is in its journal
        for run_id in rows.descendants(self.run_id):
            child = rows.run(run_id)
            if child is not None and child.status == "RUNNING":
                child.status, child.end_time = status, end


def _git_tags(job: dict[str, Any]) -> dict[str, str]:
    """Return the git state of the submitter under MLflow's names."""
    git = provenance_of(job, {}, {}).git
    return {} if git is None else git.mlflow_tags()


def _end(state: dict[str, Any]) -> float:
    """Return the time at which the run's process ended, in unix seconds."""
    ends = [p.get("end") for p in state.get("phases") or [] if p.get("name") == "running"]
    return float(next((end for end in ends if end), None) or state.get("changed") or time.time())

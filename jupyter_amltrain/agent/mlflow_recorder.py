"""One change at a time: checked, applied to the state, written to the journal."""

import os
import threading
from typing import Callable, List, Optional, Set

from . import failpoints
from .mlflow_journal import Journal, Record, now_ms
from .mlflow_limits import Body, Refusal, fit
from .mlflow_state import State

#: Changes that make something: repeated, they would make it twice.
_MAKES = ("runs/create", "logged-models", "traces", "experiments/create")
#: Last journal lines whose answer a killed sink may not have sent: one for each open connection.
_UNANSWERED = 64


class Recorder:
    """State and journal of one job, changed together under one lock.

    Parameters
    ----------
    journal, artifacts, run_id, run_name, experiment_id, experiment_name, truncate, on_note
        See :func:`.mlflow_sink.serve`.
    """

    def __init__(
        self,
        *,
        journal: str,
        artifacts: str,
        run_id: str,
        run_name: str,
        experiment_id: str,
        experiment_name: str,
        truncate: bool,
        on_note: Callable[[str], None],
    ) -> None:
        self.run_id = run_id
        self.state = State(artifacts, experiment_id, experiment_name)
        self._truncate = truncate
        self._on_note = on_note
        self._noted: Set[str] = set()
        self.lock = threading.Lock()
        self._unanswered: List[Record] = []
        self.journal = Journal(journal, self.note_once)
        os.makedirs(artifacts, mode=0o700, exist_ok=True)
        self.journal.recover(self._replay)
        if self.journal.seq == 0:
            added = {
                "id": run_id,
                "exp_id": experiment_id,
                "exp_name": experiment_name,
                "name": run_name,
            }
            t = now_ms()
            self.journal.append("init", {}, added, t)
            self.state.add_run(run_id, experiment_id, run_name, "", t)

    def _replay(self, record: Record) -> None:
        added = record.get("a") or {}
        if record["op"] == "init":
            self.state.add_run(added["id"], added["exp_id"], added["name"], "", record["t"])
            return
        try:
            self.state.apply(record["op"], record["b"], added)
        except Refusal as error:  # the line that made what it names is damaged
            raise ValueError(error.message) from error
        self._unanswered = [*self._unanswered[1 - _UNANSWERED :], record]

    def note_once(self, text: str) -> None:
        """Log a sentence, once."""
        if text not in self._noted and len(self._noted) < 1000:
            self._noted.add(text)
            self._on_note(text)

    def flush(self) -> None:
        """Write what a full disk has held back."""
        with self.lock:
            self.journal.flush()

    def close(self) -> None:
        """Write, sync, close. Requests that come later get no answer."""
        self.lock.acquire()
        self.journal.close()

    # -- changes

    def fit(self, op: str, body: Body) -> Body:
        """Return a change whose values are not longer than the store takes; see :func:`.mlflow_limits.fit`."""
        return fit(op, body, self._truncate, self.note_once)

    def change(self, op: str, body: Body, added: Body) -> Body:
        """Check, journal and apply one change; the ids that it got, also when it is a repeat."""
        body = self.fit(op, body)
        with self.lock:
            known = self.repeated(op, body)
            if known is not None:
                return known
            self.state.check(op, body)
            failpoints.hit("sink_before_write")
            # the journal never refuses; applied first, a body that the fold cannot take is not kept
            self.state.apply(op, body, added)
            self.journal.append(op, body, added, added.get("t") or now_ms())
        failpoints.hit("sink_after_write")
        return added

    def repeated(self, op: str, body: Body) -> Optional[Body]:
        """The answer of a request that a killed predecessor wrote down but did not answer.

        A client sends such a request again, word for word. What is idempotent anyway is
        applied again; points carry a time in ms, so an equal one is the same one; a
        thing that was made counts as unanswered as long as no later line names it.
        """
        if op == "runs/log-metric" and not body.get("model_id"):
            last = self.state.run(body).metrics.get(body["key"])
            now = (
                str(body.get("timestamp") or 0),
                str(body.get("step") or 0),
                float(body["value"]),
            )
            if last and now == (str(last["timestamp"]), str(last["step"]), float(last["value"])):
                return {}
        points = op == "runs/log-metric" or (op == "runs/log-batch" and bool(body.get("metrics")))
        if not self._unanswered or not (points or op in _MAKES):
            return None
        for index, record in enumerate(self._unanswered):
            if record["op"] != op or record["b"] != body:
                continue
            added: Body = record.get("a") or {}
            later = self._unanswered[index + 1 :]
            if op in _MAKES and any(_names(item, str(added.get("id"))) for item in later):
                continue
            del self._unanswered[index]
            return added
        return None

    def unanswered_join(self, request: str) -> bool:
        """Whether a killed predecessor took this request as the start of the job's run."""
        with self.lock:
            for index, record in enumerate(self._unanswered):
                if (record.get("a") or {}).get("request") == request:
                    del self._unanswered[index]
                    return True
        return False


def _names(record: Record, thing: str) -> bool:
    return thing in record["op"] or thing in str(record["b"])

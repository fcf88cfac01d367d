"""Imports of random journals: ``python -m tests.tracking.import_fuzz`` prints "held"."""

from __future__ import annotations

import json
import tempfile
import uuid
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jupyter_amltrain.tracking import importer
from tests.agent.mlflow_jobs import RUN_ID
from tests.tracking.test_import_robust import INIT, run_folder

texts = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(["NaN", "-Infinity", "RUNNING", "\0"])
leaf = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([RUN_ID, "0", "c" * 32, "m-1"])
any_value = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
pair = st.fixed_dictionaries({}, optional=dict.fromkeys(("key", "value", "timestamp", "step", "model_id"), any_value))
NAMES = (
    "experiment_id name status end_time run_name user_id start_time key value timestamp step model_id model_json"
    " source_run_id model_type trace"
)
LISTS = ("metrics", "params", "tags", "datasets", "models")
fields: dict[str, Any] = dict.fromkeys(NAMES.split(), any_value)
fields.update(dict.fromkeys(LISTS, any_value | st.lists(pair, max_size=3)))
fields["run_id"] = st.just(RUN_ID) | any_value
bodies = st.fixed_dictionaries({}, optional=fields)
OPS = (
    "runs/create runs/update runs/log-metric runs/log-parameter runs/log-batch runs/set-tag runs/delete-tag"
    " runs/delete runs/restore runs/log-model runs/log-inputs runs/outputs experiments/create"
    " experiments/set-experiment-tag experiments/delete-experiment-tag logged-models logged-models/m-1"
    " logged-models/m-1/params logged-models/m-1/tags traces traces/x init"
)
ops = st.sampled_from(OPS.split()) | texts
added = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "name", "t", "exp_id", "exp_name"), any_value))
records = st.lists(st.tuples(ops, bodies, added), max_size=12)

project = tempfile.mkdtemp()


@settings(
    max_examples=60,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(records)
def check(found: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    """A journal of whole lines is imported to its end, whatever they say."""
    lines = [INIT]
    for op, body, more in found:
        lines.append({"seq": len(lines) + 1, "t": 5, "op": op, "b": body, "a": more})
    last = {"run_id": RUN_ID, "key": "last", "value": "x"}
    lines.append({"seq": len(lines) + 1, "t": 9, "op": "runs/set-tag", "b": last})
    run_id = uuid.uuid4().hex
    raw = [json.dumps(line).replace(RUN_ID, run_id).encode() + b"\n" for line in lines]
    folder = run_folder(Path(tempfile.mkdtemp()) / "run", raw, tracking={"run_id": run_id, "mode": "sink"})
    result = importer.import_run(str(folder), project)
    assert result["state"] == "imported" and result["seq"] == len(lines), result


if __name__ == "__main__":
    check()
    print(json.dumps("held"))

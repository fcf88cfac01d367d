"""Tables and legend of the GPUs of a record: made once, as the text that page, picture and widgets show."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.gpu_tables import gpu_tables
from jupyter_amltrain.kernel.run_charts import MAX_LINES, charts_of
from jupyter_amltrain.schema.record import GpuProcess, GpuSeries, GpuTelemetry, MetricSeries, RunRecord
from jupyter_amltrain.schema.table import Table

A100 = "NVIDIA A100"


def record_of(*gpus: dict[str, Any], nodes: int = 1, **fields: Any) -> RunRecord:
    part = GpuTelemetry(
        gpus=tuple(GpuSeries(**{"node": 0, "index": i, "name": A100, **gpu}) for i, gpu in enumerate(gpus)),
        nodes=tuple(f"host-{n}" for n in range(nodes)),
        processes=fields.pop("processes", ()),
    )
    return RunRecord(
        handle="local/a", run_id="a", name="a", target="local", experiment="e", state="completed", gpu=part, **fields
    )


def table_of(record: RunRecord, key: str) -> Table | None:
    return next((table for table in gpu_tables(record) if table.key == key), None)


def column(table: Table | None, title: str) -> list[str]:
    assert table is not None
    at = [one.title for one in table.columns].index(title)
    return [row[at] for row in table.rows]


def test_summary_of_unreported_values_is_left_out() -> None:
    assert table_of(record_of({}, summary={"gpus": [{"node": 0, "index": 0, "name": A100}]}), "gpu summary") is None


def test_summary_has_a_row_for_each_group() -> None:
    gpu = {
        "node": 0, "index": 0, "name": A100, "util_mean": 61.4, "sm_activity_mean": 40, "tensor_activity_mean": 0,
        "memory_peak": 40 * 1024, "memory_total": 80 * 1024, "power_mean": 250, "energy_wh": 12.5,
        "energy_source": "power", "first_use": 75, "idle_share": 0.25, "xids": "48", "ecc_correctable": 2,
        "throttled_heat_s": 30, "torch_reserved_peak": 2048, "torch_allocated_peak": 1024,
    }  # fmt: skip
    rate = MetricSeries(step=(1,), value=(412.0,), last=412.0, n=1)
    record = record_of({}, summary={"gpus": [gpu]}, metrics={"samples_per_second": rate})
    table = table_of(record, "gpu summary")
    assert table is not None and not any(column.title for column in table.columns)
    assert len({len(row) for row in (table.columns, *table.rows)}) == 1
    assert {row[0]: [text for text in row[1:] if text] for row in table.rows} == {
        "GPU use": ["SM 40 %", "utilization 61 %"],
        "GPU memory": ["peak 40.0 of 80.0 GiB", "allocated 1.0 GiB", "reserved 2.0 GiB (PyTorch)"],
        "GPU power": ["mean 250 W", "energy 12.5 Wh (estimated)", "throttled 30 s (heat)"],
        "throughput": ["412 samples/s"],
        "GPU errors": ["Xid 48", "2 correctable memory errors"],
    }
    assert table_of(record, "gpu each") is None


def test_several_gpus_have_a_row_each_with_known_columns() -> None:
    gpus = [
        {"node": 0, "index": k, "name": A100, "util_mean": 90.0 * k, "memory_peak": 1024, "energy_wh": 0.0,
         "throttled_power_s": 9.0 * k}
        for k in range(2)
    ]  # fmt: skip
    table = table_of(record_of({}, {}, summary={"gpus": gpus}), "gpu each")
    assert column(table, "utilization") == ["0 %", "90 %"] and column(table, "memory peak") == ["1.0 GiB"] * 2
    assert column(table, "throttled") == ["", "9.0 s (power limit)"]
    assert table is not None and [one.title for one in table.columns][0] == "GPU" and len(table.columns) == 4


def test_summary_of_many_gpus_counts_the_rest() -> None:
    gpus = [{"node": k // 8, "index": k % 8, "name": A100} for k in range(64)]
    summary = {"gpus": [{**gpu, "util_mean": 1.0} for gpu in gpus]}
    table = table_of(record_of(*gpus, nodes=8, summary=summary), "gpu each")
    assert table is not None and len(table.rows) + table.more == 64 and table.more > 0
    assert column(table, "GPU")[9] == "n1 1"


def test_process_row_names_machine_gpu_and_owner() -> None:
    process = GpuProcess(node=1, index=0, pid=7, owner="mine", memory=2.0**30, name="python train.py", label="GPU 0")
    record = record_of({}, {"node": 1, "index": 0}, nodes=2, processes=(process,))
    table = table_of(record, "gpu processes")
    assert table is not None and table.rows == (
        ("n1 GPU 0", "7", "n/a", "python train.py", "this run", "n/a", "1.0 GiB"),
    )


def test_record_without_gpu_has_no_table() -> None:
    assert gpu_tables(msgspec.structs.replace(record_of(), gpu=None)) == ()
    assert gpu_tables(record_of()) == ()


@pytest.mark.parametrize("gpus", [1, MAX_LINES, MAX_LINES + 1])
def test_legend_names_gpus_that_have_a_line(gpus: int) -> None:
    charts = charts_of(record_of(*[{"lost": k == 0} for k in range(gpus)]))
    assert charts.gpus_text.startswith(f"{gpus} × {A100}")
    labels = [entry.label for entry in charts.gpus]
    assert labels == (["GPU 0 lost", *(f"GPU {k}" for k in range(1, gpus))] if gpus <= MAX_LINES else [])
    assert ("mean" in charts.gpus_text) == (gpus > MAX_LINES)

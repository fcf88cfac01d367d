"""Every benchmark, one after the other."""

from __future__ import annotations

import subprocess
import sys

for name in (
    "load_ext",
    "helpers_memory",
    "submit",
    "first_metric",
    "projects",
    "log_lines",
    "many_runs",
    "gpu_sample",
    "gpu_figures",
    "sample_age",
    "metric_age",
    "mlflow_cost",
    "feed_bytes",
    "attach",
    "browser",
    "heap",
    "panel",
    "panel_load",
    "azure",
    "ssh",
    "slurm",
    "downloads",
    "distributed",
    "environments",
    "sweeps",
    "automl",
    "pipelines",
    "snapshot",
    "results",
    "closure",
):
    if not sys.argv[1:] or name in sys.argv[1:]:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        print(flush=True)

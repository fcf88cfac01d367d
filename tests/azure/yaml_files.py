"""Jobs of the az ml schema, one of each type that a target runs."""

from __future__ import annotations

from pathlib import Path

ENVIRONMENT = "azureml:AzureML-sklearn-1.5@latest"

WHERE = "import os, sys\nprint('args', *sys.argv[1:], os.path.exists('where.py'), flush=True)\n"

HELLO = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
command: echo "hello world"
environment:
  image: library/python:latest
"""

COMMAND = f"""\
command: python where.py && cat ${{{{inputs.data}}}} && echo ${{{{inputs.word}}}} > ${{{{outputs.out}}}}/word.txt
code: src
environment: {ENVIRONMENT}
inputs:
  data:
    type: uri_file
    path: data.csv
  word: here
outputs:
  out:
"""

SWEEP = f"""\
type: sweep
trial:
  command: echo trial ${{{{inputs.rate}}}} ${{{{search_space.word}}}}
  environment: {ENVIRONMENT}
inputs:
  rate: 0.5
sampling_algorithm: random
search_space:
  word:
    type: choice
    values: [hello, world]
objective:
  goal: minimize
  primary_metric: loss
limits:
  max_total_trials: 3
  max_concurrent_trials: 2
"""

#: Logs the primary metric of a trial; by REST, because MLflow's client takes seconds to import.
SCORE = """\
import json, os, ssl, urllib.request
name = os.environ["AZUREML_RUN_ID"]
body = {"run_id": name, "key": "loss", "value": [0.5, 0.125, 0.25][int(name[-1])], "timestamp": 1, "step": 0}
url = os.environ["MLFLOW_TRACKING_URI"].replace("azureml:", "https:") + "/api/2.0/mlflow/runs/log-metric"
headers = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
print("scored", body["value"], flush=True)
"""

SCORED = SWEEP.replace("trial:\n", "trial:\n  code: src\n").replace(
    "echo trial ${{inputs.rate}} ${{search_space.word}}", "python score.py ${{inputs.rate}} ${{search_space.word}}"
)

PIPELINE = f"""\
type: pipeline
inputs:
  word: hello
jobs:
  reads:
    command: grep -x ${{{{inputs.word}}}} ${{{{inputs.file}}}}/word.txt
    environment: {ENVIRONMENT}
    inputs:
      word: ${{{{parent.inputs.word}}}}
      file: ${{{{parent.jobs.writes.outputs.out}}}}
  writes:
    command: echo ${{{{inputs.word}}}} > ${{{{outputs.out}}}}/word.txt
    environment: {ENVIRONMENT}
    inputs:
      word: ${{{{parent.inputs.word}}}}
    outputs:
      out:
"""

SPARK = """\
type: spark
code: src
entry:
  file: where.py
args: --rows 3
conf:
  spark.driver.cores: 1
  spark.driver.memory: 2g
  spark.executor.cores: 2
  spark.executor.memory: 2g
  spark.executor.instances: 2
resources:
  instance_type: standard_e4s_v3
  runtime_version: "3.4"
"""

AUTOML = """\
type: automl
task: classification
primary_metric: accuracy
target_column_name: label
training_data:
  path: azureml://datastores/workspaceblobstore/paths/table
  type: mltable
limits:
  timeout_minutes: 10
  max_trials: 2
"""

LONG = f"""\
command: sleep 600
environment: {ENVIRONMENT}
"""


def write(folder: Path, *names: str) -> Path:
    """Write ``<name>.yml`` for each name, and the script and data that they use."""
    (folder / "src").mkdir()
    (folder / "src" / "where.py").write_text(WHERE)
    (folder / "src" / "score.py").write_text(SCORE)
    (folder / "data.csv").write_text("a,b\n1,2\n")
    for name in names:
        (folder / f"{name}.yml").write_text(globals()[name.upper()])
    return folder

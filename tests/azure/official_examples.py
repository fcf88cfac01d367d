"""Which of the official examples run here with their own scripts, and what stands in for the others; their table.

``python -m tests.azure.official_examples`` writes docs/azure-examples.md.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "data" / "azureml-examples"
TABLE = ROOT / "docs" / "azure-examples.md"
_BASICS = "cli/jobs/basics"
_ONE = "cli/jobs/single-step"
_TRAIN = """import os
os.makedirs("outputs", exist_ok=True)
open("outputs/model.txt", "w").write("weights")
print("trained")
"""


@dataclass(frozen=True)
class Example:
    """One file.

    Attributes
    ----------
    target
        ``--target`` of the line; empty where the file names its compute.
    instead
        Script (relative to the file) -> what stands in for it.
    programs
        Programs of the job that are played.
    why
        Why something stands in.
    says
        Text of its log when it has run.
    refused
        It is no job, and the product says so with this word.
    """

    target: str = "free"
    instead: dict[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    why: str = ""
    says: str = ""
    refused: str = ""

    @property
    def real(self) -> bool:
        """It runs as it is."""
        return not self.instead and not self.programs and not self.why


def _plain(names: str, **more: Any) -> dict[str, Example]:
    return {f"{_BASICS}/{name}.yml": Example(**more) for name in names.split()}


_WORKERS = "import json, os\nassert len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker']) == 2\n"
_TENSORFLOW = "TensorFlow is not installed"
_TORCH = "PyTorch with GPUs is not available"
_LEFT_OUT = "its script is not in the copy"

EXAMPLES: dict[str, Example] = {
    **_plain("hello-world hello-world-input hello-world-org hello-world-env-var", says="hello world"),
    **_plain("hello-world-output hello-world-output-data hello-mlflow"),
    **_plain("hello-code", says="hello-iris.py"),
    **_plain("hello-iris-file hello-iris-folder hello-iris-literal", says="--iris-csv"),
    **_plain("hello-iris-datastore-file hello-iris-datastore-folder", says="sepal"),
    **_plain("hello-data-uri-folder hello-dataset", says="iris.csv"),
    **_plain("hello-model-as-input", says="MLmodel"),
    **_plain("hello-model-as-output"),
    **_plain("hello-sweep", says="Completed"),
    **_plain(
        "hello-pipeline-abc-serverless hello-pipeline-serverless hello-pipeline-settings-serverless"
        " hello-pipeline-io-serverless hello-pipeline-default-artifacts-serverless"
        " hello-pipeline-customize-output-file-serverless hello-pipeline-customize-output-folder-serverless",
        says="Completed",
    ),
    **_plain(
        "hello-pipeline hello-pipeline-abc hello-pipeline-settings hello-pipeline-io hello-pipeline-default-artifacts"
        " hello-pipeline-customize-output-file hello-pipeline-customize-output-folder",
        target="cpu-cluster",
        says="Completed",
    ),
    f"{_BASICS}/hello-git.yml": Example(
        instead={"src/hello-git.py": "print('main')\n"}, programs=("pip",), why="no package index", says="main"
    ),
    f"{_BASICS}/hello-notebook.yml": Example(programs=("pip", "papermill"), why="no package index", says="played"),
    f"{_BASICS}/hello-interactive.yml": Example(
        instead={"src/hello-interactive.py": _TRAIN},
        programs=("sleep",),
        why=f"{_TENSORFLOW}; the example sleeps 10 minutes",
        says="trained",
    ),
    f"{_BASICS}/hello-automl/hello-automl-job-basic.yml": Example(
        target="cpu-cluster", why="the emulator's AutoML trains nothing", says="Completed"
    ),
    "cli/jobs/pipelines/cifar-10/pipeline.yml": Example(
        target="gpu-cluster",
        instead={
            "src/train-model/main.py": (
                "import argparse, os, pathlib\np = argparse.ArgumentParser()\n"
                "for name in ('data-dir', 'epochs', 'model-dir'): p.add_argument('--' + name)\na = p.parse_args()\n"
                "print(os.environ['WORLD_SIZE'], os.listdir(a.data_dir))\n"
                "assert os.environ['WORLD_SIZE'] == '2' and os.listdir(a.data_dir) == ['cifar-10-batches-py']\n"
                "pathlib.Path(a.model_dir, 'model').mkdir(exist_ok=True)\n"
                "pathlib.Path(a.model_dir, 'model', 'weights').write_text('w')\n"
            ),
            "src/eval-model/main.py": (
                "import argparse, os\np = argparse.ArgumentParser()\n"
                "for name in ('data-dir', 'model-dir'): p.add_argument('--' + name)\na = p.parse_args()\n"
                "assert os.listdir(a.model_dir) == ['weights']\n"
            ),
        },
        why=f"{_LEFT_OUT}; {_TORCH}; the first step is real",
        says="Completed",
    ),
    "cli/jobs/deepspeed/deepspeed-training/job.yml": Example(
        target="gpu-v100-cluster",
        instead={"src/train.py": _TRAIN, "src/ds_config.json": "{}", "docker-context/Dockerfile": "FROM scratch\n"},
        why=f"{_LEFT_OUT}; {_TORCH}",
        says="trained",
    ),
    "cli/jobs/deepspeed/deepspeed-autotuning/job.yml": Example(
        why="not a job: a placeholder that a script of the example overwrites", refused="command"
    ),
    f"{_ONE}/tensorflow/mnist/job.yml": Example(
        target="", instead={"src/train.py": _TRAIN}, why=f"{_LEFT_OUT}; {_TENSORFLOW}", says="trained"
    ),
    f"{_ONE}/tensorflow/mnist-distributed/job.yml": Example(
        target="",
        instead={"src/train.py": _WORKERS + _TRAIN},
        why=_TENSORFLOW,
        says="trained",
    ),
    f"{_ONE}/scikit-learn/diabetes/job.yml": Example(
        target="",
        instead={
            "src/main.py": (
                "import argparse\nimport pandas as pd\nfrom sklearn.linear_model import LinearRegression\n"
                "p = argparse.ArgumentParser()\np.add_argument('--diabetes-csv')\n"
                "df = pd.read_csv(p.parse_args().diabetes_csv)\n"
                "print('score', LinearRegression().fit(df.drop(columns='target'), df['target']).score("
                "df.drop(columns='target'), df['target']))\n"
            )
        },
        why=_LEFT_OUT,
        says="score",
    ),
    f"{_ONE}/pytorch/cifar-distributed/job.yml": Example(
        target="",
        instead={"src/train.py": f"import os, sys\nassert os.environ['WORLD_SIZE'] == '2', sys.argv\n{_TRAIN}"},
        why=_TORCH,
        says="trained",
    ),
}  # fmt: skip

_SERVICE, _WORKSPACE = "needs a service", "its data is in a workspace"
_WEB = "needs the web"
_PIPELINES = (
    *("", "-abc", "-io", "-settings", "-default-artifacts", "-customize-output-file", "-customize-output-folder"),
)
_HELLO = (
    *("hello-code", "hello-mlflow", "hello-world", "hello-world-env-var", "hello-world-input", "hello-world-org"),
    *("hello-world-output", "hello-world-output-data"),
    *(f"hello-pipeline{name}{more}" for name in _PIPELINES for more in ("", "-serverless")),
)
#: Examples that run on this machine unchanged.
ON_THIS_MACHINE = tuple(f"{_BASICS}/{name}.yml" for name in _HELLO)
#: Why the others do not; those that need the web run where there is one.
NOT_ON_THIS_MACHINE: dict[str, str] = {
    **dict.fromkeys(
        (f"{_BASICS}/{name}.yml" for name in ("hello-git", "hello-notebook", "hello-iris-literal", "hello-iris-file")),
        _WEB,
    ),
    **dict.fromkeys(
        (
            f"{_BASICS}/{name}.yml"
            for name in (
                *("hello-data-uri-folder", "hello-dataset", "hello-iris-datastore-file"),
                *("hello-iris-datastore-folder", "hello-iris-folder"),
            )
        ),
        _WORKSPACE,
    ),
    f"{_BASICS}/hello-automl/hello-automl-job-basic.yml": "its data is not in the copy",
    f"{_BASICS}/hello-sweep.yml": "runs with `%aml_sweep`",
    f"{_BASICS}/hello-interactive.yml": "opens services of a node",
    f"{_BASICS}/hello-model-as-input.yml": "its model is not in the copy",
    f"{_BASICS}/hello-model-as-output.yml": "its model is not in the copy",
    "cli/jobs/pipelines/cifar-10/pipeline.yml": _LEFT_OUT,
    "cli/jobs/deepspeed/deepspeed-autotuning/job.yml": "not a job",
    "cli/jobs/deepspeed/deepspeed-training/job.yml": _LEFT_OUT,
    f"{_ONE}/tensorflow/mnist/job.yml": _LEFT_OUT,
    f"{_ONE}/scikit-learn/diabetes/job.yml": _LEFT_OUT,
    f"{_ONE}/tensorflow/mnist-distributed/job.yml": "several machines",
    f"{_ONE}/pytorch/cifar-distributed/job.yml": "several machines",
}

#: What jobs call and cannot have here.
PROGRAMS = {
    "pip": '#!/bin/sh\necho "played: pip $*"\n',
    "papermill": '#!/bin/sh\necho "played: papermill $*"\ncp "$1" "$2"\n',
    "sleep": "#!/bin/sh\necho played: sleep\n",
    # wget of some systems reads no variable that names a certificate.
    "wget": '#!/bin/sh\nexec /usr/bin/wget -q --ca-certificate="$SSL_CERT_FILE" "$@"\n',
}


def files() -> list[str]:
    """Every YAML file of the examples."""
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.yml"))


def here(name: str) -> str:
    """``runs`` on this machine, or why not; what is no command is for a service."""
    return "runs" if name in ON_THIS_MACHINE else NOT_ON_THIS_MACHINE.get(name, _SERVICE)


def table() -> str:
    """The page that says which is which."""
    lines = [
        "# Official examples in the sandbox",
        "",
        "To run an official example of [azureml-examples](https://github.com/Azure/azureml-examples) in the",
        "sandbox, type `%aml_submit FILE`. The tests submit every file of `tests/data/azureml-examples` (MIT, see",
        "the license there) unchanged to the emulated Azure; each job completes. *Real* examples run their own",
        "script on data of the same form; *stubbed* ones replace the listed scripts or programs, for the reason in",
        "the last column. The body of each request equals that of `az ml`, field by field",
        "(`tests/azure/test_official_examples.py`, which also checks this table; `python -m",
        "tests.azure.official_examples` writes it).",
        "",
        "On this machine and over SSH files of `type: command` and `type: pipeline` run as they are, unless the last",
        "column says why not",
        "(`tests/test_official_examples_here.py` submits each).",
        "",
        "| file | sandbox | replaced there | why | this machine |",
        "|---|---|---|---|---|",
    ]
    for name in files():
        one = EXAMPLES[name]
        how = "rejected" if one.refused else "real" if one.real else "stubbed"
        instead = ", ".join(f"`{part}`" for part in (*one.instead, *one.programs))
        lines.append(f"| `{name.removeprefix('cli/jobs/')}` | {how} | {instead} | {one.why} | {here(name)} |")
    return "\n".join(lines) + "\n"


def prepare(folder: Path, public: Path, programs: Path) -> None:
    """A copy of the examples in which scripts that cannot run are replaced; data of the same form; played programs."""
    import shutil

    shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
    for name, one in EXAMPLES.items():
        for script, text in one.instead.items():
            path = (folder / name).parent / script
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    _model(folder / "cli" / "assets" / "model" / "mlflow-model")
    data = public / "azuremlexamples.blob.core.windows.net" / "datasets"
    data.mkdir(parents=True)
    _table(data / "iris.csv", "iris")
    _table(data / "diabetes.csv", "diabetes")
    automl = folder / _BASICS / "hello-automl"
    (automl / "training-mltable-folder" / "bank_marketing_train_data.csv").write_text("age,y\n30,no\n")
    with tarfile.open(data / "cifar-10-python.tar.gz", "w:gz") as archive:
        made = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        made.size = 3
        archive.addfile(made, io.BytesIO(b"abc"))
    for program, text in PROGRAMS.items():
        programs.mkdir(exist_ok=True)
        (programs / program).write_text(text)
        (programs / program).chmod(0o755)


def _table(path: Path, which: str) -> None:
    from sklearn import datasets

    getattr(datasets, f"load_{which}")(as_frame=True).frame.to_csv(path, index=False)


def _model(folder: Path) -> None:
    import mlflow.sklearn
    from sklearn.linear_model import LinearRegression

    mlflow.sklearn.save_model(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), str(folder))


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

"""``./outputs`` and ``./logs`` of a job that has its own copy of the code, the same on every target."""

from __future__ import annotations

import shutil
from pathlib import Path

from jupyter_amltrain.commands import submit as command

from .notebook_values import send

EXAMPLE = Path(__file__).parent.parent / "data" / "azureml-examples/cli/jobs/basics/hello-world-output.yml"

CODE = """
import os
with open("outputs/old.txt") as file:
    assert file.read() == "old"
os.makedirs("outputs/deep", exist_ok=True)
with open("outputs/deep/hello.txt", "w") as file:
    file.write("hello")
with open("./logs/own.txt", "w") as file:
    file.write("log")
with open(os.environ["AML_OUTPUT_DIR"] + "/direct.bin", "wb") as file:
    file.write(b"x" * 300_000)
with open("left.txt", "w") as file:
    file.write("left")
"""


def check_kept_files(target: str, folder: Path, deadline: float, *, keeps_working_folder: bool = True) -> None:
    """Run a job with a source folder, which has outputs of its own, and find its files."""
    source = folder / "code"
    (source / "outputs").mkdir(parents=True)
    (source / "outputs" / "old.txt").write_text("old")
    (source / "helper.py").write_text("x = 1\n")
    run = send(f"--target {target} --gpus 0 --source {source}", CODE, {}).wait(deadline)
    files = {file.path: file for file in run.files()}
    assert files["outputs/deep/hello.txt"].read() == b"hello" and files["logs/own.txt"].read() == b"log"
    assert files["outputs/direct.bin"].read() == b"x" * 300_000
    assert files["outputs/direct.bin"].save(folder).stat().st_size == 300_000
    if keeps_working_folder:
        assert files["work/left.txt"].read() == b"left" and "work/helper.py" not in files
    else:
        assert "work/left.txt" not in files and any("'left.txt'" in note for note in run.run.notes)
    assert sorted(path.name for path in source.rglob("*")) == ["helper.py", "old.txt", "outputs"]


def check_example_output(target: str, folder: Path, deadline: float) -> None:
    """Run an official example that writes to ``./outputs``, unchanged."""
    path = shutil.copy(EXAMPLE, folder)
    run = command.send(command.parse_submit([str(path), "--target", target])).wait(deadline)
    kept = {file.path: file.read() for file in run.files() if file.path.startswith("outputs/")}
    assert kept == {"outputs/helloworld.txt": b"hello world\n"}

"""Pipelines: the time of a step against ``make -j`` with the same graph, and the check of 1,000 steps for reuse.

``python -m benchmarks.pipelines [steps|reuse]``
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.timing import interleaved, line, verdict
from tests.conftest import end_all

#: Layers of the graph and steps in each; a step needs all of the layer before.
LAYERS, WIDTH, ROUNDS = 4, 2, 3
#: A step of both: starts Python, works a second, and gives a number on.
WORK = "import time\ntime.sleep(1)\n"
STEPS = 1000


def _makefile(folder: Path) -> None:
    """Write a graph as ``make`` takes it: each step reads the files of the layer before, and writes its own."""
    rules = []
    for layer in range(LAYERS):
        for number in range(WIDTH):
            needs = " ".join(f"s{layer - 1}_{other}" for other in range(WIDTH)) if layer else ""
            code = f"{WORK}open('s{layer}_{number}', 'w').write('1')"
            (folder / f"s{layer}_{number}.py").write_text(code)
            rules.append(f"s{layer}_{number}: {needs}\n\t{sys.executable} s{layer}_{number}.py\n")
    last = " ".join(f"s{LAYERS - 1}_{number}" for number in range(WIDTH))
    (folder / "Makefile").write_text("\n".join([f"all: {last}\n", *rules]))


def _make() -> float:
    """Seconds for a layer by make."""
    with tempfile.TemporaryDirectory() as folder:
        _makefile(Path(folder))
        began = time.monotonic()
        subprocess.run(["make", "-s", f"-j{WIDTH}"], cwd=folder, check=True)
        return (time.monotonic() - began) / LAYERS


def _pipeline() -> float:
    """Seconds for a layer from the first start to the last end, by the journal of the driver."""
    from jupyter_amltrain import api
    from jupyter_amltrain.pipelines.pipeline_event import END, START, PipelineEvent

    steps = []
    for layer in range(LAYERS):
        for number in range(WIDTH):
            needs = [f"v{layer - 1}_{other}" for other in range(WIDTH)] if layer else []
            out = f"v{layer}_{number}"
            code = f"{WORK}{out} = 1 + {' + '.join(needs) or '0'}"
            steps.append(api.step(f"s{layer}_{number}", code, needs=needs, out=[out], gpus=0))
    run = api.pipeline(*steps, reuse=False).wait(600)
    lines = (Path(run.run.folder) / "pipeline.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(one, type=PipelineEvent) for one in lines]
    times = [event.time for event in events if event.op in (START, END)]
    return (max(times) - min(times)) / LAYERS


def steps() -> None:
    """Print the time of a layer of both, in turn, for steps that take a second."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"AMLTRAIN_HOME": f"{folder}/home", "AMLTRAIN_QUEUE": f"{folder}/queue"}
        os.environ["AMLTRAIN_CPU_SLOTS"] = str(WIDTH)
        os.chdir(folder)
        try:
            figures = interleaved({"pipeline": _pipeline, "make -j": _make}, ROUNDS)
        finally:
            from jupyter_amltrain import api

            api.close()
            end_all(Path(folder) / "home")
            os.chdir("/")
    for name, found in figures.items():
        print(line(f"{name}, a layer of steps that take 1 s", found, "s"))
    ratio = min(figures["pipeline"]) / min(figures["make -j"])
    print(verdict("pipeline / make -j", ratio, 2.0))


def reuse() -> None:
    """Print the time of the check of 1,000 steps that have not changed: their keys, and their earlier results."""
    from jupyter_amltrain.jobs.snapshot import code_files, of_script
    from jupyter_amltrain.pipelines.functions import step
    from jupyter_amltrain.pipelines.kept_steps import KeptStep, KeptSteps
    from jupyter_amltrain.pipelines.step_key import step_key
    from jupyter_amltrain.pipelines.step_output import StepOutput

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        kept, found = KeptSteps(Path(folder) / "kept"), []
        for number in range(STEPS):
            spec = step(f"s{number}", f"import helper\nv{number} = helper.f({number})", out=[f"v{number}"]).spec
            Path("helper.py").write_text("def f(x):\n    return x\n")
            code = Path(folder) / "jobs" / f"s{number}"
            code.mkdir(parents=True)
            for name, content in of_script(spec).files.items():
                (code / name).write_bytes(content if isinstance(content, bytes) else Path(content).read_bytes())
            found.append((spec, code))
        taken = {"data": {"as": "json", "value": 1}}
        for spec, code in found:
            output = {spec.out[0]: StepOutput(node={"as": "json", "value": 1})}
            key = step_key(spec, code_files(code), "local", taken, {}, True)
            kept.add(key, KeptStep(handle="local/x", outputs=output))
        from jupyter_amltrain.jobs import file_hash

        file_hash._known.clear()  # as in a driver that has just started
        began = time.monotonic()
        keys = (step_key(spec, code_files(code), "local", taken, {}, True) for spec, code in found)
        hits = sum(kept.find(key) is not None for key in keys)
        seconds = time.monotonic() - began
        os.chdir("/")
    assert hits == STEPS
    print(verdict(f"check of {STEPS} steps for reuse, seconds", seconds, 1.0))


if __name__ == "__main__":
    for name in sys.argv[1:] or ("steps", "reuse"):
        {"steps": steps, "reuse": reuse}[name]()

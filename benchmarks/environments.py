"""Build of an environment against plain ``uv venv && uv pip install`` of the same; a second submit in it.

The packages come from uv's cache (a first build fills it), so that the network is not measured. Rounds are
interleaved. The build is measured as the phase ``preparing`` of its run; the second submit from the call to the end
of the run, against the same with the kernel's own interpreter.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import interleaved, line, verdict
from jupyter_amltrain.agent.environments.pip_settings import uv_variables

#: What somebody who trains on digits installs: 11 packages, 130 MB.
PACKAGES = ("numpy", "pandas", "scikit-learn", "matplotlib")
SCRIPT = "print('first line')\n"


def plain(uv: str, folder: Path, requirements: Path) -> float:
    """Seconds of the two commands."""
    shutil.rmtree(folder, ignore_errors=True)
    base = os.path.realpath(sys.executable)
    commands = [
        [uv, "venv", "--quiet", "--python", base, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "-r", str(requirements)],
    ]
    begin = time.perf_counter()
    for command in commands:
        # The same indexes: uv alone does not read the settings of pip.
        subprocess.run(
            command, check=True, env={**os.environ, **uv_variables(os.environ), "UV_PYTHON_DOWNLOADS": "never"}
        )
    return time.perf_counter() - begin


def settle(run: Any) -> None:
    """Wait for the record in MLflow, whose work would be counted to the next contender."""
    end = time.monotonic() + 60
    while run.run.tracking != "imported" and time.monotonic() < end:
        time.sleep(0.02)


def build_seconds(api: Any, requirements: Path) -> float:
    """Seconds of the build phase of a run that finds no environment."""
    for row in api.environments("local"):
        api.delete_environment(row.key, target="local", confirmed=True)
    run = api.build_environment(str(requirements), target="local").wait(600)
    settle(run)
    return float(next(phase.seconds for phase in run.run.status.phases if phase.name == "preparing"))


def run_seconds(api: Any, environment: str) -> float:
    """Seconds from the submit of a short script to its end."""
    begin = time.perf_counter()
    run = api.submit(SCRIPT, target="local", environment=environment or None, gpus=0).wait(120)
    seconds = time.perf_counter() - begin
    settle(run)
    return seconds


def main(rounds: int = 9) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ.update(
            AMLTRAIN_HOME=f"{folder}/home", AMLTRAIN_QUEUE=f"{folder}/queue", AMLTRAIN_DISPATCHER_IDLE="20"
        )
        os.chdir(folder)
        from jupyter_amltrain import api
        from jupyter_amltrain.jobs.environments import submitter_uv

        requirements = folder / "requirements.txt"
        requirements.write_text("\n".join(PACKAGES) + "\n")
        uv = submitter_uv()
        plain(uv, folder / "plain", requirements)
        run_seconds(api, "")
        builds = interleaved(
            {
                "plain": lambda: plain(uv, folder / "plain", requirements),
                "ours": lambda: build_seconds(api, requirements),
            },
            rounds,
        )
        runs = interleaved(
            {"kernel": lambda: run_seconds(api, ""), "environment": lambda: run_seconds(api, str(requirements))},
            2 * rounds,
        )
        api.close()
    print(f"Environment of {', '.join(PACKAGES)} from uv's cache (wall)")
    print(line("uv venv && uv pip install", builds["plain"], "s"))
    print(line("build phase of a run", builds["ours"], "s"))
    print("Submit to end of a short script (wall)")
    print(line("kernel's own interpreter", runs["kernel"], "s"))
    print(line("environment that is built", runs["environment"], "s"))
    middle = {key: statistics.median(values) for key, values in {**builds, **runs}.items()}
    print(verdict("build / plain uv", middle["ours"] / middle["plain"], 1.15))
    print(verdict("second submit in the environment / kernel's own", middle["environment"] / middle["kernel"], 1.2))


if __name__ == "__main__":
    main()

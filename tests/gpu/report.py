"""What a real GPU shows, in at most four minutes: ``python -m tests.gpu.report``.

Runs the tests of this folder and prints their findings as a table for the bug report or ``docs/gpu-assumptions.md``.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 240


def facts() -> str:
    """Return the GPUs, the driver and the versions of this machine, one line."""
    from jupyter_amltrain.agent.telemetry import nvml

    try:
        import pynvml

        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [nvml.as_text(pynvml.nvmlDeviceGetName(device)) for device in devices]
        driver = "driver {driver}, CUDA {cuda}".format(**nvml.versions(pynvml))
    except Exception as error:  # no pynvml, no driver, a broken one
        return f"No NVIDIA GPU could be read: {error}. Install nvidia-ml-py and the driver."
    python = f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {datetime.date.today()}"
    return f"{', '.join(map(str, names)) or 'no GPU'}; {driver}; {python}"


def main() -> int:
    """Print the report; 1 if something was not as expected."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "report"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(here / "bare.ini"),
            "-q",
            "-p",
            "no:cacheprovider",
            str(here),
        ]
        environ = {**os.environ, "AMLTRAIN_GPU_REPORT": str(found)}
        print(facts(), flush=True)
        try:
            done = subprocess.run(
                command, env=environ, cwd=here.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=LIMIT_S,
            )  # fmt: skip
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            text = error.stdout or b""
            output = (text.decode() if isinstance(text, bytes) else text) + f"\nended after {LIMIT_S} s"
            code = 1
        rows = [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []
    print("\n| what | seen |\n|---|---|")
    for what, text in rows:
        print(f"| {what} | {text} |")
    print("\n" + "\n".join(output.strip().splitlines()[-40:]))
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())

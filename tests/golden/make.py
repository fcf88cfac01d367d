"""Made the run folders of ``schema-1/`` once: ``python -m tests.golden.make``.

They stand for what is on users' disks: never made again for schema 1, only read. Real runs
of this checkout's agent, with this machine's paths, ids and names replaced by neutral ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE / "schema-1"

COMPLETED = """
import mlflow, time
mlflow.log_params({"lr": lr, "layers": 2})
for step in range(4):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
    print("epoch", step, flush=True)
    time.sleep(0.15)
mlflow.set_tag("kind", "golden")
mlflow.log_dict({"a": 1}, "notes/facts.json")
accuracy = 0.97
thing = object()
"""
FAILED = """
import mlflow
mlflow.log_metric("loss", float("nan"), step=0)
print("before", flush=True)
raise ValueError("no such digit")
"""


def neutral(text: str, home: Path, work: Path) -> str:
    """`text` without anything of the machine it was made on."""
    import socket
    import sys

    for found, put in (
        (str(home), "/home/user/.local/state/amltrain"),
        (str(work), "/home/user/project"),
        (sys.executable, "/usr/bin/python3"),
        (os.path.realpath(sys.executable), "/usr/bin/python3"),
        (sys.prefix, "/usr"),
    ):
        text = text.replace(found, put)
    text = text.replace(f'"node":"{socket.gethostname()}"', '"node":"box"')
    text = re.sub(r'"boot":"[^"]*"', '"boot":"00000000-0000-0000-0000-000000000000"', text)
    text = re.sub(r'"mark":"[^"]*"', '"mark":"0000000000000000"', text)
    text = re.sub(r'"pid":\d+', '"pid":4190000', text)
    return re.sub(r'("key":"mlflow\.user","value":|"user_id":)"[^"]*"', r'\1"user"', text)


def main() -> None:
    """Run both jobs and keep their folders."""
    from tests.helpers import api_of

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context():
        with api_of(Path(folder)) as api:
            home, work = Path(folder) / "home", Path(folder) / "work"
            made = []
            for name, code, out in (("golden", COMPLETED, ("accuracy", "thing", "never")), ("broken", FAILED, ())):
                run = api.submit(
                    code,
                    name=name,
                    params={"lr": 0.1},
                    out=out,
                    tags={"team": "a"},
                    experiment="golden",
                    env={"A": "1"},
                )
                try:
                    run.wait(60)
                except api.AmlTrainError:
                    pass
                made.append(Path(run.run.folder))
            api.close()
            shutil.rmtree(FOLDER, ignore_errors=True)
            for source, run_id in zip(made, ("golden-22222", "broken-33333"), strict=True):
                target = FOLDER / run_id
                shutil.copytree(source, target)
                (target / "tracking.json").unlink(missing_ok=True)
                shutil.rmtree(target / "outputs" / "__pycache__", ignore_errors=True)
                for path in sorted(target.rglob("*")):
                    if path.is_file():
                        text = neutral(path.read_text(encoding="utf-8"), home, work).replace(source.name, run_id)
                        path.write_text(text, encoding="utf-8")
    print(json.dumps(sorted(str(p.relative_to(HERE)) for p in FOLDER.rglob("*") if p.is_file()), indent=1))


if __name__ == "__main__":
    main()

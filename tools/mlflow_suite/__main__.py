"""MLflow's own tests in a job: ``python -m tools.mlflow_suite CHECKOUT [FILE...]`` prints a table.

``CHECKOUT`` is a folder with MLflow's repository, whose package is the client; the servers have this environment's
MLflow. The tests run in a job, each with an empty endpoint; those that fail run beside a server of MLflow as well. A
test that fails there too says nothing of a job: it needs a store of its own, another version, or another package.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from jupyter_amltrain import api
from jupyter_amltrain.errors import RunFailed

from . import endpoint, plugin

ROOT = Path(__file__).resolve().parents[2]

#: Files whose tests talk to a store.
FILES = (
    "tests/tracking/test_rest_tracking.py",
    "tests/tracking/test_model_registry.py",
    "tests/tracking/test_client.py",
    "tests/tracking/test_tracking.py",
    "tests/tracking/test_log_image.py",
    "tests/tracking/test_log_figure.py",
    "tests/tracking/test_artifact_utils.py",
    "tests/tracking/_model_registry/test_model_registry_fluent.py",
    "tests/tracking/fluent/test_fluent.py",
    "tests/store/tracking/sqlalchemy_store/test_sqlalchemy_store.py",
    "tests/store/model_registry/test_sqlalchemy_store.py",
)

#: Refusals of docs/mlflow.md.
REFUSED = re.compile(
    r"INVALID_STATE: (This (run|experiment|trace) is of the running job|The model .* is of this job)"
    r"|INVALID_PARAMETER_VALUE: This search does not support the column"
)

#: Tests of stores that MLflow no longer has, and of workspaces, which a job does not have.
NOT_RUN = "not file- and not [file] and not workspace-enabled"

COLUMNS = ("passed", "refused", "failed", "fails at server", "skipped")


def environment(checkout: Path, kind: str, out: Path) -> dict[str, str]:
    """Return the variables of a run of the tests."""
    return {
        plugin.KIND: kind,
        plugin.FOLDER: str(out / kind),
        plugin.RESULTS: str(out / f"{kind}.jsonl"),
        endpoint.LATER: "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (checkout, ROOT))),
    }


def command(tests: Iterable[str]) -> list[str]:
    """Return the command of pytest."""
    flags = ["-q", "--tb=short", "--timeout=120", "-o", "addopts=", "-k", NOT_RUN]
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", plugin.__name__, *flags, *tests]


def run_in_job(checkout: Path, out: Path, tests: Iterable[str]) -> None:
    """Run tests in a job of this machine, in a project of its own."""
    more = environment(checkout, "job", out)
    code = (
        "import os, subprocess, sys\n"
        f"more = {more!r}\n"
        "paths = [os.environ.get('PYTHONPATH', ''), more['PYTHONPATH']]\n"
        "more['PYTHONPATH'] = os.pathsep.join(filter(None, paths))\n"
        f"sys.exit(subprocess.call({command(tests)!r}, cwd={str(checkout)!r}, env={{**os.environ, **more}}))\n"
    )
    project = out / "project"
    project.mkdir()
    os.chdir(project)
    run = api.submit(code, name="suite")
    try:
        run.wait()
    except RunFailed:  # a test has failed
        print(run.logs()[-2000:])
    finally:
        api.close()


def run_at_server(checkout: Path, out: Path, tests: Iterable[str]) -> None:
    """Run tests beside a server of MLflow."""
    more = environment(checkout, "server", out)
    subprocess.run(command(tests), cwd=checkout, env={**os.environ, **more}, check=False)


def results(path: Path) -> dict[str, tuple[str, str]]:
    """Return outcome and text of each test."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {test: (outcome, text) for test, outcome, text in lines}


def verdicts(out: Path) -> dict[str, str]:
    """Return the column of each test."""
    server, found = results(out / "server.jsonl"), dict[str, str]()
    for test, (outcome, text) in results(out / "job.jsonl").items():
        if outcome in ("passed", "skipped"):
            found[test] = outcome
        elif server.get(test, ("", ""))[0] not in ("passed", ""):
            found[test] = "fails at server"
        else:
            found[test] = "refused" if REFUSED.search(text) else "failed"
    return found


def table(found: dict[str, str]) -> list[str]:
    """Return the lines of the table, and its percentage."""
    counts: dict[str, Counter[str]] = {}
    for test, verdict in found.items():
        counts.setdefault(test.partition("::")[0], Counter())[verdict] += 1
    counts["all"] = sum(counts.values(), Counter())
    lines = [f"{'file':66}" + "".join(f"{name:>17}" for name in COLUMNS)]
    for file, count in counts.items():
        lines.append(f"{file:66}" + "".join(f"{count[name]:17}" for name in COLUMNS))
    passed = counts["all"]["passed"]
    meaningful = passed + counts["all"]["refused"] + counts["all"]["failed"]
    return [*lines, f"{100 * passed / max(1, meaningful):.1f} % of those that pass at a server pass in a job"]


def main(arguments: list[str]) -> int:
    """Run the tests and print the table."""
    if not arguments:
        print(__doc__)
        return 2
    checkout, out = Path(arguments[0]).resolve(), Path(tempfile.mkdtemp(prefix="mlflow-suite-"))
    os.environ.update(AMLTRAIN_HOME=str(out / "home"), AMLTRAIN_QUEUE=str(out / "queue"))
    run_in_job(checkout, out, arguments[1:] or FILES)
    failed = [test for test, (outcome, _) in results(out / "job.jsonl").items() if outcome not in ("passed", "skipped")]
    if failed:
        run_at_server(checkout, out, failed)
    found = verdicts(out)
    for name in ("refused", "failed"):
        print(*(f"{name}: {test}" for test, verdict in found.items() if verdict == name), sep="\n")
    print(*table(found), f"The texts of the failures are in {out}.", sep="\n")
    return 1 if "failed" in found.values() or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``provenance.json`` of a run: the interpreter of its job with the installed packages, and the machine.

Packages are read from the names of their metadata folders, without opening a file. Where these folders are, the
interpreter itself reports; its report is stored for the next runs, until the interpreter or one of its folders changes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import zlib
from typing import Any, Dict, List, Mapping, Optional

from ..protocol import PROVENANCE, SCHEMA, AgentError, read_json, write_json
from ..queue.slots import usable_cpus
from ..telemetry.host import memory_total

#: Seconds for an interpreter to report its folders.
REPORT_TIMEOUT_S = 10.0
#: Maximum number of packages in the file.
MAX_PACKAGES = 5000

_REPORT = (
    "import json, platform, sys;"
    "print(json.dumps([platform.python_version(), sys.executable, sys.prefix, [p for p in sys.path if p]]))"
)
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info\Z")
_INTERPRETER = re.compile(r"python[\d.]*(?:\.exe)?\Z")


def write(
    folder: str,
    job: Mapping[str, Any],
    cache: str = "",
    environment: str = "",
    container: Optional[Mapping[str, Any]] = None,
    inputs: Optional[Mapping[str, Any]] = None,
) -> None:
    """Write the file into a run folder; on a full disk the run has none.

    Parameters
    ----------
    folder
        The run folder.
    environment
        Folder of the environment that was built for the job; empty for none.
    cache
        Folder for the reports of interpreters; empty for none.
    container
        Container of the job, with the id of its image, which stands for interpreter and packages.
    inputs
        Digests of downloaded inputs by name.
    """
    record: Dict[str, Any] = {"schema": SCHEMA, "machine": machine()}
    if container:
        record["image"] = "%s (%s)" % (container.get("image"), container.get("id"))
    if inputs:
        record["inputs"] = dict(inputs)
    program = "" if container else interpreter_of(job, environment)
    if program:
        record.update(describe(program, cache))
    try:
        write_json(os.path.join(folder, PROVENANCE), record)
    except OSError:  # the run itself does not depend on it
        pass


def describe(program: str, cache: str = "") -> Dict[str, Any]:
    """Return ``python`` and ``packages`` of an interpreter; empty if it does not start."""
    report = _report(program, cache)
    if report is None:
        return {}
    python = {"version": report["version"], "executable": report["executable"]}
    return {"python": python, "packages": packages(report["path"])}


def serve(
    folder: str,
    job: Mapping[str, Any],
    home: str,
    environment: str = "",
    container: Optional[Mapping[str, Any]] = None,
    inputs: Optional[Mapping[str, Any]] = None,
) -> int:
    """Write the file, with the stored reports of the state root `home`; the body of a helper."""
    cache = os.path.join(home, "agent")
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
    except OSError:  # a machine of a service without a writable folder
        cache = ""
    write(folder, job, cache, environment, container, inputs)
    return 0


def machine() -> Dict[str, Any]:
    """Return host name, platform, processor, number of cores, and bytes of memory of this machine."""
    return {
        "host": socket.gethostname(),
        "platform": "%s %s %s" % (platform.system(), platform.release(), platform.machine()),
        "processor": _processor(),
        "cpus": usable_cpus(),
        "memory": memory_total(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor()


def interpreter_of(job: Mapping[str, Any], environment: str = "") -> str:
    """Return the absolute path of the Python that runs a job; empty if the job names none.

    A command line of ``sh`` has the interpreter of its environment, else that of its target.
    """
    built = os.path.join(environment, "bin", "python")
    if environment and os.path.exists(built):
        return built
    argv = job.get("argv") or [""]
    provenance = job.get("provenance")
    program = str(argv[0])
    if not _INTERPRETER.match(os.path.basename(program)):
        program = str(provenance.get("interpreter") or "") if isinstance(provenance, dict) else ""
    if program and os.sep not in program:
        path = str((job.get("env") or {}).get("PATH") or os.environ.get("PATH") or os.defpath)
        program = shutil.which(program, path=path) or ""
    return os.path.abspath(program) if program else ""


def _report(program: str, cache: str) -> Optional[Dict[str, Any]]:
    """Return version, executable and import folders of an interpreter; ``None`` if it does not start."""
    stored = os.path.join(cache, "python-%08x.json" % zlib.crc32(os.fsencode(program))) if cache else ""
    if stored:
        try:
            known = read_json(stored)
        except (OSError, AgentError):
            known = None
        if known is not None and known.get("program") == program and known.get("changed") == _changed(known):
            return known
    report = _started(program)
    if report is None:
        return None
    report["schema"], report["changed"] = SCHEMA, _changed(report)
    if stored:
        try:
            write_json(stored, report)
        except OSError:  # the next run starts the interpreter again
            pass
    return report


def _started(program: str) -> Optional[Dict[str, Any]]:
    """Start the interpreter for its report."""
    # Variables of this process's own interpreter do not apply to another one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        result = subprocess.run(
            [program, "-c", _REPORT], env=env, cwd=os.sep, timeout=REPORT_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        # The user's sitecustomize may print lines before.
        version, executable, prefix, path = json.loads(result.stdout.decode("utf-8", "replace").splitlines()[-1])
        path = [str(part) for part in path]
    except (OSError, ValueError, TypeError, IndexError, subprocess.SubprocessError):
        return None
    return {"program": program, "version": version, "executable": executable, "prefix": prefix, "path": path}


def _changed(report: Mapping[str, Any]) -> List[Optional[int]]:
    """Return when the interpreter and its folders changed last (ns); ``None`` for each that does not exist."""
    paths = [report.get("program"), os.path.join(str(report.get("prefix")), "pyvenv.cfg"), *(report.get("path") or ())]
    times: List[Optional[int]] = []
    for path in paths:
        try:
            times.append(os.stat(str(path)).st_mtime_ns)
        except (OSError, ValueError):
            times.append(None)
    return times


def packages(path: List[str]) -> Dict[str, str]:
    """Return the versions of the packages in the folders of an import path, by normalized name."""
    found: Dict[str, str] = {}
    for folder in path:
        try:
            names = sorted(os.listdir(folder))
        except OSError:  # a zip file, or an entry that does not exist
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")) or len(found) >= MAX_PACKAGES:
                continue
            match = _METADATA.match(name)
            package = match.group("name") if match else name.rpartition(".")[0]
            package = re.sub(r"[-_.]+", "-", package).lower()
            # The first one on the path is imported.
            if package not in found:
                found[package] = match.group("version") if match else _stated_version(os.path.join(folder, name))
    return dict(sorted(found.items()))


def _stated_version(metadata: str) -> str:
    """Return the version in a metadata folder whose name has none, as in a development install."""
    for name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(metadata, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    if line.startswith("Version:"):
                        return line.partition(":")[2].strip()
                    if not line.strip():  # the end of the header
                        break
        except OSError:
            continue
    return ""

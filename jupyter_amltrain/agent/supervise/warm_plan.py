"""What a waiting interpreter imports, and the environment in which it does: those of the last run of a queue."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..processes import LINUX
from ..protocol import AUTOLOG, MARK, WARM, AgentError, read_state
from . import job_hooks
from .assignment import Assignment
from .warm_hook import NO_MARK

if TYPE_CHECKING:
    import ast

#: Variable with the largest memory of a waiting interpreter, in MiB; and its default.
MEMORY, MAX_MEMORY_MIB = "AMLTRAIN_WARM_MEMORY", 1024.0
#: Prefixes of the variables that differ from run to run, and that no library of C reads.
RUN_PREFIXES = ("AML_", "AMLTRAIN_")
#: A script with more bytes is not read.
MAX_SCRIPT_BYTES = 1 << 20
#: Modules of Python; an agent's Python of before 3.10 does not know them.
_STANDARD = frozenset(getattr(sys, "stdlib_module_names", ()))


class ImportLine(NamedTuple):
    """An import at the beginning of a script."""

    modules: Sequence[str]  #: top-level names
    text: str


class WarmPlan(NamedTuple):
    """What a waiting interpreter is started with."""

    argv: List[str]
    cwd: str
    env: Dict[str, str]
    lines: List[ImportLine]
    idle_s: float
    memory: int


def number(task: Assignment, name: str, default: float) -> float:
    """Return a setting of the job, else of its submitter's environment."""
    text = task.job["env"].get(name, task.environ.get(name, ""))
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else default


def is_suitable(task: Assignment) -> bool:
    """Whether a job may have an interpreter that has waited: one plain Python on the CPU of this machine."""
    job, argv = task.job, task.job["argv"]
    return (
        LINUX
        and not (task.devices or task.secrets or job_hooks.has_autolog(job["env"]) or task.environ.get(AUTOLOG))
        and not any(job.get(name) for name in ("container", "ranks", "nodes", "secrets"))
        and len(argv) > 2
        and argv[1] == "-u"
        and os.path.isabs(argv[2])
        and argv[2].endswith(".py")
        and number(task, WARM, 0.0) > 0
    )


def is_alike(one: Assignment, other: Assignment) -> bool:
    """Whether an interpreter for a job like `one` is also one for a job like `other`: their code is the same."""

    def key(task: Assignment) -> Any:
        spec = task.job.get("spec") or {}
        code = spec.get("source_sha256") or task.folder
        job = task.job
        return job["argv"][:2], job["cwd"], task.environ, sorted(job["env"]), job["tracking"].get("mode"), code

    return bool(key(one) == key(other))


def plan_of(task: Assignment, env: Dict[str, str]) -> Optional[WarmPlan]:
    """Return the plan for the run after `task`, which has ended; ``None`` if its script imports no package.

    Parameters
    ----------
    env
        The environment of the next job, as far as it is known.
    """
    lines = leading_imports(task.job["argv"][2])
    if lines is None or all(name in _STANDARD for line in lines for name in line.modules):
        return None
    place = os.path.join(task.home, "agent", "next")
    shown = {name: value.replace(task.folder, place) for name, value in env.items()}
    memory = min(number(task, MEMORY, MAX_MEMORY_MIB) * 2**20, _free_memory() / 4)
    idle_s = number(task, WARM, 0.0)
    return WarmPlan(list(task.job["argv"]), task.job["cwd"], {**shown, MARK: NO_MARK}, lines, idle_s, int(memory))


def with_built_environment(task: Assignment) -> Optional[Assignment]:
    """Return a job with the environment that was built for it; ``None`` while there is none."""
    if not task.job.get("environment"):
        return task
    try:
        built = (read_state(task.folder) or {}).get("environment")
    except (OSError, AgentError):  # a job may have written it
        built = None
    if not isinstance(built, dict) or not isinstance(built.get("path"), str):
        return None
    return task._replace(state={**task.state, "environment": {**built, "conda": bool(built.get("conda"))}})


def leading_imports(path: str) -> Optional[List[ImportLine]]:
    """Return the imports with which a script begins; ``None`` if it cannot be read.

    Only constants may be assigned before, and ``display`` be defined: any other statement could change what an import
    does.
    """
    import ast  # a dispatcher does not need it
    import warnings

    from ..notebook_runtime import INSTALL

    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
        text = data.decode("utf-8") if len(data) <= MAX_SCRIPT_BYTES else ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own run shows them
            body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    lines: List[ImportLine] = []
    for node in body:
        if isinstance(node, ast.Import):
            modules = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules = [node.module.partition(".")[0]]
        elif _is_constant(node) or ast.get_source_segment(text, node) == INSTALL:
            continue
        else:
            break
        if modules != ["__future__"]:
            lines.append(ImportLine(modules, ast.get_source_segment(text, node) or ""))
    return lines


def _is_constant(node: ast.stmt) -> bool:
    """Whether a statement is a text, ``pass``, or the assignment of a constant to a name."""
    import ast

    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Assign):
        return isinstance(node, ast.Pass)
    allowed = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.UAdd, ast.USub, ast.Load)
    # Names of Python itself may change what an import does.
    is_plain = all(
        isinstance(one, ast.Name) and (not one.id.startswith("__") or one.id == "__doc__") for one in node.targets
    )
    return is_plain and all(isinstance(one, allowed) for one in ast.walk(node.value))


def differences(waiting: Mapping[str, str], job: Mapping[str, str]) -> List[str]:
    """Return the names of the variables that differ."""
    return [name for name in {*waiting, *job} if waiting.get(name) != job.get(name)]


def may_differ(name: str, waiting: Mapping[str, str], job: Mapping[str, str]) -> bool:
    """Whether a variable may differ from that of the waiting interpreter, if no package has read it."""
    if name in (WARM, MEMORY):
        return True
    # A hook of the agent does nothing where its variable is absent.
    is_in_both = (name in waiting) == (name in job)
    return name.startswith(RUN_PREFIXES) and (is_in_both or not name.startswith("AMLTRAIN_"))


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":", 1) for line in file)
        return float(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return 0.0

"""What a waiting interpreter imports, and the environment in which it does: those of the last run of a queue."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..processes import LINUX
from ..protocol import AUTOLOG, MARK, WARM, AgentError, read_state
from ..telemetry import host
from . import job_hooks
from .assignment import Assignment
from .warm_hook import NO_MARK

if TYPE_CHECKING:
    import ast

#: Seconds that an interpreter waits where nobody sets them.
IDLE_S = 300.0
#: Then none waits after a longer run, of which the imports are a small part, or while more processes than this want
#: each processor: somebody else may need them.
MAX_RUN_S, MAX_LOAD = 600.0, 2.0
#: Variable with the largest memory of a waiting interpreter, in MiB; and its default.
MEMORY, MAX_MEMORY_MIB = "AMLTRAIN_WARM_MEMORY", 1024.0
#: Most of the free memory, and of that of the machine or its container.
_MAX_FREE_PART, _MAX_PART = 1 / 4, 1 / 8
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


def number(task: Assignment, name: str) -> Optional[float]:
    """Return a setting of the job, else of its submitter's environment; ``None`` if nobody sets it."""
    text = task.job["env"].get(name, task.environ.get(name, ""))
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def idle_s(task: Assignment) -> float:
    """Return for how long an interpreter waits after a job; 0 for not at all."""
    seconds = number(task, WARM)
    return IDLE_S if seconds is None else seconds


def is_worth(task: Assignment, ran_s: float) -> bool:
    """Whether an interpreter is to wait after a job that ran for `ran_s`: yes, where somebody has set it."""
    if number(task, WARM) is not None:
        return True
    return ran_s < MAX_RUN_S and os.getloadavg()[0] < MAX_LOAD * (os.cpu_count() or 1)


def is_repeated(task: Assignment) -> bool:
    """Whether an interpreter is to import while a job runs: its next run follows at once, as that of a trial."""
    return number(task, WARM) is not None or bool((task.job.get("spec") or {}).get("parent"))


def in_next(task: Assignment, text: str) -> str:
    """Return a path or a text with the folder of the next run, which is not known, in place of this one's."""
    return text.replace(task.folder, os.path.join(task.home, "agent", "next"))


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
        and idle_s(task) > 0
    )


def is_alike(one: Assignment, other: Assignment) -> bool:
    """Whether an interpreter for a job like `one` is also one for a job like `other`: their code is the same."""

    def key(task: Assignment) -> Any:
        spec = task.job.get("spec") or {}
        code = spec.get("source_sha256") or task.folder
        job, folder = task.job, in_next(task, task.job["cwd"])
        return job["argv"][:2], folder, task.environ, sorted(job["env"]), job["tracking"].get("mode"), code

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
    shown = {name: in_next(task, value) for name, value in env.items()}
    limit = number(task, MEMORY)
    memory = min(
        (MAX_MEMORY_MIB if limit is None else limit) * 2**20,
        host.memory_available() * _MAX_FREE_PART,
        (host.memory_total() or 0) * _MAX_PART,
    )
    return WarmPlan(
        list(task.job["argv"]), in_next(task, task.job["cwd"]), {**shown, MARK: NO_MARK}, lines, idle_s(task),
        int(memory),
    )  # fmt: skip


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

    Only constants may be assigned before, ``display`` be defined and a clock be started: any other statement could
    change what an import does.
    """
    import ast  # a dispatcher does not need it
    import warnings

    from ..notebook_runtime import INSTALL, TIMER

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
        elif _is_constant(node) or ast.get_source_segment(text, node) in (INSTALL, TIMER):
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

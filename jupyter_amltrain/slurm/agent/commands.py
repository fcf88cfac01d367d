"""Commands of Slurm: found, run with a time limit, and their errors in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Dict, List, Mapping, Optional, Sequence

from jupyter_amltrain.agent.protocol import AgentError

#: Folders of Slurm that are often outside of the PATH of a command over SSH.
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin")
#: Seconds for an answer of the controller.
TIMEOUT_S = 20.0
#: What a command prints when the controller does not answer.
_SILENT = (
    *("Unable to contact slurm controller", "Socket timed out", "Connection refused", "slurm_load_jobs error"),
    *("Zero Bytes were transmitted", "Slurm temporarily unable to accept job"),
)
#: What one prints whose job the controller has forgotten.
_NO_JOB = "Invalid job id"
#: Prefixes that Slurm's programs put before what they print as errors.
_PREFIXES = ("sbatch: error: ", "squeue: error: ", "scancel: error: ", "scontrol: error: ", "sinfo: error: ", "error: ",
             "sbatch: ")  # fmt: skip
#: Start of a line that names the help of a program.
_HELP = 'Try "'


def program(name: str) -> str:
    """Return the path of a program of Slurm.

    Raises
    ------
    AgentError
        There is none.
    """
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS]))
    if found is None:
        raise AgentError(
            "TargetError",
            "%s was not found on %s: it is no login node of a Slurm cluster. Give the login node: --host NAME."
            % (name, os.uname().nodename),
            "slurm.no_program",
        )
    return found


def run(
    *argv: str,
    timeout_s: float = TIMEOUT_S,
    text: str = "",
    environ: Optional[Mapping[str, str]] = None,
    may_fail: bool = False,
) -> str:
    """Run a command of Slurm and return what it prints.

    Parameters
    ----------
    text
        Its standard input.
    may_fail
        Return what it prints also if it fails.

    Raises
    ------
    AgentError
        It fails. ``TargetUnreachable`` if the controller does not answer.
    """
    command = [program(argv[0]), *argv[1:]]
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=timeout_s,
            env=dict(os.environ if environ is None else environ, SLURM_TIME_FORMAT="%s"),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SilentController("%s had no answer within %g s" % (argv[0], timeout_s)) from None
    except OSError as error:
        raise AgentError("TargetError", "%s cannot be run: %s." % (argv[0], error.strerror or error)) from None
    output, errors = (data.decode("utf-8", "replace") for data in (done.stdout, done.stderr))
    if done.returncode == 0 or (may_fail and output):
        return output
    message = error_text(errors) or "exit code %d" % done.returncode
    if any(one in errors for one in _SILENT) and _NO_JOB not in errors:
        raise SilentController(message)
    raise CommandRefused(argv[0], message)


def run_both(*argv: str, timeout_s: float = TIMEOUT_S) -> str:
    """Run a command and return all that it prints: some print a list as if it were an error."""
    try:
        done = subprocess.run([program(argv[0]), *argv[1:]], capture_output=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")


class CommandRefused(AgentError):
    """A command that the controller has refused.

    Parameters
    ----------
    command, reason
        Its name, and what it has printed.
    """

    def __init__(self, command: str, reason: str) -> None:
        self.reason = reason.rstrip(".")
        super().__init__("TargetError", "%s: %s." % (command, self.reason), "slurm.refused")


class SilentController(AgentError):
    """The controller does not answer.

    Parameters
    ----------
    reason
        What the command has printed.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason.rstrip(".")
        text = "The controller of Slurm does not answer: %s. Runs are not affected. Try again in a minute."
        super().__init__("TargetUnreachable", text % self.reason, "slurm.silent")


def error_text(errors: str) -> str:
    """Return the last line of what a command prints as an error, without its prefix and the name of its help."""
    lines: List[str] = [line.strip() for line in errors.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if not line.startswith(_HELP)), "")
    for prefix in _PREFIXES:
        if last.startswith(prefix):
            last = last[len(prefix) :]
    return last[:300]


def pairs(line: str) -> Dict[str, str]:
    """Return the fields of a line of ``scontrol show --oneliner``; values have no spaces but for a few that we skip."""
    found: Dict[str, str] = {}
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals and name not in found:
            found[name] = value
    return found


def show(kind: str, *names: str, timeout_s: float = TIMEOUT_S) -> Sequence[Dict[str, str]]:
    """Return what ``scontrol show`` says of partitions, nodes or jobs."""
    lines = run("scontrol", "show", kind, *names, "--oneliner", timeout_s=timeout_s).splitlines()
    return [pairs(line) for line in lines if "=" in line]


def config() -> Dict[str, str]:
    """Return the settings of the controller."""
    rows = (line.partition("=") for line in run("scontrol", "show", "config").splitlines())
    return {name.strip(): value.strip() for name, equals, value in rows if equals}


def duration(text: str) -> Optional[float]:
    """Return the seconds of a time of Slurm, ``1-02:30:00``, ``30:00``, ``5``; ``None`` for no limit."""
    days, dash, rest = text.partition("-") if "-" in text else ("0", "", text)
    try:
        numbers = [int(part) for part in rest.split(":")]
        if dash:  # days-hours[:minutes[:seconds]]
            numbers += [0] * (3 - len(numbers))
        elif len(numbers) == 1:  # minutes
            numbers = [0, numbers[0], 0]
        hours, minutes, seconds = [0] * (3 - len(numbers)) + numbers
        return float(int(days) * 86400 + hours * 3600 + minutes * 60 + seconds)
    except ValueError:  # UNLIMITED, NONE, INVALID
        return None


def whole(text: str) -> int:
    """Return the number at the start of a text such as ``4+``; 0 without one."""
    digits = ""
    for letter in text:
        if not letter.isdigit():
            break
        digits += letter
    return int(digits or 0)

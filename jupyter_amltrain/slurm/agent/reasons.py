"""Why a job of Slurm waits, in words with what to do; and how it has ended."""

from __future__ import annotations

from typing import Dict, Tuple

from jupyter_amltrain.agent.protocol import CANCELED, FAILED, LOST, PREEMPTED

#: States of jobs that have ended.
ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "TIMEOUT", "REVOKED"),
    )
)
#: States of jobs that have not started, or wait again.
WAITING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
_WORDS: Dict[str, str] = {
    "Resources": "it is the next one, and waits for nodes to become free",
    "Priority": "jobs with a higher priority are before it",
    "BeginTime": "Slurm starts it later, for example again after it was requeued; at once:"
    " scontrol update JobId={job} StartTime=now",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it waits for has failed, so it never starts: cancel it",
    "JobHeldUser": "you hold it; release it: scontrol release {job}",
    "JobHeldAdmin": "an administrator holds it: ask them",
    "JobHoldMaxRequeue": "it was requeued too often; release it: scontrol release {job}",
    "launch_failed_requeued_held": "its start failed on a node, and Slurm holds it: scontrol release {job}",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved: see sinfo -R, or use another partition",
    "Reservation": "it waits for its reservation",
    "NodeDown": "a node that it needs is down: see sinfo -R",
    "PartitionDown": "its partition takes no jobs now: use another one (--partition)",
    "PartitionInactive": "its partition starts no jobs now: use another one (--partition)",
    "PartitionTimeLimit": "it asks for more time than its partition allows: cancel it, and submit it with a shorter"
    " --timeout",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows: cancel it, and submit it with"
    " fewer --nodes",
    "BadConstraints": "no node has what it asks for: cancel it, and ask for less",
    "Licenses": "it waits for a license",
    "InvalidAccount": "its account is not valid: cancel it, and attach the target with another --account",
    "InvalidQOS": "its quality of service is not valid: cancel it, and attach the target with another --qos",
    "AccountNotAllowed": "its account may not use this partition: attach the target with another --account",
    "QOSNotAllowed": "its quality of service may not use this partition: attach the target with another --qos",
    "JobArrayTaskLimit": "as many tasks of its array run as may",
    "FrontEndDown": "the front end is down",
    "Cleaning": "Slurm still ends its last attempt",
    "Prolog": "the cluster prepares its nodes",
    "NonZeroExitCode": "its last attempt has failed",
    "SystemFailure": "the cluster has a fault: ask an administrator",
}
#: Words by beginnings and ends of the names of limits of accounts and qualities of service.
_LIMITS: Tuple[Tuple[str, str], ...] = (
    ("GRES", "GPUs"),
    ("Cpu", "processors"),
    ("CPU", "processors"),
    ("Node", "nodes"),
    ("Mem", "memory"),
    ("Wall", "time"),
    ("Time", "time"),
    ("Job", "jobs"),
)


def words(reason: str, job: str) -> str:
    """Return why a job waits, with what to do; the name of the reason comes first."""
    name = reason.strip("()").partition(",")[0].partition(" ")[0]
    if name in ("", "None"):
        return "it was not looked at yet"
    text = _WORDS.get(name) or _limit(name)
    return "%s: %s" % (name, text.format(job=job)) if text else reason.strip("()")


def _limit(name: str) -> str:
    """Return the words of a limit such as ``QOSMaxGRESPerUser`` and ``AssocGrpCpuLimit``."""
    if name.startswith("QOS"):
        owner = "your quality of service"
    elif name.startswith("Assoc"):
        owner = "your account"
    elif name.startswith("Max"):
        owner = "a limit"
    else:
        return ""
    is_of_job = "PerJob" in name or "PerNode" in name
    kind = name.replace("PerJob", "").replace("PerNode", "")
    what = next((what for part, what in _LIMITS if part in kind), "resources")
    if is_of_job:
        many = "much" if what in ("memory", "time") else "many"
        long = " for so long" if "Minutes" in name else ""
        return "%s allows no job with so %s %s%s: cancel it, and ask for less" % (owner, many, what, long)
    if ("Minutes" in name and "RunMinutes" not in name) or "GrpWall" in name:
        of = "" if what == "time" else " of %s" % what
        return "%s has used up its time%s: ask an administrator, or use another --account or --qos" % (owner, of)
    text = "%s allows no more %s at the same time: it starts when jobs of yours or of your group end, or never if it"
    return (text + " needs more than the limit by itself") % (owner, what)


def ended(state: str, exit_code: str) -> Tuple[str, str, str]:
    """Return state, reason and detail of a run whose job has ended without a result of its own.

    Parameters
    ----------
    state
        Slurm's.
    exit_code
        As Slurm shows it: ``1:0`` is a code and a signal; empty if it is not known.
    """
    if state == "TIMEOUT" or state == "DEADLINE":
        return FAILED, "timeout", "the time limit of its job was reached, and its processes were killed"
    if state == "OUT_OF_MEMORY":
        return FAILED, "oom", "out of memory: its job needs more than it was given; ask for more: --mem"
    if state == "CANCELLED":
        return CANCELED, CANCELED, "its job was canceled in Slurm"
    if state == "PREEMPTED":
        return FAILED, PREEMPTED, "was pre-empted by a job with a higher priority"
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return LOST, LOST, "a node of its job has failed"
    if state == "FAILED":
        code = exit_code.partition(":")[0]
        return FAILED, "launch", "could not be started: its job has ended with code %s" % (code or "unknown")
    if state == "COMPLETED":
        return LOST, LOST, "its job has ended, and has left no result"
    return LOST, LOST, "Slurm does not know its job any more, and it has left no result"

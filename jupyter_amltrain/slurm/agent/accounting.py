"""Shares and limits of the accounts of this user, where the accounting of the cluster answers."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.agent.queue.dispatcher_client import AgentContext

from . import commands
from .jobs import user_name

Json = Dict[str, Any]

#: Seconds for an answer of the accounting, which is another service than the controller.
_TIMEOUT_S = 5.0
#: Columns of limits of this user in an account, of a whole account, and of a quality of service, and what they mean;
#: ``{}`` is the value.
_USER_LIMITS = {
    "GrpTRES": "{} at a time",
    "GrpTRESMins": "{} minutes in all",
    "GrpJobs": "{} jobs at a time",
    "MaxTRES": "{} a job",
    "MaxTRESMins": "{} minutes a job",
    "MaxJobs": "{} jobs at a time",
    "MaxSubmit": "{} jobs in the queue",
    "MaxWall": "{} of time",
}
_ACCOUNT_LIMITS = {
    "GrpTRES": "{} for all its users",
    "GrpTRESMins": "{} minutes for all its users",
    "GrpJobs": "{} jobs of all its users at a time",
}
_QOS_LIMITS = {
    "GrpTRES": "{} for all",
    "MaxTRESPU": "{} a user",
    "MaxJobsPU": "{} jobs of a user at a time",
    "MaxSubmitPU": "{} jobs of a user in the queue",
    "MaxTRES": "{} a job",
    "MaxWall": "{} of time",
}


def accounts(cluster: str) -> List[str]:
    """Return the accounts of this user on a cluster; none where the accounting does not answer."""
    try:
        rows = _associations(cluster, user_name(), "Account")
    except AgentError:
        return []
    return sorted({row[0] for row in rows if row[0]})


def _shares() -> List[Json]:
    # Lines of this user; those of the accounts above have no name of a user.
    rows = _table("sshare", "-U", columns=("Account", "NormShares", "RawUsage", "EffectvUsage", "FairShare"))
    names = ("account", "shares", "used", "part", "share")
    return [dict(zip(names, [row[0], *map(_short, row[1:])])) for row in rows]


def _short(number: str) -> str:
    """Return a number without the zeros at its end."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def quota(context: AgentContext, payload: Json) -> Json:
    """Return shares of the accounts of this user, their limits, and those of the qualities of service they may use.

    Raises
    ------
    AgentError
        The accounting does not answer.
    """
    found: Json = {"shares": [], "accounts": [], "qos": []}
    errors = []
    for name, read in (("shares", _shares), ("accounts", _account_rows), ("qos", _qos_rows)):
        try:
            found[name] = read()
        except AgentError as error:
            errors.append(getattr(error, "reason", error.message.rstrip(".")))
    if not any(found.values()):
        reason = errors[0] if errors else "it has no account of %s" % user_name()
        raise AgentError(
            "CommandError",
            "The accounting of this cluster tells no shares and no limits: %s. A limit is shown as the reason of a run"
            " that waits; nodes and free GPUs: %%aml_monitor." % reason,
            "slurm.accounting",
        )
    allowed = {one for row in found["accounts"] for one in row["qos"].split(",") if one}
    found["qos"] = [row for row in found["qos"] if not allowed or row["name"] in allowed]
    return found


def _account_rows() -> List[Json]:
    """Return the accounts of this user, and then those accounts and the ones above them that have limits as a whole."""
    cluster = commands.config().get("ClusterName", "")
    rows = _associations(cluster, user_name(), "Account", "Partition", "QOS", *_USER_LIMITS)
    found = [
        {"account": row[0], "partition": row[1], "qos": row[2], "limits": _limits(_USER_LIMITS, row[3:])}
        for row in rows
    ]
    # Rows without a user are the accounts themselves; limits of a user are those of the account where they have none.
    whole = {row[0]: row[1:] for row in _associations(cluster, "", "Account", "ParentName", *_ACCOUNT_LIMITS)}
    names = list(dict.fromkeys(row[0] for row in rows))
    for name in names:
        parent, *values = whole.get(name, [""])
        if any(values):
            found.append({"account": name, "partition": "", "qos": "", "limits": _limits(_ACCOUNT_LIMITS, values)})
        if parent and parent not in names:
            names.append(parent)
    return found


def _qos_rows() -> List[Json]:
    rows = _table("sacctmgr", "show", "qos", columns=("Name", "Priority", *_QOS_LIMITS))
    return [{"name": row[0], "priority": row[1], "limits": _limits(_QOS_LIMITS, row[2:])} for row in rows]


def _associations(cluster: str, user: str, *columns: str) -> List[List[str]]:
    """Return the rows of a user in the accounts of a cluster: one accounting may serve several clusters."""
    return _table("sacctmgr", "show", "assoc", "cluster=" + cluster, "user=" + user, columns=columns)


def _limits(words: Dict[str, str], values: Sequence[str]) -> str:
    return "; ".join(text.format(value) for text, value in zip(words.values(), values) if value)


def _table(program: str, *words: str, columns: Sequence[str]) -> List[List[str]]:
    """Return the lines of a program of the accounting, a text for each column."""
    wanted = "%s=%s" % ("--format" if program == "sshare" else "format", ",".join(columns))
    text = commands.run(program, "-n", "-P", *words, wanted, timeout_s=_TIMEOUT_S)
    rows = ([part.strip() for part in line.split("|")] for line in text.splitlines())
    return [row for row in rows if len(row) == len(columns)]

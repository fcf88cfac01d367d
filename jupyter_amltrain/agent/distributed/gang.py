"""Decisions about a run on several machines: who takes slots next, when all start, and how the run has ended.

The connector of node 0 (:mod:`.node_connector`) asks; nothing here sends or waits. Each node reports its whole status
again and again, and gets its whole orders, so that a lost message does no harm.

Slots are taken in one order of the machines' queues, which is the same for all runs: a node gets its turn when all
nodes before it hold theirs. Of several runs that wait for each other, the one that holds the last queue of that order
waits for none of the others, so they cannot block each other.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ..protocol import COMPLETED, FAILED, LOST, AgentError

Json = Dict[str, Any]

#: File of a run with the process that connects its nodes, and whether the run may take slots.
GATE = "nodes.json"
MAX_NODES = 512

#: Phases of a node: it has not reported, waits for slots, holds them, is prepared, has ended.
ABSENT, QUEUED, HOLDING, READY, ENDED = "absent", "queued", "holding", "ready", "ended"
_RANK = {ABSENT: 0, QUEUED: 1, HOLDING: 2, READY: 3, ENDED: 4}

#: Seconds without a report after which a node is lost; of a node that has never reported.
SILENCE_S, JOIN_TIMEOUT_S = 15.0, 90.0


def check(nodes: Mapping[str, Any]) -> Json:
    """Return the description of a run's nodes in a submission.

    Fields: ``node`` (number of this one), ``names`` of all, ``order`` in which they take slots, ``address`` and
    ``port`` of node 0.

    Raises
    ------
    AgentError
        ``SubmitError``.
    """
    names, order = nodes.get("names"), nodes.get("order")
    if (
        isinstance(names, list)
        and 1 < len(names) <= MAX_NODES
        and all(isinstance(name, str) for name in names)
        and isinstance(order, list)
        and sorted(order) == list(range(len(names)))
        and type(nodes.get("node")) is int
        and 0 <= nodes["node"] < len(names)
        and isinstance(nodes.get("address"), str)
        and type(nodes.get("port")) is int
    ):
        return {key: nodes[key] for key in ("node", "names", "order", "address", "port")}
    raise AgentError("SubmitError", "Cannot submit the job: its nodes are not valid.")


class Node:
    """What is known of one node."""

    def __init__(self, number: int, name: str, now: float) -> None:
        self.number, self.name, self.heard = number, name, now
        self.status: Json = {}
        self.has_turn = False
        self.lost = ""  #: why it is lost
        self.clock: Optional[float] = None  #: seconds that its clock is behind ours

    @property
    def label(self) -> str:
        """Name for users."""
        return "node %d (%s)" % (self.number, self.name)

    @property
    def phase(self) -> str:
        """Last reported phase."""
        return str(self.status.get("phase") or ABSENT)

    @property
    def outcome(self) -> Optional[Json]:
        """How its part of the run has ended."""
        return self.status.get("outcome") if self.phase == ENDED else None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is expected of it."""
        return bool(self.lost) or self.phase == ENDED


class Gang:
    """The nodes of a run.

    Parameters
    ----------
    names
        Names of the machines, by node.
    order
        Numbers of the nodes in the order in which they take slots.
    address
        Address of node 0 that the others reach.
    may_restart
        Whether the processes of all nodes start again, after the end and the number of an attempt.
    """

    def __init__(
        self,
        names: Sequence[str],
        order: Sequence[int],
        address: str,
        now: float,
        may_restart: Callable[[Json, int], bool] = lambda end, attempt: False,
    ) -> None:
        self.nodes = [Node(number, name, now) for number, name in enumerate(names)]
        self._order, self._address = list(order), address
        self._may_restart = may_restart
        self._attempt = 1
        self._last: Json = {}  #: how the attempt before has ended
        self.verdict: Optional[Json] = None
        self._begin()

    def _begin(self) -> None:
        """Forget what has been decided in this attempt."""
        self._start: Optional[Json] = None
        self._cause: Optional[Node] = None  #: whose end or loss ends the run
        self._why: Json = {}  #: reason and detail of that node
        self._is_common = False  #: no node by itself ends the run, but what they have together

    def receive(self, number: int, status: Mapping[str, Any], now: float, wall: float) -> None:
        """Take the status of a node.

        Parameters
        ----------
        now, wall
            Monotonic and Unix seconds.
        """
        node = self.nodes[number]
        node.heard = now
        if isinstance(status.get("now"), (int, float)):
            offset = wall - status["now"]  # includes the time on the way: the smallest is the best
            node.clock = offset if node.clock is None else min(node.clock, offset)
        if node.phase != ENDED and status.get("attempt", 1) >= self._attempt:
            node.status = dict(status)

    def update(self, now: float) -> None:
        """Draw the conclusions from what has been received, and from silence."""
        for node in self.nodes:
            limit = JOIN_TIMEOUT_S if node.phase == ABSENT else SILENCE_S
            if not node.is_over and now - node.heard > limit:
                node.lost = "no sign of life for %d s" % limit
        self._find_cause()
        if self._cause is None:
            self._give_turns()
            if self._start is None and all(node.phase == READY for node in self.nodes):
                self._start = self._config()
        if self.verdict is None and all(node.is_over for node in self.nodes):
            end = self._conclude()
            if self._may_restart(end, self._attempt):
                self._begin_next(end)
            else:
                self.verdict = end

    def _begin_next(self, end: Json) -> None:
        """Begin the next attempt; the nodes keep their slots."""
        self._last, self._attempt = end, self._attempt + 1
        self._begin()
        for node in self.nodes:
            node.status = {"phase": HOLDING, "attempt": self._attempt}

    def orders(self, number: int) -> Json:
        """Return the orders of a node."""
        node, end = self.nodes[number], ""
        if self._cause is not None and (self._cause is not node or self._is_common):
            end = "%s: %s" % (self._cause.label, self._why.get("detail") or self._why.get("reason") or "it has ended")
        done = all(node.phase == ENDED or node.status.get("workers_done") for node in self.nodes)
        return {
            "open": node.has_turn, "start": self._start, "end": end, "verdict": self.verdict,
            "waiting": self.waiting(), "attempt": self._attempt, "last": self._last, "servers_end": done,
            "daemon": (self.nodes[0].status.get("daemons") or {}).get(str(number)),
        }  # fmt: skip

    def waiting(self) -> str:
        """Return what the run waits for before it starts; empty afterwards."""
        if self._start is not None or self._cause is not None:
            return ""
        absent = [node.label for node in self.nodes if node.phase == ABSENT]
        if absent:
            return "waits for the agent of %s" % ", ".join(absent)
        for number in self._order:
            node = self.nodes[number]
            if node.phase == QUEUED:
                detail = str(node.status.get("detail") or "")
                return "waits for slots on %s%s" % (node.label, ": " + detail if detail else "")
        for node in self.nodes:
            if node.phase == HOLDING:
                detail = str(node.status.get("detail") or "")
                return "%s is prepared%s" % (node.label, ": " + detail if detail else "")
        return ""

    def _give_turns(self) -> None:
        if any(node.phase == ABSENT for node in self.nodes):
            return  # a run that not all machines have accepted must not hold slots
        for number in self._order:
            self.nodes[number].has_turn = True
            if _RANK[self.nodes[number].phase] < _RANK[HOLDING]:
                return

    def _config(self) -> Json:
        """Return what each node must know of the others to start its processes."""
        parts: List[Json] = [dict(node.status.get("ready") or {}) for node in self.nodes]
        addresses = [self._address, *(str(node.status.get("address") or "") for node in self.nodes[1:])]
        return {
            "address": self._address,
            "addresses": addresses,
            "port": next(iter(parts[0].get("ports") or ()), 0),
            "processes": [int(part.get("processes") or 1) for part in parts],
            "servers": [int(part.get("servers") or 0) for part in parts],
            "hosts": [
                ["%s:%d" % (address, port) for port in part.get("ports") or ()]
                for address, part in zip(addresses, parts)
            ],
        }

    def _find_cause(self) -> None:
        """Find the first node that ends the run."""
        if self._cause is not None:
            return
        for node in self.nodes:
            ending = node.status.get("ending") or {}
            outcome = ending if ending.get("state") == LOST else node.outcome or ending
            if node.lost:
                self._cause, self._why = node, {"state": LOST, "reason": LOST, "detail": node.lost}
            elif outcome and outcome.get("state") != COMPLETED:
                self._cause, self._why = node, outcome
            if self._cause is not None:
                return
        counts = {(part.get("processes"), part.get("servers")) for part in self._ready()}
        if len(counts) > 1 and len(list(self._ready())) == len(self.nodes) and not self._servers():
            detail = "the nodes have different numbers of processes: %s" % ", ".join(
                "%s on %s" % (part.get("processes"), node.label) for node, part in zip(self.nodes, self._ready())
            )
            self._cause, self._why = self.nodes[0], {"state": FAILED, "reason": "launch", "detail": detail}
            self._is_common = True

    def _ready(self) -> List[Json]:
        return [dict(node.status["ready"]) for node in self.nodes if node.status.get("ready")]

    def _servers(self) -> bool:
        return any(part.get("servers") for part in self._ready())

    def _conclude(self) -> Json:
        """Return how the run has ended: like the process that failed first, or like the node that ended the others."""
        cause = self._cause
        if cause is None:
            return dict(self.nodes[0].outcome or {})
        if cause.lost:
            return {"state": LOST, "reason": LOST, "detail": "lost on %s: %s" % (cause.label, cause.lost)}
        if self._is_common:
            return dict(self._why)
        outcome = dict(cause.outcome or self._why)
        if self._why.get("reason") == LOST:
            detail = "lost on %s: %s" % (cause.label, self._why.get("detail") or "its supervisor has ended")
            return {"state": LOST, "reason": LOST, "detail": detail}
        if outcome.get("state") != FAILED or outcome.get("reason") not in ("exit", "signal", "oom"):
            return dict(outcome, detail="%s (%s)" % (outcome.get("detail"), cause.label))
        failed = [node for node in self.nodes if node.outcome and node.outcome.get("failed_rank") is not None]
        lost = next((node for node in self.nodes if node.lost), None)
        if lost is not None and not failed:  # its launcher noticed the loss before we did
            return {"state": LOST, "reason": LOST, "detail": "lost on %s: %s" % (lost.label, lost.lost)}
        if failed:
            cause = min(failed, key=_failed_at)
            outcome = dict(cause.outcome or {})
            outcome.update(outcome.pop("failure", {}))
        return dict(outcome, detail="%s on %s" % (outcome.get("detail"), cause.label))


def _failed_at(node: Node) -> float:
    """When a process of the node failed, by our clock."""
    return float((node.outcome or {}).get("failed_at") or 0.0) + (node.clock or 0.0)

"""Decisions about a run on several machines, without machines."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jupyter_amltrain.agent.distributed.gang import (
    ENDED,
    HOLDING,
    JOIN_TIMEOUT_S,
    QUEUED,
    READY,
    SILENCE_S,
    Gang,
    check,
)
from jupyter_amltrain.agent.distributed.launchers import interface_of
from jupyter_amltrain.agent.protocol import AgentError

Json = dict[str, Any]


def gang(nodes: int = 2, order: list[int] | None = None) -> Gang:
    return Gang([f"host{i}" for i in range(nodes)], order or list(range(nodes)), "10.0.0.1", 0.0)


def all_say(gang: Gang, now: float = 1.0, **status: Any) -> None:
    for node in gang.nodes:
        gang.receive(node.number, status, now, now)
    gang.update(now)


def ended(state: str, reason: str, detail: str = "", **more: Any) -> Json:
    return {"phase": ENDED, "outcome": {"state": state, "reason": reason, "detail": detail, **more}}


def test_slots_are_taken_in_order_and_not_before_all_have_joined() -> None:
    made = gang(3, [2, 0, 1])
    for number in (0, 2):
        made.receive(number, {"phase": QUEUED}, 1.0, 1.0)
    made.update(1.0)
    assert not any(made.orders(number)["open"] for number in range(3)) and "host1" in made.waiting()
    opened = []
    for holding in ([], [2], [2, 0], [2, 0, 1]):
        all_say(made, phase=QUEUED)
        for number in holding:
            made.receive(number, {"phase": HOLDING}, 1.0, 1.0)
        made.update(1.0)
        opened.append([number for number in range(3) if made.orders(number)["open"]])
    assert opened == [[2], [0, 2], [0, 1, 2], [0, 1, 2]]


def test_all_start_with_one_config_when_all_are_ready() -> None:
    made = gang()
    made.receive(0, {"phase": READY, "ready": {"processes": 2, "ports": [4000]}}, 1.0, 1.0)
    made.receive(1, {"phase": HOLDING}, 1.0, 1.0)
    made.update(1.0)
    assert made.orders(0)["start"] is None
    made.receive(1, {"phase": READY, "address": "10.0.0.2", "ready": {"processes": 2, "ports": []}}, 1.0, 1.0)
    made.update(1.0)
    start = made.orders(0)["start"]
    assert start == made.orders(1)["start"] and (start["address"], start["port"]) == ("10.0.0.1", 4000)
    assert start["processes"] == [2, 2] and start["addresses"] == ["10.0.0.1", "10.0.0.2"]


def test_different_numbers_of_processes_end_run_before_start() -> None:
    made = gang()
    for number in range(2):
        made.receive(number, {"phase": READY, "ready": {"processes": number + 1}}, 1.0, 1.0)
    made.update(1.0)
    assert made.orders(1)["end"] and made.orders(0)["end"] and made.orders(0)["start"] is None
    all_say(made, **ended("canceled", "canceled"))
    assert made.verdict is not None and made.verdict["state"] == "failed" and "different" in made.verdict["detail"]


def test_silent_node_is_lost_and_others_end() -> None:
    made = gang()
    all_say(made, phase=READY)
    made.receive(0, {"phase": READY}, 1.0 + SILENCE_S + 0.1, 1.0)
    made.update(1.0 + SILENCE_S + 0.1)
    assert made.orders(0)["end"] and made.verdict is None
    made.receive(0, ended("canceled", "canceled"), 20.0, 20.0)
    made.update(20.0)
    assert made.verdict is not None and made.verdict["state"] == "lost" and "node 1" in made.verdict["detail"]


def test_node_that_is_lost_ends_run_although_launcher_noticed_it_first() -> None:
    made = gang()
    all_say(made, phase=READY)
    made.receive(0, ended("failed", "exit", "rank 0 was killed by SIGTERM"), 2.0, 2.0)
    made.update(2.0)
    assert made.verdict is None
    made.update(1.0 + SILENCE_S + 0.1)
    assert made.verdict is not None and made.verdict["state"] == "lost" and "node 1" in made.verdict["detail"]


def test_failed_attempt_begins_next_one_with_the_slots_it_has() -> None:
    ends: list[tuple[str, int]] = []

    def may_restart(end: Json, attempt: int) -> bool:
        ends.append((end["reason"], attempt))
        return end["state"] == "failed" and attempt < 2

    made = Gang(["host0", "host1"], [0, 1], "10.0.0.1", 0.0, may_restart)
    all_say(made, phase=READY, ready={"processes": 1, "ports": [1]})
    failed = ended("failed", "exit", "rank 1 exited", failed_rank=1, failed_at=1.0)
    all_say(made, 2.0, **failed, attempt=1)
    orders = made.orders(1)
    assert (orders["attempt"], orders["verdict"], orders["start"], orders["end"]) == (2, None, None, "")
    assert orders["last"]["failed_rank"] == 1 and orders["open"]
    all_say(made, 3.0, **failed, attempt=1)  # what is repeated of the last attempt does no harm
    assert made.verdict is None and made.orders(0)["end"] == ""
    all_say(made, 4.0, phase=READY, ready={"processes": 1, "ports": [2]}, attempt=2)
    assert made.orders(0)["start"]["port"] == 2
    all_say(made, 5.0, **failed, attempt=2)
    assert made.verdict is not None and made.verdict["state"] == "failed" and ends == [("exit", 1), ("exit", 2)]


def test_command_of_daemon_reaches_its_node() -> None:
    made = gang(3)
    all_say(made, phase=READY)
    made.receive(0, {"phase": READY, "daemons": {"2": "orted x"}}, 2.0, 2.0)
    made.update(2.0)
    assert [made.orders(number)["daemon"] for number in range(3)] == [None, None, "orted x"]


def test_node_that_never_joins_is_lost() -> None:
    made = gang()
    made.receive(0, {"phase": QUEUED}, JOIN_TIMEOUT_S + 1, 1.0)
    made.update(JOIN_TIMEOUT_S + 1)
    assert made.orders(0)["end"]


def test_first_failure_by_corrected_clocks_names_run() -> None:
    made = gang()
    # The clock of node 1 is an hour ahead.
    for now in (1.0, 2.0):
        made.receive(0, {"phase": READY, "now": now}, now, now)
        made.receive(1, {"phase": READY, "now": now + 3600 - 0.001}, now, now)
    made.receive(0, ended("failed", "exit", "rank 0 exited", failed_rank=0, failed_at=10.5), 11.0, 11.0)
    made.receive(1, ended("failed", "signal", "rank 1 killed", failed_rank=1, failed_at=3610.0), 11.0, 11.0)
    made.update(11.0)
    assert made.verdict is not None and made.verdict["failed_rank"] == 1 and "host1" in made.verdict["detail"]


def test_failure_counts_although_node_was_ended_meanwhile() -> None:
    made = gang()
    all_say(made, phase=READY, now=1.0)
    made.receive(0, ended("failed", "exit", "rank 0 exited", failed_rank=0, failed_at=10.5), 11.0, 11.0)
    made.update(11.0)
    failure = {"state": "failed", "reason": "signal", "detail": "rank 1 killed", "exit_code": None, "signal": 9}
    made.receive(1, ended("canceled", "canceled", failed_rank=1, failed_at=10.0, failure=failure), 12.0, 12.0)
    made.update(12.0)
    verdict = made.verdict
    assert verdict is not None and (verdict["state"], verdict["failed_rank"], verdict["signal"]) == ("failed", 1, 9)


@pytest.mark.parametrize("state", ["canceled", "failed"])
def test_cancel_or_time_limit_of_one_node_is_that_of_run(state: str) -> None:
    made = gang()
    all_say(made, phase=READY)
    reason = "canceled" if state == "canceled" else "timeout"
    made.receive(1, {"phase": READY, "ending": {"state": state, "reason": reason}}, 2.0, 2.0)
    made.update(2.0)
    assert made.orders(0)["end"] and not made.orders(1)["end"]
    made.receive(0, ended("failed", "exit", "rank 0 exited", failed_rank=0, failed_at=2.0), 3.0, 3.0)
    made.receive(1, ended(state, reason, "why"), 3.0, 3.0)
    made.update(3.0)
    assert made.verdict is not None and (made.verdict["state"], made.verdict["reason"]) == (state, reason)


def test_run_completes_when_all_nodes_have() -> None:
    made = gang()
    all_say(made, phase=READY)
    made.receive(0, ended("completed", "exit"), 2.0, 2.0)
    made.update(2.0)
    assert made.verdict is None and not made.orders(1)["end"]
    made.receive(1, ended("completed", "exit"), 3.0, 3.0)
    made.update(3.0)
    assert made.verdict is not None and made.verdict["state"] == "completed"


@pytest.mark.parametrize("seed", range(20))
def test_runs_that_wait_for_each_other_all_end(seed: int) -> None:
    """Runs on random machines of one slot each, in random order of events: no run waits for ever."""
    rng = random.Random(seed)
    hosts, gangs, queues = 4, [], {}
    for number in range(8):
        places = rng.sample(range(hosts), rng.randint(2, hosts))  # node i is on machine places[i]
        order = sorted(range(len(places)), key=lambda node: places[node])
        gangs.append((Gang([str(place) for place in places], order, "", 0.0), places))
        for place in places:
            queues.setdefault(place, []).append(number)
    holder: dict[int, int] = {}
    phases = [[QUEUED] * len(places) for _, places in gangs]
    for _ in range(20_000):
        number = rng.randrange(len(gangs))
        made, places = gangs[number]
        for node, phase in enumerate(phases[number]):
            outcome = {"outcome": {"state": "completed"}} if phase == ENDED else {}
            made.receive(node, {"phase": phase, **outcome}, 1.0, 1.0)
        made.update(1.0)
        node = rng.randrange(len(places))
        place, phase = places[node], phases[number][node]
        if phase == QUEUED and made.orders(node)["open"] and place not in holder:
            first = next(
                other
                for other in queues[place]
                if gangs[other][0].orders(gangs[other][1].index(place))["open"]
                and phases[other][gangs[other][1].index(place)] == QUEUED
            )
            if first == number:
                holder[place] = number
                phases[number][node] = READY
        elif phase == READY and made.orders(node)["start"]:
            phases[number][node] = ENDED
            del holder[place]
        if all(phase == ENDED for row in phases for phase in row):
            return
    raise AssertionError(phases)


@pytest.mark.parametrize("change", [{"order": [0]}, {"order": [0, 0]}, {"node": 2}, {"names": "ab"}, {"port": "1"}])
def test_invalid_nodes_are_refused(change: Json) -> None:
    right = {"node": 1, "names": ["a", "b"], "order": [1, 0], "address": "10.0.0.1", "port": 4000}
    assert check(right) == right
    with pytest.raises(AgentError):
        check({**right, **change})


def test_interface_of_loopback_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo" and interface_of("192.0.2.1") == ""

"""What every backend must do that can make, start, stop, scale and delete its target."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.backends.provisioner import Provisioner, ProvisionState
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread

from .backend import DEADLINE, Call

STATES = {"ready", "stopped", "creating", "starting", "stopping", "scaling", "deleting", "failed", "unknown"}


class LifecycleContract:
    """Subclasses define the fixtures ``loop``, `single` (one machine), `cluster` (up to 4 machines, none kept on),
    and `refused` (its service will not make it)."""

    @pytest.fixture
    def call(self, loop: LoopThread) -> Call[Any]:
        return lambda coro: loop.call(coro, DEADLINE)

    def _verbs(self, call: Call[Any], target: Provisioner) -> dict[str, str]:
        """What can be done now, and what cannot, with the reason."""
        return {act.verb: act.disabled_reason for act in target.actions(call(target.state()))}

    def test_single_machine_lifecycle(self, call: Call[Any], single: Provisioner) -> None:
        messages: list[str] = []
        call(single.create(messages.append))
        call(single.create(messages.append))  # it is there: taken over
        state = call(single.state())
        assert state.state == "ready" and state.nodes is None and state.max_nodes is None
        assert self._verbs(call, single)["stop"] == "" and self._verbs(call, single)["start"]
        call(single.stop(messages.append))
        call(single.stop(messages.append))
        assert call(single.state()).state == "stopped"
        assert self._verbs(call, single)["start"] == "" and self._verbs(call, single)["stop"]
        call(single.start(messages.append))
        call(single.start(messages.append))
        assert call(single.state()).state == "ready" and "scale" not in self._verbs(call, single)
        call(single.remove(messages.append))
        call(single.remove(messages.append))
        assert messages and all(text and "\n" not in text for text in messages)

    def test_cluster_lifecycle(self, call: Call[Any], cluster: Provisioner) -> None:
        messages: list[str] = []
        call(cluster.create(messages.append))
        state = call(cluster.state())
        assert (state.state, state.nodes, state.max_nodes) == ("ready", 0, 4)
        act = next(act for act in cluster.actions(state) if act.verb == "scale")
        assert {field.name: field.default for field in act.fields} == {
            "min_nodes": 0,
            "max_nodes": 4,
            "idle_minutes": 15,
        }
        assert not {"start", "stop"} & self._verbs(call, cluster).keys()
        call(cluster.scale({"min_nodes": 2}, messages.append))
        assert call(cluster.state()).nodes == 2
        call(cluster.scale({"min_nodes": 0}, messages.append))
        call(cluster.remove(messages.append))

    def test_confirmation_names_cost_and_loss(self, single: Provisioner, cluster: Provisioner) -> None:
        for target, verb, values in (
            (single, "create", {}),
            (single, "start", {}),
            (cluster, "create", {}),
            (cluster, "scale", {"min_nodes": 3}),
        ):
            assert "cost" in target.confirmation(verb, values, running=0).lower()
        assert (
            "2 running runs" in single.confirmation("stop", {}, running=2)
            and single.confirmation("stop", {}, running=0) == ""
        )
        assert cluster.confirmation("scale", {"min_nodes": 0}, running=0) == ""
        for running in (0, 1, 2):
            assert cluster.confirmation("delete", {}, running=running)
        assert "1 queued run is" in cluster.confirmation("delete", {}, running=0, queued=1)
        assert "2 running and 3 queued runs" in cluster.confirmation("delete", {}, running=2, queued=3)

    def test_price_follows_node_count(self, call: Call[Any], cluster: Provisioner) -> None:
        call(cluster.create(lambda text: None))
        call(cluster.scale({"min_nodes": 3}, lambda text: None))
        state = call(cluster.state())
        assert state.price_node > 0 and state.currency
        assert state.price == pytest.approx(3 * state.price_node)
        assert state.state in STATES and state.size and state.cpus

    def test_refused_create_error_is_one_sentence(self, call: Call[Any], refused: Provisioner) -> None:
        with pytest.raises(AmlTrainError) as caught:
            call(refused.create(lambda text: None))
        assert "\n" not in str(caught.value) and caught.value.hint

    def test_actions_without_state_are_offered(self, single: Provisioner, cluster: Provisioner) -> None:
        for target in (single, cluster):
            acts = target.actions(ProvisionState())
            assert acts[-1].verb == "delete" and not any(act.confirmation for act in acts)

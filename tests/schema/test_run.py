from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.run import RunState, advances, make_handle, split_handle
from jupyter_amltrain.text import new_run_id, slug

STATES = st.sampled_from(list(RunState))


def test_four_states_end() -> None:
    assert {s.value for s in RunState if s.terminal} == {"completed", "failed", "canceled", "lost"}


@given(STATES, STATES)
def test_nothing_follows_an_end_and_nothing_follows_itself(old: RunState, new: RunState) -> None:
    if old.terminal or old is new:
        assert not advances(old, new)
    elif new.terminal:
        assert advances(old, new)


@given(STATES, STATES)
def test_the_only_ways_back_are_preemption_and_packing_in_the_queue(old: RunState, new: RunState) -> None:
    if advances(old, new) and advances(new, old):
        assert {old, new} in (
            {RunState.PREPARING, RunState.QUEUED},
            {RunState.RUNNING, RunState.QUEUED},
        )


def test_handles() -> None:
    handle = make_handle("gpubox", "digits-k3f9x")
    assert handle == "gpubox/digits-k3f9x" and split_handle(handle) == ("gpubox", "digits-k3f9x")


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a", "a/b/c", "a/b\n", "a/\0"])
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(CommandError, match="is not a run handle"):
        split_handle(text)


@given(st.text(max_size=300))
def test_any_name_gives_a_folder_name(name: str) -> None:
    text = slug(name)
    assert 1 <= len(text) <= 40 and set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not text.startswith("-") and not text.endswith("-")
    assert split_handle(make_handle("local", new_run_id(name)))[1].startswith(f"{text}-")


def test_ids_of_one_name_differ() -> None:
    assert len({new_run_id("digits") for _ in range(500)}) == 500

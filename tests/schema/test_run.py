from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.run import RunState, advances, make_handle, split_handle
from jupyter_amltrain.text import new_run_id, slug

STATES = st.sampled_from(list(RunState))


def test_run_states_terminal_are_four() -> None:
    assert {s.value for s in RunState if s.terminal} == {"completed", "failed", "canceled", "lost"}


@given(STATES, STATES)
def test_terminal_state_never_advances(old: RunState, new: RunState) -> None:
    if old.terminal or old is new:
        assert not advances(old, new)
    elif new.terminal:
        assert advances(old, new)


@given(STATES, STATES)
def test_run_state_goes_back_only_to_queued(old: RunState, new: RunState) -> None:
    if advances(old, new) and advances(new, old):
        assert {old, new} in (
            {RunState.PREPARING, RunState.QUEUED},
            {RunState.RUNNING, RunState.QUEUED},
        )


def test_run_handle_round_trip_is_equal() -> None:
    handle = make_handle("gpubox", "digits-k3f9x")
    assert handle == "gpubox/digits-k3f9x" and split_handle(handle) == ("gpubox", "digits-k3f9x")


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a", "a/b/c", "a/b\n", "a/\0"])
def test_malformed_handle_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not a run handle"):
        split_handle(text)


@given(st.text(max_size=300))
def test_slug_of_any_name_is_valid_folder_name(name: str) -> None:
    text = slug(name)
    assert 1 <= len(text) <= 40 and set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not text.startswith("-") and not text.endswith("-")
    assert split_handle(make_handle("local", new_run_id(name)))[1].startswith(f"{text}-")


def test_run_ids_of_same_name_are_unique() -> None:
    assert len({new_run_id("digits") for _ in range(500)}) == 500

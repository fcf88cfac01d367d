"""Keywords of a submit: what they say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.flags import keyword_values


@pytest.mark.parametrize(
    ("keywords", "values"),
    [
        ({"timeout": "1h30m", "gpu_grace": 5}, {"timeout": 5400.0, "gpu_grace": 5}),
        ({"simulate_preemption": "6s", "max_restarts": "1"}, {"simulate_preemption": 6.0, "max_restarts": 1}),
        ({"nodes": "2", "processes": 4}, {"resources.nodes": 2, "distribution.processes": 4}),
    ],
)
def test_number_of_keyword_may_be_text_as_on_the_line(keywords: dict[str, Any], values: dict[str, Any]) -> None:
    assert keyword_values(keywords) == values


@pytest.mark.parametrize(
    ("keywords", "word"),
    [({"timeout": "soon"}, "soon"), ({"timeout": [5]}, "seconds"), ({"gpus": True}, "gpus"), ({"nodes": "two"}, "two")],
)
def test_keyword_that_is_no_number_is_refused_in_one_line(keywords: dict[str, Any], word: str) -> None:
    with pytest.raises(CommandError, match=word) as caught:
        keyword_values(keywords)
    assert "\n" not in str(caught.value)

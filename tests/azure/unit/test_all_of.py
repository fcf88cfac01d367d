"""Several requests at the same time for one operation, beside those of others."""

from __future__ import annotations

import threading
import time

import pytest

from jupyter_amltrain.azure.service import history


def test_parallel_calls_return_in_order():
    assert history.all_of(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    assert history.all_of(str, [1]) == ["1"]
    assert history.all_of(str, []) == []


def test_parallel_calls_do_not_block_other_operations():
    begun, go_on = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        go_on.wait(600)

    many = [threading.Thread(target=history.all_of, args=(slow, range(1000))) for _ in range(4)]
    for thread in many:
        thread.start()
    try:
        assert begun.wait(60)
        assert history.all_of(str, [1, 2, 3]) == ["1", "2", "3"]  # while the others hold their threads
    finally:
        go_on.set()
        for thread in many:
            thread.join(30)


def test_parallel_calls_first_failure_stops_rest():
    done = []

    def work(n):
        if n == 3:
            raise ValueError("the fourth")
        time.sleep(0.01)
        done.append(n)

    with pytest.raises(ValueError, match="the fourth"):
        history.all_of(work, range(1000))
    assert len(done) < 50

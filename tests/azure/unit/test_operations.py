"""Frames of the Azure process, read and written by hand."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial

import pytest

from jupyter_amltrain.azure.service import operations
from jupyter_amltrain.rpc import framing


class Pipe:
    """A server in a thread, and its two pipes."""

    def __init__(self, root):
        to, self._in = os.pipe()
        self._out, back = os.pipe()
        self._server = operations.make_server(to, back, root)
        self.thread = threading.Thread(target=self._server.serve, daemon=True)
        self.thread.start()

    def send(self, **frame):
        os.write(self._in, framing.pack(frame))

    def read(self):
        return framing.read(partial(os.read, self._out))

    def close(self):
        os.close(self._in)
        self.thread.join(60)


@pytest.fixture
def pipe(tmp_path):
    pipe = Pipe(tmp_path)
    yield pipe
    pipe.close()
    assert not pipe.thread.is_alive()


def test_service_answers_in_completion_order(pipe):
    pipe.send(id=1, op="process.ping", payload={"wait": 0.5})
    pipe.send(id=2, op="process.ping", payload={})
    assert [pipe.read()["id"], pipe.read()["id"]] == [2, 1]


def test_service_progress_precedes_answer(pipe):
    pipe.send(id=7, op="process.ping", payload={"say": "half-way"})
    assert pipe.read() == {"id": 7, "event": {"kind": "progress", "text": "half-way"}}
    assert pipe.read()["result"]["pid"] == os.getpid()


def test_service_canceled_operation_ends(pipe):
    pipe.send(id=1, op="process.ping", payload={"wait": 3600.0, "say": "x"})
    pipe.read()
    pipe.send(cancel=1)
    assert pipe.read() == {
        "id": 1,
        "error": {"type": "Cancelled", "message": "process.ping was canceled."},
    }
    pipe.send(cancel=99)  # of one that is over
    pipe.send(id=2, op="process.ping", payload={})
    assert pipe.read()["id"] == 2


def test_service_environment_is_updated(pipe, monkeypatch):
    monkeypatch.setenv("AMLTRAIN_AZURE_A", "1")
    monkeypatch.delenv("AMLTRAIN_AZURE_B", raising=False)
    pipe.send(environ={"AMLTRAIN_AZURE_A": None, "AMLTRAIN_AZURE_B": "2"})
    pipe.send(id=1, op="process.ping", payload={})
    pipe.read()
    assert "AMLTRAIN_AZURE_A" not in os.environ and os.environ["AMLTRAIN_AZURE_B"] == "2"
    del os.environ["AMLTRAIN_AZURE_B"]


def test_service_invalid_payload_is_answered_with_error(pipe):
    pipe.send(id=1, op="process.ping", payload={"nonsense": 1})
    assert pipe.read()["error"]["type"] == "TypeError"
    pipe.send(id=2, op="nothing", payload={})
    assert "unknown operation" in pipe.read()["error"]["message"]


def test_service_log_redacts_secrets(tmp_path, caplog):
    with (tmp_path / "log.txt").open("w") as file:
        root, before = logging.getLogger(), logging.getLogger().handlers[:]
        try:
            operations.log_to(file)
            address = "https://a.blob.core.windows.net/c/x?sv=1&sig=Zm9v%2Bbar&se=2"
            operations.log.warning("GET %s Authorization: Bearer %s", address, "abc" * 9)
            operations.log.warning('{"access_token": "eyJhbGciOi.eyJhdWQiOi.c2ln", "client_secret": "hunter2~"}')
            try:
                raise ValueError("client_secret=hunter2~&grant_type=x")
            except ValueError:
                operations.log.exception("post")
        finally:
            root.handlers[:] = before
            logging.captureWarnings(False)
    text = (tmp_path / "log.txt").read_text()
    for secret in ("Zm9v", "abcabc", "eyJ", "hunter2"):
        assert secret not in text
    assert "sv=1&sig=[redacted]&se=2" in text and "Bearer [redacted]" in text


def test_service_operations_name_module_and_function():
    assert all(target.count(":") == 1 for target in operations.OPERATIONS.values())
    assert len(operations.OPERATIONS) >= 28


def test_error_crosses_the_pipe_with_code_field_and_details(pipe, monkeypatch):
    from jupyter_amltrain.azure import errors as azure_errors
    from jupyter_amltrain.errors import QuotaExceeded
    from jupyter_amltrain.rpc import client

    answer = azure_errors.ErrorDetails(status=400, code="Quota", codes=("Bad", "Quota"), message="at ?sig=secret&x=1")

    def fail(call):
        error = QuotaExceeded("no cores left.", hint="Wait.", code="azure.quota", field="max_nodes")
        raise azure_errors.with_details(error, answer).about("'gpu'")

    monkeypatch.setattr(operations, "fail", fail, raising=False)
    monkeypatch.setitem(operations.OPERATIONS, "fail", f"{operations.__name__}:fail")
    pipe.send(id=1, op="fail", payload={})
    with pytest.raises(QuotaExceeded) as caught:
        client._result_of(pipe.read())
    error = caught.value
    assert (error.code, error.field, error.subject, error.reason) == (
        "azure.quota",
        "max_nodes",
        "'gpu'",
        "no cores left.",
    )
    assert str(error) == "'gpu': no cores left. Wait."
    details = azure_errors.details_of(error)
    assert (details.status, details.codes) == (400, ("Bad", "Quota")) and "secret" not in details.message

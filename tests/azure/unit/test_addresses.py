"""Signed addresses that end while they are used, by one thread or by many; and storage that takes no signature."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service import artifacts, history, http, mirror
from jupyter_amltrain.azure.service.logs import Reader
from jupyter_amltrain.azure.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, TargetUnreachable


def answer(data: bytes = b"", status: int = 200) -> http.Answer:
    return http.Answer(status, {}, None, data)


def refused(status: int, code: str = "", text: str = "no") -> AmlTrainError:
    return errors.error_of_answer(status, {"x-ms-error-code": code}, text.encode())


def sync(folder: Path, ended: bool = False) -> Any:
    """One sync of a mirror, before it begins."""
    call: Any = SimpleNamespace(cloud=SimpleNamespace(workspace=lambda name: SimpleNamespace(name=name)))
    made = mirror._Sync(call, "lab", "job", folder, frozenset(), ended)
    made.mirror = MirrorFiles(folder)
    return made


def test_concurrent_log_address_requests_are_coalesced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of them finds a file gone meanwhile: of a run that has ended its rest would never come."""
    names = [f"user_logs/std_log_process_{i}.txt" for i in range(16)]
    requests: list[str] = []

    def details(place: Any, name: str) -> dict[str, Any]:
        requests.append(name)
        time.sleep(0.05)
        return {"logFiles": {name: f"https://x/{name}?new" for name in names}}

    monkeypatch.setattr(history, "details", details)
    made = sync(tmp_path)
    made.files = {name: f"https://x/{name}?old" for name in names}
    together = threading.Barrier(len(names))

    def get(url: str, start: int, end: int) -> http.Answer:
        if url.endswith("?old"):
            raise refused(403, "AuthenticationFailed")
        return answer(b"text")

    blob = lambda url: SimpleNamespace(get=lambda start, end: get(url, start, end))  # noqa: E731
    call: Any = SimpleNamespace(cloud=SimpleNamespace(blob=blob))

    def read(name: str) -> bytes:
        together.wait(60)
        return Reader(call, made._address).new(name, {}).data

    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(read, names)) == [b"text"] * len(names)
    assert requests == ["job"]


def test_ended_run_without_files_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run history may say for a moment that it knows no such job; for a minute it is asked again."""
    monkeypatch.setattr(history, "recent_details", lambda place, name, age: None)
    with pytest.raises(TargetUnreachable, match="files of job"):
        sync(tmp_path, ended=True).run()
    later = sync(tmp_path, ended=True)
    assert not later.mirror.facts.get("complete")
    later.now += 61
    assert later.run()["complete"]
    assert not sync(tmp_path).run()["grown"]


class Storage:
    """A workspace whose storage opens to some and not to others."""

    name, user, credential = "lab", "ada", None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
        self.kind, self.secrets = how.get("kind", "AccountKey"), how.get("secrets", [])
        self.signed, self.own = how.get("signed", lambda url: answer(b"signed")), how.get("own")
        self.requests = 0
        self.arm = SimpleNamespace(get=self._facts, post=self._list)
        self.call: Any = SimpleNamespace(cloud=SimpleNamespace(blob=self._blob))
        monkeypatch.setattr(http, "Rest", lambda *_, **__: SimpleNamespace(get=lambda url, **_: self._mine(url)))

    def _facts(self, path: str, **_: Any) -> Any:
        facts = {"accountName": "a", "containerName": "c", "credentials": {"credentialsType": self.kind}}
        return SimpleNamespace(json={"properties": facts})

    def _list(self, path: str, **_: Any) -> Any:
        self.requests += 1
        found = self.secrets.pop(0)
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(json={"sasToken": f"?{found}"})

    def _blob(self, url: str) -> Any:
        return SimpleNamespace(get=lambda start, end: self.signed(url))

    def _mine(self, url: str) -> http.Answer:
        if isinstance(self.own, Exception):
            raise self.own
        assert url == "https://a.blob.core.windows.net/c/f.txt"
        return answer(b"own")

    def read(self) -> bytes:
        container = artifacts.BlobContainer(self.call, self, "store")  # type: ignore[arg-type]
        return artifacts.StoredFile("f.txt", 3, 0.0, container, "f.txt").read()


def over(url: str) -> http.Answer:
    if "sig=1" in url:
        raise refused(403, "AuthenticationFailed")
    return answer(b"signed")


def not_by_key(url: str) -> http.Answer:
    raise refused(403, "KeyBasedAuthenticationNotPermitted")


def test_expired_signature_is_renewed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, secrets=["sig=1", "sig=2"], signed=over)
    assert storage.read() == b"signed" and storage.requests == 2


@pytest.mark.parametrize(
    "how",
    [
        {"kind": "None"},
        {"secrets": [refused(400, "", "No secrets for credentials of type None.")]},
        {"secrets": [refused(403)]},
        {"secrets": [""]},
        {"secrets": ["sig=1"], "signed": not_by_key},
    ],
    ids=["none", "400", "403", "empty", "keys are off"],
)
def test_storage_without_signatures_uses_own_credential(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    assert Storage(monkeypatch, **how).read() == b"own"


def test_storage_refused_twice_raises_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    first = AuthenticationError("You listSecrets.")
    errors.with_details(first, errors.ErrorDetails(status=403))
    with pytest.raises(AuthenticationError, match="listSecrets"):
        Storage(monkeypatch, secrets=[first], own=refused(403)).read()


def test_storage_server_error_does_not_renew_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetUnreachable):
        Storage(monkeypatch, secrets=[refused(503)]).read()

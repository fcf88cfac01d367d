"""Downloads of the agent: conditions, cuts, errors and secrets, with a real HTTP server."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.data import download as module
from jupyter_amltrain.agent.data.cache import PART, DataCache, check, file_name, key_of, link_path
from jupyter_amltrain.agent.data.download import DownloadFailed, download, source_of
from jupyter_amltrain.agent.protocol import AgentError
from tests.web_server import WebServer, serving


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WebServer]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    with serving() as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> DataCache:
    return DataCache(str(tmp_path / "state"))


def fetch(cache: DataCache, url: str, **variables: str) -> dict[str, Any]:
    return download(cache, url, dict(os.environ), variables, lambda text: None)


def content(cache: DataCache, url: str, record: dict[str, Any]) -> bytes:
    return Path(cache.path(key_of(url), record)).read_bytes()


def failure(cache: DataCache, url: str, **variables: str) -> str:
    with pytest.raises(DownloadFailed) as error:
        fetch(cache, url, **variables)
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text
    assert cache.record(key_of(url)) is None and not list(Path(cache.below(key_of(url))).rglob("*.csv"))
    return text


@pytest.mark.parametrize("facts", [{"has_etag": True}, {"has_etag": False}, {"weak": True}])
def test_unchanged_file_is_checked_and_not_sent_again(cache: DataCache, web: WebServer, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        setattr(web, name, value)
    first, second = fetch(cache, web.url), fetch(cache, web.url)
    assert first["sha256"] == second["sha256"] == hashlib.sha256(web.content).hexdigest()
    assert len(web.requests) == 2 and web.sent == len(web.content)
    assert content(cache, web.url, second) == web.content


def test_changed_file_is_downloaded_and_old_version_removed(cache: DataCache, web: WebServer) -> None:
    old = fetch(cache, web.url)
    web.content = b"new\n"
    new = fetch(cache, web.url)
    assert content(cache, web.url, new) == b"new\n" and not os.path.exists(cache.path(key_of(web.url), old))


def test_old_version_stays_while_a_run_uses_it(cache: DataCache, web: WebServer) -> None:
    old = fetch(cache, web.url)
    handle = cache.hold(key_of(web.url), old)
    assert handle is not None
    web.content = b"new\n"
    fetch(cache, web.url)
    assert os.path.exists(cache.path(key_of(web.url), old))
    os.close(handle)
    web.content = b"newer\n"
    fetch(cache, web.url)
    assert not os.path.exists(cache.path(key_of(web.url), old))


def test_file_that_was_changed_in_the_cache_is_downloaded_again(cache: DataCache, web: WebServer) -> None:
    path = Path(cache.path(key_of(web.url), fetch(cache, web.url)))
    path.chmod(0o600)
    path.write_bytes(b"edited")
    assert content(cache, web.url, fetch(cache, web.url)) == web.content


def test_server_that_ignores_conditions_sends_no_second_copy_to_disk(cache: DataCache, web: WebServer) -> None:
    web.ignores_conditions = True
    first = fetch(cache, web.url)
    assert fetch(cache, web.url)["mtime_ns"] == first["mtime_ns"]


def test_cut_connection_continues_at_the_cut(cache: DataCache, web: WebServer) -> None:
    web.content = os.urandom(1 << 20)
    web.cut_after = [300_000, 200_000]
    assert content(cache, web.url, fetch(cache, web.url)) == web.content
    assert web.sent == len(web.content)
    assert [headers.get("range") for _, _, headers in web.requests] == [None, "bytes=300000-", "bytes=500000-"]


@pytest.mark.parametrize("facts", [{"has_ranges": False}, {"weak": True}, {"has_etag": False, "modified": ""}])
def test_cut_connection_without_ranges_begins_again(cache: DataCache, web: WebServer, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        setattr(web, name, value)
    web.content, web.cut_after = os.urandom(400_000), [100_000]
    assert content(cache, web.url, fetch(cache, web.url)) == web.content


def test_file_that_changes_between_cut_and_rest_begins_again(cache: DataCache, web: WebServer) -> None:
    web.content, web.cut_after = os.urandom(400_000), [100_000] * module.MAX_TRIES
    web.cut_after = [100_000, 0, 0, 0, 0]
    assert "cut" in failure(cache, web.url)
    assert Path(cache.below(key_of(web.url), PART)).stat().st_size == 100_000
    web.cut_after, web.content = [], os.urandom(300_000)
    assert content(cache, web.url, fetch(cache, web.url)) == web.content


def test_file_shorter_than_its_beginning_begins_again(cache: DataCache, web: WebServer) -> None:
    web.content, web.cut_after = os.urandom(400_000), [100_000, 0, 0, 0, 0]
    failure(cache, web.url)
    web.cut_after, web.statuses = [], [416]
    assert content(cache, web.url, fetch(cache, web.url)) == web.content


def test_file_without_length_is_complete_at_the_end(cache: DataCache, web: WebServer) -> None:
    web.has_length = False
    assert content(cache, web.url, fetch(cache, web.url)) == web.content


def test_empty_file_is_a_file(cache: DataCache, web: WebServer) -> None:
    web.content = b""
    assert fetch(cache, web.url)["bytes"] == 0 and fetch(cache, web.url)["bytes"] == 0


@pytest.mark.parametrize(
    ("statuses", "word"), [([404], "404"), ([410], "410"), ([401], "netrc"), ([403], "--secret"), ([418], "418")]
)
def test_refusal_is_one_line_after_one_request(
    cache: DataCache, web: WebServer, statuses: list[int], word: str
) -> None:
    web.statuses = list(statuses)
    assert word in failure(cache, web.url) and len(web.requests) == 1


def test_busy_server_is_tried_again(cache: DataCache, web: WebServer) -> None:
    web.statuses = [503, 429, 500]
    assert content(cache, web.url, fetch(cache, web.url)) == web.content
    web.statuses = [503] * 9
    web.content = b"other"
    assert fetch(cache, web.url)["checked"] is False  # the stored copy is used
    assert "503" in failure(cache, web.url + "2")


def test_silent_server_ends_with_timeout(cache: DataCache, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    web.content, web.block, web.pause_s, web.has_ranges = b"x" * 100, 10, 0.5, False
    assert "0.2 s" in failure(cache, web.url)


def test_unreachable_server_uses_the_stored_copy(cache: DataCache, web: WebServer) -> None:
    first = fetch(cache, web.url)
    reports = list[str]()
    web.close()
    again = download(cache, web.url, dict(os.environ), {}, reports.append)
    assert again["sha256"] == first["sha256"] and again["checked"] is False and "copy" in reports[-1]
    assert "refused" in failure(cache, web.url + "x")


def test_unknown_host_is_one_line(cache: DataCache, web: WebServer) -> None:
    assert "not found" in failure(cache, "http://host.invalid/x.csv")


def test_redirect_keeps_credentials_from_other_host(cache: DataCache, web: WebServer, tmp_path: Path) -> None:
    with serving() as other:
        web.login = "Basic " + base64.b64encode(b"me:pa55").decode()
        other.content = b"elsewhere"
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password pa55\n")
        assert content(cache, web.url, fetch(cache, web.url)) == web.content
        (tmp_path / ".netrc").unlink()
        web.redirects["/go.csv"] = f"http://localhost:{other.host.rpartition(':')[2]}/files/x.csv"
        url = f"http://${{USER_}}:${{PASS}}@{web.host}/go.csv"
        assert content(cache, url, fetch(cache, url, USER_="me", PASS="pa55")) == b"elsewhere"
        assert web.requests[-1][2]["authorization"] == web.login
        assert "authorization" not in other.requests[-1][2]


@pytest.mark.parametrize("target", ["/loop.csv", "ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_redirect_to_nowhere_is_one_line(cache: DataCache, web: WebServer, target: str) -> None:
    web.redirects["/loop.csv"] = target
    assert "redirect" in failure(cache, f"http://{web.host}/loop.csv")


def test_proxy_of_environment_is_used(cache: DataCache, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:pw@{web.host}")
    url = "http://host.invalid/files/x.csv"
    assert content(cache, url, fetch(cache, url)) == web.content
    method, path, headers = web.requests[-1]
    assert path == url and headers["proxy-authorization"] == "Basic " + base64.b64encode(b"user:pw").decode()


def test_file_over_limit_is_not_downloaded(cache: DataCache, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.LIMIT_VARIABLE, "0.0001")
    web.content = b"x" * 200_000
    assert module.LIMIT_VARIABLE in failure(cache, web.url)
    web.has_length = False
    assert module.LIMIT_VARIABLE in failure(cache, web.url)


def test_full_disk_is_one_line(cache: DataCache, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 3

    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Usage)
    assert "free" in failure(cache, web.url)


def test_secret_value_is_in_no_message_and_no_record(cache: DataCache, web: WebServer) -> None:
    web.statuses = [403]
    url = web.url + "?sig=${SIG}&v=1"
    text = failure(cache, url, SIG="pa55 w&rd")
    assert "pa55" not in text
    record = fetch(cache, url, SIG="pa55 w&rd")
    assert web.requests[-1][1].endswith("?sig=pa55%20w&rd&v=1")
    assert "pa55" not in str(record) and record["url"] == web.url
    assert "NAME" in failure(cache, web.url + "?sig=${NAME}")


def test_two_processes_download_once(cache: DataCache, web: WebServer) -> None:
    web.content, web.pause_s = os.urandom(600_000), 0.02
    results = list[dict[str, Any]]()
    threads = [threading.Thread(target=lambda: results.append(fetch(cache, web.url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({result["sha256"] for result in results}) == 1 and len(results) == 3
    assert web.sent == len(web.content)


def test_unused_files_are_removed_by_a_later_download(cache: DataCache, web: WebServer) -> None:
    old = fetch(cache, web.url)
    record = cache.below(key_of(web.url), "record.json")
    os.utime(record, (1, 1))
    fetch(cache, web.url + "2")
    assert not os.path.exists(cache.path(key_of(web.url), old)) and not os.path.exists(cache.below(key_of(web.url)))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/a/train%20set.csv?x=1", "train set.csv"),
        ("https://h/", "data"),
        ("https://h", "data"),
        ("https://h/a/..", "data"),
        ("https://h/a/%2e%2e%2fb", ".._b"),
        ("https://h/" + "n" * 300 + ".csv", "n" * 196 + ".csv"),
        ("https://h/" + "%E6%95%B0" * 100 + ".csv", "数" * 65 + ".csv"),
    ],
)
def test_name_of_file_is_the_last_part_of_the_path(url: str, name: str) -> None:
    assert file_name(url) == name and link_path("/r", "data", url) == f"/r/inputs/data/{name}"


@pytest.mark.parametrize("downloads", [{"../x": "https://h/x"}, {"x": "file:///etc/passwd"}, {"x": 3}])
def test_invalid_download_is_refused(downloads: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="downloads"):
        check(downloads)


@pytest.mark.parametrize("url", ["https://[/x", "https:///x", "http://h:0/x", "http://h:99999999/x"])
def test_invalid_address_is_one_line(url: str) -> None:
    with pytest.raises(DownloadFailed, match="not valid"):
        source_of(url, {})


def test_disk_that_fills_up_during_download_is_one_line(
    cache: DataCache, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(part: Any, block: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module._Part, "append", full)
        assert "no space" in failure(cache, web.url)
    assert content(cache, web.url, fetch(cache, web.url)) == web.content

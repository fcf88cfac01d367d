from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jupyter_amltrain.jobs import origin
from jupyter_amltrain.jobs.origin import data_digest, git_state, origin_of, without_credentials
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import JobSpec


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.email=a@example.org", "-c", "user.name=a", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "project"
    folder.mkdir(parents=True)
    git(tmp_path / "repository", "init", "-q")
    (folder / "train.py").write_text("x = 1\n")
    (folder / ".env").write_text("A=1\n")
    (folder.parent / "other.py").write_text("y = 1\n")
    git(tmp_path / "repository", "add", "-f", ".")
    git(tmp_path / "repository", "commit", "-qm", "first")
    git(tmp_path / "repository", "remote", "add", "origin", "https://joe:s3cr3t@example.org/team/project.git?t=1")
    return folder


def test_git_state_of_clean_folder_has_no_diff(project: Path) -> None:
    state, diff = git_state(str(project))
    assert state is not None and not state.dirty and diff == ""
    assert state.commit == git(project, "rev-parse", "HEAD") and state.branch == "main"
    assert state.remote == "https://example.org/team/project.git"
    assert state.mlflow_tags()["mlflow.source.git.commit"] == state.commit


def test_git_diff_has_only_the_projects_changes_without_secrets(project: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\nabc\n-----END PRIVATE KEY-----\n"
    (project / "train.py").write_text(f'x = 2\nDB_PASSWORD = "hunter2x"\ntoken = "ghp_{"a1" * 15}"\n{key}y = 3\n')
    (project / ".env").write_text("A=9876\n")
    (project.parent / "other.py").write_text("y = 2\n")
    state, diff = git_state(str(project))
    assert state is not None and state.dirty and state.diff_bytes == len(diff) and not state.diff_cut
    assert "+x = 2" in diff and "+y = 3" in diff
    for secret in ("hunter2x", "ghp_", "MIIEvQ", "abc", "9876", "other.py"):
        assert secret not in diff


def test_git_diff_of_large_change_is_cut(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "MAX_DIFF_BYTES", 2000)
    (project / "train.py").write_text("".join(f"x{i} = {i}\n" for i in range(1000)))
    state, diff = git_state(str(project))
    assert state is not None and state.diff_cut and 1000 < len(diff) <= 2000


def test_folder_outside_of_repository_has_no_git_state(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) == (None, "") == git_state(str(tmp_path / "missing"))


def test_repository_without_commit_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    state, diff = git_state(str(tmp_path))
    assert state is not None and not state.commit and not diff and not state.mlflow_tags()


def test_slow_git_leaves_state_unknown(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    monkeypatch.setattr(origin, "GIT_TIMEOUT_S", 0.1)
    assert git_state(str(project)) == (None, "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://token@example.org/a.git", "https://example.org/a.git"),
        ("https://a:p@ss@example.org/a.git", "https://example.org/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("/srv/a.git", "/srv/a.git"),
    ],
)
def test_remote_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_data_digest_changes_with_content_and_not_with_place(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name / "below").mkdir(parents=True)
        (tmp_path / name / "below" / "x.csv").write_text(text)
    one, two, other = (data_digest(str(tmp_path / name)) for name in "abc")
    assert one.sha256 == two.sha256 != other.sha256 and (one.files, one.bytes) == (1, 1)


def test_large_data_has_only_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "MAX_DATA_BYTES", 3)
    (tmp_path / "x.csv").write_text("12345")
    found = data_digest(str(tmp_path / "x.csv"))
    assert (found.sha256, found.bytes) == ("", 5)


def test_origin_names_user_host_and_local_inputs(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1")
    inputs = {
        "data": JobInput(type="uri_file", path=str(tmp_path / "x.csv")),
        "gone": JobInput(type="uri_file", path=str(tmp_path / "gone.csv")),
        "cloud": JobInput(path="azureml:digits:1"),
    }
    found = origin_of(JobSpec(name="a", notebook_dir=str(tmp_path), inputs=inputs)).provenance
    assert found.user and found.host and found.git is None
    assert list(found.inputs) == ["data"] and found.inputs["data"].sha256

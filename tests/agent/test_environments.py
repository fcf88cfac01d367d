"""Parts of a build: settings of pip for uv, reasons of failures, keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.environments import build
from jupyter_amltrain.agent.environments.build import reason_in, search_path, without_password
from jupyter_amltrain.agent.environments.environment_store import EnvironmentStore, check, key_of
from jupyter_amltrain.agent.environments.pip_settings import uv_variables
from jupyter_amltrain.agent.machine import programs
from jupyter_amltrain.agent.protocol import AgentError

CONFIG = "[global]\nindex-url = https://m/simple\nextra-index-url = https://a/s\n  https://b/s\nfind-links = /w1 /w2\n"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {},
            {
                "UV_DEFAULT_INDEX": "https://m/simple",
                "UV_INDEX": "https://a/s https://b/s",
                "UV_INDEX_STRATEGY": "unsafe-best-match",
                "UV_FIND_LINKS": "/w1,/w2",
            },
        ),
        (
            {"UV_INDEX_STRATEGY": "first-index", "UV_FIND_LINKS": "z"},
            {"UV_DEFAULT_INDEX": "https://m/simple", "UV_INDEX": "https://a/s https://b/s"},
        ),
        (
            {"PIP_INDEX_URL": "https://o/s", "UV_INDEX": "x"},
            {"UV_DEFAULT_INDEX": "https://o/s", "UV_FIND_LINKS": "/w1,/w2"},
        ),
        ({"UV_INDEX_URL": "https://u/s", "UV_EXTRA_INDEX_URL": "y", "UV_FIND_LINKS": "z"}, {}),
        ({"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}, {"UV_NO_INDEX": "1"}),
        ({"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "0", "PIP_CERT": "/c"}, {"SSL_CERT_FILE": "/c"}),
    ],
)
def test_settings_of_pip_become_variables_of_uv(
    tmp_path: Path, environ: dict[str, str], expected: dict[str, str]
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(CONFIG)
    result = uv_variables({"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config), **environ})
    if "PIP_CERT" not in environ:
        result.pop("SSL_CERT_FILE", None)  # this machine's own configuration may name one
    assert result == expected


def test_indexes_in_configuration_of_uv_replace_those_of_pip(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text('[[index]]\nurl = "https://mine/simple"\n')
    environ = {"HOME": str(tmp_path), "UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "PIP_INDEX_URL": "https://o/s"}
    assert uv_variables(environ) == {}


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "error: No solution found when resolving dependencies\n  cause: Because a was not found in the"
            " package registry and you require a, we can conclude that x.\n",
            "Because a was not found in the package registry and you require a, we can conclude that x",
        ),
        (
            "  × No solution found when resolving dependencies:\n  ╰─▶ Because b depends on a<2 and you require\n"
            "      a==2, we can conclude that y.\n\n      hint: more\n",
            "Because b depends on a<2 and you require a==2, we can conclude that y",
        ),
        ("noise\nerror: Failed to fetch: `x`\n  Caused by: no route\n", "Failed to fetch: `x`: no route"),
        ("one\nlast line\n", "last line"),
        ("", ""),
    ],
)
def test_reason_of_program_is_one_line(output: str, reason: str) -> None:
    assert reason_in(output.splitlines()) == reason


def test_progress_of_uv_counts_packages_and_bytes() -> None:
    progress = build.UvProgress()
    lines = {
        "Using CPython 3.11.7 interpreter at: /usr/bin/python": "",
        "Resolved 3 packages in 364ms": "3 packages",
        "Downloading scipy (33.7MiB)": "3 packages, 0.0 of 33.7 MiB downloaded",
        "Downloading numpy (16384.0KiB)": "3 packages, 0.0 of 49.7 MiB downloaded",
        " Downloaded numpy": "3 packages, 16.0 of 49.7 MiB downloaded",
        "   Building tiny==1": "3 packages, 16.0 of 49.7 MiB downloaded, compiling tiny==1",
        "      Built tiny==1": "3 packages, 16.0 of 49.7 MiB downloaded",
        "Prepared 3 packages in 813ms": "installing 3 packages",
        " + numpy==2.4.6": "installing 3 packages",
    }
    for line, text in lines.items():
        progress.read(line)
        assert progress.text == text


def test_uv_of_python_package_is_found_beside_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python", "uv"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(build.sys, "executable", str(tmp_path / "other" / "python"))
    assert programs()["uv"] == "" and programs(str(tmp_path / "bin" / "python"))["uv"] == str(tmp_path / "bin" / "uv")
    assert programs("", str(tmp_path / "bin" / "uv"))["uv"] == str(tmp_path / "bin" / "uv")
    monkeypatch.setattr(build.sys, "executable", str(tmp_path / "bin" / "python"))
    assert programs()["uv"] == str(tmp_path / "bin" / "uv") and programs()["docker"] == ""


def test_password_in_address_is_removed() -> None:
    assert without_password("from https://me:secret@h/x and http://t0k@h") == "from https://***@h/x and http://***@h"


def test_secret_in_output_of_program_is_in_no_line_and_no_marker(tmp_path: Path) -> None:
    token, folder = "tok/en+1", tmp_path / "bin"
    folder.mkdir()
    uv = folder / "uv"
    uv.write_text(
        '#!/bin/sh\necho "Downloading from https://h/$TOKEN/simple and https://h/tok%2Fen%2B1/simple"\n'
        'test "$1" = venv || { echo "error: no package at https://h/$TOKEN/simple"; exit 1; }\n'
        'for folder; do :; done; mkdir -p "$folder"\n'
    )
    uv.chmod(0o755)
    lines: list[str] = []
    log = build.BuildLog(lines.append, lines.append, lines.append, (token, "1"))
    spec = check({"packages": ["--index-url https://h/${TOKEN}/simple", "six"], "base": "python3"})
    store = EnvironmentStore(str(tmp_path / "home"))
    Path(store.folder).mkdir(parents=True)
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "TOKEN": token}
    with pytest.raises(build.BuildFailed) as caught:
        build.build(store, "a" * 16, spec, environ, log)
    text = "\n".join([*lines, str(caught.value)])
    assert "no package at https://h/***/simple" in text and token not in text and "tok%2Fen" not in text


def test_versions_of_pyenv_replace_its_shims(tmp_path: Path) -> None:
    root = tmp_path / ".pyenv"
    for version in ("3.9.18", "3.11.7"):
        (root / "versions" / version / "bin").mkdir(parents=True)
    environ = {"HOME": str(tmp_path), "PATH": f"/bin:{root}/shims"}
    assert search_path(environ) == ["/bin", f"{root}/versions/3.11.7/bin", f"{root}/versions/3.9.18/bin"]
    assert search_path({**environ, "PATH": "/bin"}) == ["/bin"]


def spec(**fields: Any) -> dict[str, Any]:
    return check({"base": "/usr/bin/python3", "label": "x", **fields})


def test_key_depends_on_content_and_not_on_label_or_tool() -> None:
    same = [key_of(spec(packages=["a"], label=label, tool=tool)) for label, tool in (("x", ""), ("y", "/uv"))]
    others = [key_of(spec(packages=["b"])), key_of(spec(packages=["a"], python="3.11")), key_of(spec(conda="c"))]
    assert same[0] == same[1] and len({same[0], *others}) == 4


def test_key_depends_on_interpreter_unless_the_file_names_a_version(tmp_path: Path) -> None:
    def keys(python: str) -> set[str]:
        return {
            key_of(spec(packages=["a"], python=python, base=str(base))) for base in (tmp_path / "a", tmp_path / "b")
        }

    assert [len(keys(python)) for python in ("", ">=3.10", ">=3.9,<3.13", "3.11", "3.11.7")] == [2, 2, 2, 1, 1]


def test_environment_whose_python_is_gone_is_listed_but_not_used(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    binary = tmp_path / "envs" / "abc" / "bin"
    binary.mkdir(parents=True)
    (binary / "python").symlink_to(tmp_path / "removed")
    store.write_marker(store.path("abc"), {"schema": 1, "packages": []})
    assert store.list_keys() == ["abc"] and store.usable("abc") is None and store.hold("abc") is None


@pytest.mark.parametrize("fields", [{"packages": "a"}, {"packages": ["a\nb"]}, {"python": 3}, {"more": ""}])
def test_invalid_specification_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="environment"):
        check(fields)


def test_folder_without_marker_is_no_environment(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    (tmp_path / "envs" / "abc").mkdir(parents=True)
    assert store.list_keys() == [] and store.hold("abc") is None
    store.write_marker(store.path("abc"), {"schema": 1, "packages": []})
    (tmp_path / "envs" / "abc" / "bin").mkdir()
    (tmp_path / "envs" / "abc" / "bin" / "python").symlink_to(sys.executable)
    held = store.hold("abc")
    assert store.list_keys() == ["abc"] and held is not None
    with pytest.raises(AgentError, match="uses it"):
        store.delete("abc")


def test_failed_or_killed_conda_build_leaves_no_folder(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path / "home"))
    killed, running, other = "a" * 16, "b" * 16, "locks"
    for name in (killed, running, other):
        (Path(store.folder) / name / "pkgs").mkdir(parents=True)
    held = store.lock(running, exclusive=True)
    store.clear_partial("")
    assert sorted(path.name for path in Path(store.folder).iterdir()) == [running, other] and held is not None
    tool = tmp_path / "bin" / "micromamba"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nwhile [ "$1" != -p ]; do shift; done; mkdir -p "$2/pkgs"; echo "error: no"; exit 1\n')
    tool.chmod(0o755)
    log = build.BuildLog(*[lambda _: None] * 3)
    with pytest.raises(build.BuildFailed, match="no"):
        build.build(store, killed, spec(conda="dependencies: [blas]"), {"PATH": f"{tool.parent}:/usr/bin:/bin"}, log)
    assert sorted(path.name for path in Path(store.folder).iterdir()) == [running, other]


def test_seconds_are_kept_for_the_newest_labels(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    (tmp_path / "envs").mkdir()
    for number in range(205):
        store.record_seconds(f"f{number}", number)
    assert store.last_seconds("f204") == 204 and store.last_seconds("f0") is None

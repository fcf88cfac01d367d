from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.backends.ssh_login import config_hosts


def test_hosts_of_ssh_config_are_named_without_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_hosts() == ()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "# Host hidden\nHost gpubox trainer-1\n  HostName 10.0.0.4\nHost *.corp !bastion\nhost=last\nHost gpubox\n"
    )
    assert config_hosts() == ("gpubox", "trainer-1", "last")

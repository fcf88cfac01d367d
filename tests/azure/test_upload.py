"""What a submit of 1,000 files sends: all once, an edit alone, nothing twice; by the SDK where we may not write."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.backend import AzureBackend
from jupyter_amltrain.azure.client import close_client
from jupyter_amltrain.azure.targets import ServerlessTarget
from jupyter_amltrain.jobs.snapshot import take_snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import new_run_id
from tests.azure.conftest import Azure
from tests.azure.connected_api import store_workspace

FILES, SIZE, DEADLINE = 1000, 2048, 60
#: ``PUT .../<container>/code/<path>``: the file's name in its asset.
_BLOB = re.compile(r"/[^/]+/(?:code/)?(.+)")


class Submitter:
    """Submits a folder to machines that never come, and tells what that sent."""

    def __init__(self, loop: LoopThread, root: StateRoot, azure: Azure, folder: Path) -> None:
        self._loop, self._azure, self._folder = loop, azure, folder
        target = ServerlessTarget(name="free", size="Standard_DS2_v2")
        self._backend = AzureBackend(target, loop, root)

    def _wire(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._azure.control("/wire")
        return found

    def sent(self) -> dict[str, tuple[int, bool]]:
        """Submit it; of every file written to the storage its size, and whether the service copied it itself."""
        before = len(self._wire())
        spec = JobSpec(name="tree", script_name="train.py", source=str(self._folder))
        snapshot = take_snapshot("train.py", "", root=self._folder, source=self._folder)

        async def go() -> None:
            plan = await self._backend.plan(spec, snapshot, new_run_id("tree"))
            await self._backend.launch(plan, {}, {})

        self._loop.call(go(), DEADLINE)
        wire = self._wire()[before:]
        assert [w["status"] for w in wire if w["method"] == "PUT" and "/jobs/" in w["path"]] == [201]
        found: dict[str, tuple[int, bool]] = {}
        for entry in wire:
            name = _BLOB.fullmatch(entry["path"])
            if entry["method"] == "PUT" and ".blob." in entry["host"] and entry["status"] in (201, 202) and name:
                assert name[1] not in found, "sent twice"
                copied = any(key.lower() == "x-ms-copy-source" for key in entry["headers"])
                found[name[1]] = entry["size"], copied
        return found


@pytest.fixture
def submitter(azure_env: Azure, monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> Iterator[Submitter]:
    """With a folder of 1,000 files that nothing can compress."""
    monkeypatch.setenv("AMLTRAIN_AZURE_WARM", "0")
    azure_env.control("/switch", scale_seconds=1e6)
    chance, folder = random.Random(5), tmp_path / "source"
    for number in range(FILES - 1):
        path = folder / f"package{number % 20}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(SIZE))
    (folder / "train.py").write_text("print('trained')\n")
    root, loop = StateRoot(home), LoopThread("test-upload")
    loop.call(store_workspace(loop, root, azure_env), DEADLINE)
    yield Submitter(loop, root, azure_env, folder)
    loop.call(close_client(loop), 30)
    loop.close()


@pytest.mark.thorough
def test_upload_after_edit_sends_changes_or_uses_sdk(submitter: Submitter, azure_env: Azure, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    first = submitter.sent()
    assert len(first) == 5 and not any(copied for _, copied in first.values())
    (folder / "package7" / "m7.py").write_bytes(random.Random(6).randbytes(SIZE))
    second = submitter.sent()
    new = {name: size for name, (size, copied) in second.items() if not copied}
    assert SIZE < sum(new.values()) <= SIZE + 4096
    # What the service has it copies itself; what is sent is under a new name, or is the list of packs.
    assert new.keys() & first.keys() <= {".amltrain/manifest.json"}
    assert second.keys() - new.keys() == first.keys() - {".amltrain/manifest.json"}
    assert submitter.sent() == {}  # a folder as it was
    (folder / "package8" / "m8.py").write_bytes(random.Random(7).randbytes(SIZE))
    azure_env.control("/fault", match=r"^PUT amltrainstore.*/\.amltrain/manifest\.json", status=403)
    # The SDK puts it below the name of the folder that it is given.
    by_sdk = {name.split("/", 1)[1]: size for name, (size, _) in submitter.sent().items() if name.startswith("aml")}
    base = next(name for name in by_sdk if "base-" in name)
    ours = {f".amltrain/{one}" for one in ("agent.pyz", "job.json", "manifest.json")}
    assert by_sdk.keys() == {"train.py", base, *ours}
    assert by_sdk[base] > FILES * SIZE
    assert not azure_env.control("/problems")["problems"]

from __future__ import annotations

import asyncio

import pytest

from jupyter_amltrain.backends import transfer
from jupyter_amltrain.backends.transfer import MAX_PACK_FILES, Transfer, pack_length, resumed
from jupyter_amltrain.errors import TargetUnreachable


@pytest.mark.parametrize(
    ("sizes", "length"),
    [([], 0), ([500], 1), ([500, 1], 1), ([40, 60, 1], 2), ([0] * 5000, MAX_PACK_FILES), ([10, 0, 0], 3)],
)
def test_pack_has_files_up_to_its_limit(sizes: list[int], length: int) -> None:
    assert pack_length(sizes, 100) == length


def test_text_counts_files_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "NOTICE_S", 0.0)
    copying = Transfer("copying", 4 << 20, files=2000)
    copying.skip(1 << 20, 500)
    copying.advance(1 << 20, 500)
    assert "1,000 of 2,000 files" in copying.text and "2.0 MiB of 4.0 MiB" in copying.text and "left" in copying.text
    copying.is_lost = True
    assert "lost" in copying.text and "left" not in copying.text
    assert "files" not in Transfer("sending", 10).text


def test_read_of_lost_machine_is_repeated_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.01)
    copying, attempts = Transfer("copying", 10), list[bool]()

    async def read() -> str:
        attempts.append(copying.is_lost)
        if len(attempts) < 3:
            raise TargetUnreachable("gone")
        return "here"

    assert asyncio.run(resumed(read, copying)) == "here" and attempts == [False, True, True] and not copying.is_lost
    monkeypatch.setattr(transfer, "RESUME_S", -1.0)
    attempts.clear()
    with pytest.raises(TargetUnreachable):
        asyncio.run(resumed(read, copying))
    assert len(attempts) == 1 and not copying.is_lost

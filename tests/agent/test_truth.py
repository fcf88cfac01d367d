"""Did a run use its GPUs? The rules of the verdict, without a GPU, a process or a clock."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.telemetry.gpu_usage import (
    COMMON_CAUSES,
    GpuUsageCheck,
    likely_cause,
    read_verdict,
    usage_check_of_run,
)

GPUS = [{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}]
IDLE = {"util": 0, "peak": 0, "memory": 600}
NONE: dict[str, Any] = {"util": None, "peak": None, "memory": None}
MIG = {"util": None, "peak": None, "memory": 20}
GRACE = 60.0

Rows = Sequence[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "telemetry").mkdir()
    return tmp_path


class Watch:
    """A truth that is ticked once a second from `t` on."""

    def __init__(self, folder: Path, gpus: int = 1, baseline: float | None = 600, **more: Any) -> None:
        self.folder, self.count, self.t = folder, gpus, 1000.0
        self.requests: list[list[int]] = []
        self.truth = self.made(baseline, **more)

    def made(self, baseline: float | None = 600, **more: Any) -> GpuUsageCheck:
        def why(pids: Any, gpus: Any) -> str:
            self.requests.append(list(pids))
            return "because"

        return GpuUsageCheck(str(self.folder), GPUS[: self.count], GRACE, [baseline] * self.count, why=why, **more)

    def run(self, seconds: float, *readings: dict[str, Any], slow: Rows = (), members: bool = True) -> Watch:
        """Tick for some seconds, the last reading for all further GPUs."""
        rows = [*readings, *[readings[-1] if readings else IDLE] * (self.count - len(readings))]
        for _ in range(round(seconds)):
            self.truth.tick(self.t, rows, slow, {7: None} if members else {})
            self.t += 1
        return self

    @property
    def file(self) -> dict[str, Any]:
        return read_verdict(str(self.folder / "telemetry" / "truth-0.json"))

    @property
    def verdict(self) -> str:
        assert self.file["verdict"] == self.truth.verdict
        return self.truth.verdict


def test_idle_gpu_after_grace_time_is_not_used(folder: Path) -> None:
    watch = Watch(folder, 2).run(3, members=False)
    assert watch.run(60, IDLE, {**IDLE, "memory": 637}).verdict == ""
    assert watch.run(1).verdict == "not used"
    assert all(part in watch.file["detail"] for part in ("each of 2 GPUs", "0 %", "37 MiB", "60 s"))
    assert watch.file["cause"] == "because" and watch.requests == [[7]]


def test_grace_time_starts_at_first_process(folder: Path) -> None:
    assert Watch(folder).run(300, members=False).run(60).verdict == ""


@pytest.mark.parametrize(
    ("reading", "slow", "message"),
    [
        ({**IDLE, "util": 93, "peak": 97}, [], "utilization 97 %"),
        ({**IDLE, "peak": 10}, [], "utilization 10 %"),
        ({**IDLE, "util": 11, "peak": None}, [], "utilization 11 %"),
        ({**IDLE, "memory": 665}, [], "65 MiB more than before the run"),
        (IDLE, [{"mine": 500, "others": None}], "a process of this run with 500 MiB"),
        (MIG, [{"mine": 500, "others": None}], "a process of this run"),
        ({**MIG, "memory": 900}, [], "300 MiB more"),
        (NONE, [{"mine": None, "own": True}], "a process of this run"),
        # Others are on it: only a process that is ours proves anything.
        ({**IDLE, "util": 90}, [{"mine": 500, "others": 9000}], "a process of this run"),
    ],
)
def test_any_sign_of_use_is_used(folder: Path, reading: Any, slow: Any, message: str) -> None:
    watch = Watch(folder).run(12).run(2, reading, slow=slow)
    assert watch.verdict == "used" and message in watch.file["detail"] and "first after 12 s" in watch.file["detail"]
    assert watch.run(200).verdict == "used" and watch.file["cause"] == ""


@pytest.mark.parametrize(
    ("reading", "slow", "message"),
    [
        (MIG, [], "utilization"),
        (NONE, [], "utilization"),
        ({**IDLE, "memory": None}, [], "GPU 0 does not report its memory"),
        (IDLE, [{"mine": None, "others": 9000}], "others compute on GPU 0 too"),
        ({**IDLE, "util": 80, "memory": 9000}, [{"mine": None, "others": 8000}], "others compute on GPU 0 too"),
        ({**IDLE, "util": 80, "memory": 9000}, [{"mine": 0, "others": 8000}], "others compute on GPU 0 too"),
        ({**IDLE, "memory": 100}, [], "GPU 0 lost 500 MiB meanwhile"),
    ],
)
def test_incomplete_evidence_is_undecided(folder: Path, reading: Any, slow: Any, message: str) -> None:
    watch = Watch(folder).run(5).run(1, reading, slow=slow).run(55)
    assert watch.verdict == "cannot tell" and message in watch.file["detail"] and watch.requests == []
    assert watch.run(1, IDLE, slow=[{"mine": 1, "others": None}]).verdict == "used"


@pytest.mark.parametrize("mine", [None, 0])
@pytest.mark.parametrize("others", [None, 0])
def test_missing_process_ids_are_no_evidence(folder: Path, mine: float | None, others: float | None) -> None:
    """The id modes: real ids, the host's, mixed ones, none at all, on a busy and on an idle device."""
    slow = [{"mine": mine, "others": others}]
    busy = Watch(folder).run(70, {"util": 80, "peak": 90, "memory": 9000}, slow=slow)
    assert busy.verdict == "used"
    (folder / "telemetry" / "truth-0.json").unlink()
    assert Watch(folder).run(61, IDLE, slow=slow).verdict == "not used"


DISPLAY = {"util": 3, "peak": 4, "memory": 600}
START_OF_DRIVER = {"util": 98, "peak": 100, "memory": 600}
#: What Owners.sums gives where pids are the machine's own, and in a container.
ABSENT, HIDDEN = [{"mine": 0, "others": 0, "own": False}], [{"mine": None, "others": None, "own": False}]


@pytest.mark.parametrize("slow", [ABSENT, HIDDEN], ids=["complete list", "hidden pids"])
def test_display_utilization_is_not_use(folder: Path, slow: Any) -> None:
    watch = Watch(folder, busy=[3]).run(3, DISPLAY, members=False).run(61, DISPLAY, slow=slow)
    assert watch.verdict == "not used" and "600" not in watch.file["detail"]


@pytest.mark.parametrize("slow", [ABSENT, HIDDEN], ids=["complete list", "hidden pids"])
@pytest.mark.parametrize("before", [[98], [0], []], ids=["seen", "not seen", "not read"])
def test_driver_start_utilization_is_not_use(folder: Path, slow: Any, before: Any) -> None:
    watch = Watch(folder, busy=before).run(5, START_OF_DRIVER, slow=slow).run(56, slow=slow)
    assert watch.verdict == "not used"


def test_driver_start_utilization_keeps_later_use(folder: Path) -> None:
    watch = Watch(folder, busy=[98]).run(5, START_OF_DRIVER, slow=HIDDEN).run(10, slow=HIDDEN)
    assert watch.run(2, {**IDLE, "util": 95}, slow=HIDDEN).verdict == "used"


@pytest.mark.parametrize("memory", [600, None])
def test_utilization_of_one_sample_is_undecided(folder: Path, memory: Any) -> None:
    reading = {"util": 90, "peak": 90, "memory": memory}
    watch = Watch(folder, busy=[0]).run(15, {**IDLE, "memory": memory}).run(1, reading)
    assert watch.verdict == ""
    assert watch.run(50, {**IDLE, "memory": memory}).verdict == "cannot tell"


def test_complete_process_list_overrides_utilization(folder: Path) -> None:
    busy = {"util": 60, "peak": 80, "memory": 600}
    watch = Watch(folder, busy=[0]).run(61, busy, slow=ABSENT)
    assert watch.verdict == "not used" and "no process" in watch.file["detail"] and "60" in watch.file["detail"]
    assert watch.run(1, {**busy, "memory": 700}, slow=ABSENT).verdict == "used"


def test_empty_process_list_of_mig_instance_is_no_evidence(folder: Path) -> None:
    watch = Watch(folder, busy=[0])
    watch.truth.gpus = [{**GPUS[0], "mig": True}]
    assert watch.run(13, {"util": 60, "peak": 80, "memory": 600}, slow=ABSENT).verdict == "used"


def test_always_busy_gpu_is_undecided(folder: Path) -> None:
    watch = Watch(folder, busy=[60]).run(61, {"util": 60, "peak": 62, "memory": 600}, slow=HIDDEN)
    assert watch.verdict == "cannot tell" and "before the run" in watch.file["detail"]


@pytest.mark.parametrize("slow", [ABSENT, HIDDEN], ids=["complete list", "hidden pids"])
def test_memory_growth_is_used_at_first_sample(folder: Path, slow: Any) -> None:
    watch = Watch(folder, busy=[98]).run(1, {**START_OF_DRIVER, "memory": 900}, slow=slow)
    assert watch.verdict == "used" and "first after 0 s" in watch.file["detail"]


def test_utilization_before_run_survives_sampler_restart(folder: Path) -> None:
    watch = Watch(folder, busy=[8]).run(20, {**IDLE, "util": 8})
    watch.truth = watch.made(busy=[0])
    assert watch.run(41, {**IDLE, "util": 8}).verdict == "not used"


def test_gpu_usage_requires_every_gpu_idle(folder: Path) -> None:
    assert Watch(folder, 2).run(70, IDLE, {**IDLE, "util": 15}).verdict == "used"
    (folder / "telemetry" / "truth-0.json").unlink()
    assert Watch(folder, 2).run(70, IDLE, NONE).verdict == "cannot tell"


def test_earlier_processes_make_usage_undecided(folder: Path) -> None:
    there = [{"mine": 0, "others": 9000}]
    watch = Watch(folder).run(2, IDLE, slow=there, members=False)
    watch.run(61, {**IDLE, "util": 50}, slow=[{"mine": 0, "others": 0}])
    assert watch.verdict == "cannot tell"


def test_late_use_changes_verdict(folder: Path) -> None:
    watch = Watch(folder).run(75)
    assert watch.verdict == "not used"
    assert watch.run(1, {**IDLE, "peak": 40}).verdict == "not used"
    assert watch.run(1, {**IDLE, "peak": 40}).verdict == "used"
    assert "first after 75 s" in watch.file["detail"] and watch.file["cause"] == ""


def test_sample_gap_is_no_evidence(folder: Path) -> None:
    watch = Watch(folder).run(20)
    watch.t += 4
    assert watch.run(37).verdict == "not used"  # a late tick is no hole
    (folder / "telemetry" / "truth-0.json").unlink()
    watch = Watch(folder).run(20)
    watch.t += 6
    assert watch.run(60).verdict == "cannot tell"
    assert watch.file["detail"] == "no samples were read for 7 s"


@pytest.mark.parametrize(("away", "verdict"), [(0, "not used"), (10, "cannot tell")])
def test_gpu_usage_after_sampler_restart_continues(folder: Path, away: float, verdict: str) -> None:
    watch = Watch(folder).run(3, members=False).run(29)
    watch.t += away
    watch.truth = watch.made(baseline=9000)  # what is on the device now is not what was before the run
    assert watch.run(33).verdict == verdict
    watch.truth = watch.made()
    assert watch.verdict == verdict
    assert watch.run(1, {**IDLE, "memory": 700}).verdict == "used"
    watch.truth = watch.made()
    assert watch.run(100).verdict == "used"


def test_damaged_usage_file_is_no_evidence(folder: Path) -> None:
    (folder / "telemetry" / "truth-0.json").write_text('{"schema":1,"verdict":"","state":{"gpus":3}}')
    assert Watch(folder).run(61).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("busy", "seconds", "verdict", "message"),
    [
        (True, 14, "used", "first after 10 s"),
        (True, 2, "cannot tell", "after 1 s, before its grace time of 60 s"),
        (False, 11, "cannot tell", "after 10 s, before its grace time of 60 s"),
        (False, 0, "cannot tell", "before its processes were seen"),
    ],
)
def test_short_run_verdict_follows_use(folder: Path, busy: bool, seconds: int, verdict: str, message: str) -> None:
    watch = Watch(folder).run(seconds, {**IDLE, "util": 50} if busy else IDLE)
    watch.truth.close()
    assert watch.verdict == verdict and message in watch.file["detail"]


def test_full_disk_delays_usage_file(folder: Path) -> None:
    watch = Watch(folder)
    (folder / "telemetry").rename(folder / "away")
    watch.run(62)
    (folder / "away").rename(folder / "telemetry")
    assert watch.run(1).verdict == "not used"


def test_usage_file_is_written_rarely(folder: Path) -> None:
    watch, path = Watch(folder), folder / "telemetry" / "truth-0.json"
    seen = set()
    for _ in range(600):
        watch.run(1)
        seen.add((path.stat().st_ino, path.stat().st_mtime_ns))
    assert len(seen) < 20


def test_gpu_usage_reads_devices_and_grace_of_run(folder: Path) -> None:
    assert usage_check_of_run(str(folder), ["GPU-a"], GPUS[:1], [600], 1.0) is None  # no run: a monitor
    (folder / "job.json").write_text(json.dumps({"schema": 1, "gpu_grace": 5}))
    (folder / "state.json").write_text(json.dumps({"schema": 1, "rank": None}))
    assert usage_check_of_run(str(folder), [], [], [], 1.0) is None
    made = usage_check_of_run(str(folder), ["GPU-a"], GPUS[:1], [600], 1.0)
    assert made is not None and made.grace == 5 and made.baselines == [600] and made.doubt == ""
    (folder / "telemetry" / "truth-0.json").unlink()
    # The run did not wait: nobody knows what was on its devices before.
    (folder / "state.json").write_text(json.dumps({"schema": 1, "rank": {"pid": 7, "start": 1}}))
    late = usage_check_of_run(str(folder), ["GPU-a"], GPUS[:1], [600], 1.0)
    assert late is not None and late.baselines == [None]
    (folder / "telemetry" / "truth-0.json").unlink()
    part = usage_check_of_run(str(folder), ["GPU-a", "GPU-b"], GPUS[:1], [600], 1.0)
    assert part is not None and part.doubt == "1 of 2 GPUs cannot be read"


# -- causes ---------------------------------------------------------------------------


def process(proc: Path, pid: int, libraries: Sequence[str], **environ: str) -> None:
    """A process as /proc shows it."""
    (proc / str(pid)).mkdir(parents=True)
    lines = [f"7f00-7f01 r-xp 00000000 08:01 {i}   /site-packages/{name}" for i, name in enumerate(libraries)]
    (proc / str(pid) / "maps").write_text("\n".join(["00-01 rw-p 00000000 00:00 0 [heap]", *lines, ""]))
    environ["API_TOKEN"] = "s3cret"
    (proc / str(pid) / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in environ.items()) + b"\0")


CPU_TORCH = ["torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so"]
CUDA_TORCH = [*CPU_TORCH, "torch/lib/libtorch_cuda.so", "nvidia/libcudart.so.12"]


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        (
            [(CPU_TORCH, "GPU-a")],
            r"^torch is installed without CUDA \(CPU-only wheel\): pip install torch from the CUDA",
        ),
        ([(CUDA_TORCH, "GPU-a")], r"^nothing was moved to the GPU: model\.to\('cuda'\), batch\.to\('cuda'\)$"),
        ([(["libcuda.so.1"], "GPU-a")], r"^nothing was moved to the GPU"),
        ([(["libtensorflow_framework.so.2"], "GPU-a")], r"^tensorflow is installed without CUDA"),
        ([(["libtensorflow_cc.so.2", "libcudart.so.12"], "GPU-a")], r"^tensorflow has CUDA libraries"),
        ([(["jaxlib/xla_extension.so"], "GPU-a")], r"^jax is installed without CUDA"),
        ([(CUDA_TORCH, "")], r"CUDA_VISIBLE_DEVICES=''"),
        ([(CPU_TORCH, "-1")], r"CUDA_VISIBLE_DEVICES='-1'"),
        ([(CUDA_TORCH, "3")], r"CUDA_VISIBLE_DEVICES='3' .*GPU-a,GPU-b"),
        # The shell that started the script has the right value, the script the wrong one, and the other way round.
        ([([], "GPU-a"), (CUDA_TORCH, "")], r"hides every GPU"),
        ([([], ""), (CUDA_TORCH, "GPU-a,GPU-b")], r"^nothing was moved"),
        # A worker without a GPU beside a script that has it.
        ([(CUDA_TORCH, "GPU-a"), (CUDA_TORCH, "")], r"^nothing was moved"),
        ([(CUDA_TORCH, "0")], r"^nothing was moved"),
        ([([], "GPU-a")], "^" + re.escape(COMMON_CAUSES)),
        ([([], None)], "^" + re.escape(COMMON_CAUSES)),
        ([], "^" + re.escape(COMMON_CAUSES)),
    ],
)
def test_idle_cause_is_read_from_processes(tmp_path: Path, processes: Any, message: str) -> None:
    for pid, (libraries, visible) in enumerate(processes, 10):
        process(tmp_path, pid, libraries, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    found = likely_cause([*range(10, 10 + len(processes)), 999], GPUS, str(tmp_path))
    assert re.search(message, found), found
    assert "s3cret" not in found and "\n" not in found


def test_run_that_only_copied_is_used_and_says_so(folder: Path) -> None:
    watch = Watch(folder).run(2, IDLE, slow=[{"mine": 500, "others": None}])
    watch.truth.close(only_copied=True)
    assert watch.verdict == "used" and "computed nothing" in watch.file["detail"]

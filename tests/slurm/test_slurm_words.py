"""What Slurm prints, in words: reasons, ends, limits, lists of jobs. No cluster is needed."""

from __future__ import annotations

import pytest

from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.slurm.agent import cluster, commands, reasons
from jupyter_amltrain.slurm.agent.jobs import parse


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "free"),
        ("Priority", "before it"),
        ("(Priority)", "before it"),
        ("QOSMaxGRESPerUser", "your quality of service allows no more GPUs"),
        ("QOSMaxCpuPerJobLimit", "no job with so many processors"),
        ("AssocGrpGRES", "your account allows no more GPUs"),
        ("AssocGrpCpuLimit", "processors"),
        ("AssocMaxWallDurationPerJobLimit", "no job with so much time"),
        ("AssocMaxGRESMinutesPerJob", "no job with so many GPUs for so long"),
        ("QOSMaxGRESPerNode", "no job with so many GPUs"),
        ("QOSGrpCPUMinutesLimit", "used up its time of processors"),
        ("QOSGrpWallLimit", "used up its time:"),
        ("AssocGrpCPURunMinutesLimit", "no more processors at the same time"),
        ("QOSMaxJobsPerUserLimit", "no more jobs at the same time"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "sinfo -R"),
        ("PartitionTimeLimit", "--timeout"),
        ("BeginTime", "scontrol update JobId=7 StartTime=now"),
        ("Dependency", "another job"),
        ("JobHeldUser", "scontrol release 7"),
    ],
)
def test_reason_in_words_says_what_to_do(reason: str, words: str) -> None:
    assert words in reasons.words(reason, "7")


def test_unknown_reason_is_shown_as_it_is() -> None:
    assert reasons.words("SomethingNew", "7") == "SomethingNew"


@pytest.mark.parametrize(
    ("state", "run_state", "reason"),
    [
        ("TIMEOUT", "failed", "timeout"),
        ("OUT_OF_MEMORY", "failed", "oom"),
        ("CANCELLED", "canceled", "canceled"),
        ("PREEMPTED", "failed", "preempted"),
        ("NODE_FAIL", "lost", "lost"),
        ("FAILED", "failed", "launch"),
        ("COMPLETED", "lost", "lost"),
        ("", "lost", "lost"),
    ],
)
def test_end_of_job_without_result_is_end_of_run(state: str, run_state: str, reason: str) -> None:
    found = reasons.ended(state, "1:0")
    assert found[:2] == (run_state, reason) and found[2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:30:00", 95400), ("30:00", 1800), ("1:00:00", 3600), ("5", 300), ("0:07", 7), ("2-00", 172800)],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert commands.duration(text) == seconds


@pytest.mark.parametrize("text", ["UNLIMITED", "NONE", "INVALID", "", "Partition_Limit"])
def test_duration_without_limit_is_none(text: str) -> None:
    assert commands.duration(text) is None


def test_gpus_are_counted_by_type() -> None:
    assert cluster.gpus_of("gpu:a100:4(S:0-1),gpu:v100:2,nvme:1") == {"a100": 4, "v100": 2}
    assert cluster.gpus_of("gpu:2(IDX:0-1)") == {"": 2}
    assert cluster.gpus_of("(null)") == {}


def test_list_of_jobs_is_parsed_and_damaged_lines_are_skipped() -> None:
    waits = "12|12|PENDING|1796018811|30:00|0:00|2||main|Resources|a|b\n"
    text = waits + "13|13|RUNNING|N/A|UNLIMITED|1:02|1|n1|main|None|x\nnoise\n"
    found = parse(text)
    assert found["12"].start == 1796018811.0 and found["12"].nodes == 2 and found["12"].name == "a|b"
    assert found["13"].limit is None and found["13"].seconds == 62 and found["13"].hosts == "n1"
    assert found["12"].place == (1, 1) and found["13"].place is None


def test_tasks_of_an_array_are_jobs_with_a_number_of_their_own() -> None:
    rest = "RUNNING|N/A|UNLIMITED|1:02|1|n1|main|None|sweep"
    found = parse(f"7_0|8|{rest}\n7_1|7|PENDING|N/A|30:00|0:00|1||main|JobArrayTaskLimit|sweep\n")
    assert found["7_0"].number == "8" and found["7_1"].place == (1, 1)


def test_command_that_is_absent_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AgentError, match="sbatch was not found"):
        commands.run("sbatch")


def test_error_text_is_last_line_without_prefix() -> None:
    errors = "sbatch: warning\nsbatch: error: Batch job submission failed: Invalid account\n"
    assert commands.error_text(errors) == "Batch job submission failed: Invalid account"
    wrong = "sbatch: unrecognized option '--no-such'\nTry \"sbatch --help\" for more information\n"
    assert commands.error_text(wrong) == "unrecognized option '--no-such'"
    assert commands.error_text("") == ""

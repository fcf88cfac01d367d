"""Lifecycle of a job, from the accepted PUT to its end."""

from __future__ import annotations

import asyncio
import time

from azureml_emulator import builds, job_shapes
from azureml_emulator.job_attempt import Attempt
from azureml_emulator.job_parents import Parent
from azureml_emulator.job_runs import Canceled, JobFailed, Jobs, Preempted, Run, unless_ended
from azureml_emulator.pool import Lease, NodesRefused


class Life:
    """Moves one job through its states."""

    def __init__(self, jobs: Jobs, run: Run) -> None:
        self.jobs, self.run, self.world = jobs, run, run.world

    async def live(self) -> None:
        """From Starting to a terminal state."""
        run = self.run
        try:
            if run.properties["jobType"] != "Command":
                end = await Parent(self.jobs, run).carry_out()
            else:
                end = await self.command()
        except Canceled:
            end = "Canceled"
        except JobFailed as failed:
            run.error = job_shapes.error(failed.code, failed.message, failed.inner)
            end = "Failed"
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.world.problems.append(f"job {run.name}: {type(error).__name__}: {error}")
            run.error = job_shapes.error("ServiceError", f"{type(error).__name__}: {error}")
            end = "Failed"
        run.reason = ""
        run.ended, run.ended_at = time.time(), self.world.clock.stamp()
        run.properties["properties"]["EndTimeUtc"] = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        run.set(end)
        run.over.set()

    async def command(self) -> str:
        """A command job; the state in which it ended."""
        run = self.run
        await unless_ended(run, self._pause("job_seconds"))
        run.set("Preparing")
        image = await unless_ended(run, builds.ready(self.jobs, run))
        while True:
            if run.status != "Queued":
                run.set("Queued")
            lease = await self._lease()
            try:
                if self.world.switches["queued_to_preparing"]:
                    run.set("Preparing")
                    await unless_ended(run, self._pause("job_seconds"), lease)
                return await Attempt(self.jobs, run, lease, image).carry_out()
            except Preempted:
                run.attempt += 1
                run.warnings.append(
                    "The job was preempted: its low priority nodes were taken away. It is queued again."
                )
                # Storage says when a file was made in whole seconds, and no machine is replaced within one.
                await asyncio.sleep(1)
            finally:
                self.world.nodes.release(lease)
                if run.cluster is None and run.status not in ("Running", "Queued"):
                    self.world.nodes.drop_serverless(run.name)

    async def _lease(self) -> Lease:
        run = self.run
        count = int(run.properties["resources"]["instanceCount"])
        nodes = self.world.nodes
        if run.cluster is None:
            wanted = nodes.acquire_serverless(run.size, count, job=run.name, low_priority=run.low_priority)
        else:
            wanted = nodes.acquire(run.properties["computeId"], count, job=run.name)
        watching = self.world.spawn(self._watch_queue(), f"queue of {run.name}")
        try:
            return await unless_ended(run, wanted)
        except NodesRefused as refused:
            raise JobFailed("UserError", refused.message, refused.code) from None
        finally:
            watching.cancel()
            run.reason = ""

    async def _watch_queue(self) -> None:
        """While it waits: the reason, and the cluster's state in a tag (recording 07a)."""
        run = self.run
        while True:
            run.reason = self.world.nodes.reason(run.name)
            if run.cluster is not None:
                pool = self.world.nodes.pool(run.properties["computeId"])
                run.properties["tags"]["_aml_system_ComputeTargetStatus"] = job_shapes.cluster_status(pool)
            await asyncio.sleep(0.05)

    async def _pause(self, switch: str) -> None:
        await self.world.clock.sleep(float(self.world.switches[switch]))

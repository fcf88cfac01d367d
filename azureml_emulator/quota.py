"""vCPU quota: dedicated by VM family, low priority in one pool for the region.

Shape: recording powershell_usages. Not recorded, but reported by users in 2026 (with the texts below): low priority is
the single counter ``TotalLowPriorityCores``; a dedicated cluster is checked at its creation even with 0 nodes, a
low-priority one never is: its ``errors`` say later why no node comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azureml_emulator import arm, sizes
from azureml_emulator.routing import Call, Refused, Routes

if TYPE_CHECKING:
    from azureml_emulator.world import World

routes = Routes()

#: (name, localized, limit); names spelled as recorded, which is not how vmSizes spells the same families.
FAMILIES: tuple[tuple[str, str, int], ...] = (
    ("standardDFamily", "Standard D Family Cluster Dedicated vCPUs", 6),
    ("standardDSv2Family", "Standard DSv2 Family Cluster Dedicated vCPUs", 24),
    ("standardDDSv4Family", "Standard DDSv4 Family Cluster Dedicated vCPUs", 32),
    ("standardESv3Family", "Standard ESv3 Family Cluster Dedicated vCPUs", 16),
    ("standardFSv2Family", "Standard FSv2 Family Cluster Dedicated vCPUs", 16),
    ("standardNCSv3Family", "Standard NCSv3 Family Cluster Dedicated vCPUs", 24),
    ("Standard NCASv3_T4 Family", "Standard  NCASv3_T4  Family Cluster Dedicated vCPUs", 16),
    ("standardNCADSA100v4Family", "Standard NCADSA100v4 Family Cluster Dedicated vCPUs", 24),
    ("standardNDSv2Family", "Standard NDSv2 Family Cluster Dedicated vCPUs", 0),
)
TOTAL_CLUSTERS = 200
TOTAL_DEDICATED = 100
TOTAL_LOW_PRIORITY = 100
_HOW = (
    "Talk to your Subscription Admin or refer to "
    "https://docs.microsoft.com/azure/machine-learning/how-to-manage-quotas#request-quota-increases to increase the "
    "{family} quota"
)


class Quota:
    """Limits of the subscription in its region; what is used is counted from nodes and instances each time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.limits = {sizes.family_key(name): limit for name, _, limit in FAMILIES}
        self.limits |= {"totaldedicatedcores": TOTAL_DEDICATED, "totallowprioritycores": TOTAL_LOW_PRIORITY}
        self.limits["totalclusters"] = TOTAL_CLUSTERS

    async def close(self) -> None:
        """Nothing runs."""

    def set(self, limits: dict[str, int]) -> None:
        """New limits by family (any spelling) or total (``TotalDedicatedCores``, ...)."""
        self.limits |= {sizes.family_key(name): int(limit) for name, limit in limits.items()}
        self.world.nodes.replan()

    # -------------------------------------------------------------------------------------------------------- counting
    def used(self, family: str | None, low_priority: bool) -> int:
        """vCPUs in use, of one family or (None) of all."""
        total = 0
        for pool in self.world.nodes.pools():
            size = sizes.find(pool.size)
            if size is None or pool.low_priority != low_priority:
                continue
            if family is None or sizes.family_key(size["family"]) == sizes.family_key(family):
                total += len(pool.nodes) * int(size["vCPUs"])
        if not low_priority:
            for resource in self.world.resources.below(f"{self.world.workspace_id}/computes"):
                size = _holding(resource)
                if size and (family is None or sizes.family_key(size["family"]) == sizes.family_key(family)):
                    total += int(size["vCPUs"])
        return total

    def limit(self, family: str, low_priority: bool) -> int:
        """What one family may use at most (the regional total too)."""
        if low_priority:
            return self.limits["totallowprioritycores"]
        return min(self.limits.get(sizes.family_key(family), 0), self.limits["totaldedicatedcores"])

    def free_nodes(self, name: str, low_priority: bool) -> int:
        """How many more nodes of a size the quota holds now."""
        size = sizes.find(name)
        if size is None:
            return 0
        cores = int(size["vCPUs"])
        if low_priority:
            return max(0, self.limits["totallowprioritycores"] - self.used(None, True)) // cores
        family = self.limits.get(sizes.family_key(size["family"]), 0) - self.used(size["family"], False)
        region = self.limits["totaldedicatedcores"] - self.used(None, False)
        return max(0, min(family, region)) // cores

    # ------------------------------------------------------------------------------------------------------------ texts
    def reached(self, name: str, low_priority: bool, nodes: int) -> dict[str, str]:
        """Error of a cluster whose nodes do not come because others use the quota (code as users report it)."""
        size = sizes.find(name)
        assert size is not None, "a cluster has a size that exists"
        return {
            "code": "ClusterCoreQuotaReached",
            "message": "Operation results in exceeding quota limits of Core. Maximum allowed: "
            f"{self.limit(size['family'], low_priority)}, Current in use: "
            f"{self.used(None if low_priority else size['family'], low_priority)}, "
            f"Additional requested: {nodes * int(size['vCPUs'])}.",
        }

    def check_cluster(self, size: dict[str, Any], least: int) -> str | None:
        """Why a dedicated cluster may not be made, as pasted by users (recordings/11f); None when it may."""
        wanted = max(1, least)
        if self.limit(size["family"], False) >= wanted * int(size["vCPUs"]):
            return None
        return (
            f"The specified subscription has a {spoken(size['family'])} vCPU quota of "
            f"{self.limit(size['family'], False)} and cannot accomodate for at least {wanted} requested managed "
            f"compute node{'s' if wanted > 1 else ''} which maps to {wanted * int(size['vCPUs'])} vCPUs. "
            + _HOW.format(family=spoken(size["family"]))
        )

    def check_job(self, name: str, low_priority: bool, count: int) -> None:
        """
        Raises
        ------
        nodes.NodesRefused
            The limit itself is below what the job wants (not: others use it).
        """
        from azureml_emulator.pool import NodesRefused

        size = sizes.find(name)
        if size is None or low_priority:
            return
        limit, wanted = self.limit(size["family"], False), count * int(size["vCPUs"])
        if limit < wanted:
            raise NodesRefused(
                "JobNodeCountExceedsCoreQuota",
                f"The specified subscription has a {spoken(size['family'])} vCPU quota of {limit} and is less than the "
                f"requested job node count of {count} which maps to {wanted} vCPUs. "
                + _HOW.format(family=spoken(size["family"])),
            )


def spoken(family: str) -> str:
    """``standardNCSv3Family`` -> ``Standard NCSv3 family``, as the error texts say it."""
    bare = family.replace("_", " ").strip()
    bare = bare.removesuffix("Family").removesuffix("family").strip()
    if bare.lower().startswith("standard"):
        bare = "Standard " + bare[len("standard") :].strip()
    return f"{bare} family"


def _holding(resource: dict[str, Any]) -> dict[str, Any] | None:
    """The size of a compute instance that holds quota: any that is not stopped with releaseQuotaOnStop."""
    properties = resource["properties"]
    if properties["computeType"] != "ComputeInstance" or properties["provisioningState"] == "Failed":
        return None
    inner = properties["properties"]
    if inner.get("state") == "Stopped" and inner.get("releaseQuotaOnStop"):
        return None
    return sizes.find(inner["vmSize"])


@routes.arm(
    "GET", "/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices/locations/{location}/usages"
)
async def usages(call: Call) -> Any:
    """Usages in the recorded shape and order: totals, families, then the low-priority pool."""
    if call.params["location"].lower() != call.world.location:
        return arm.no_such_region(call, "usages")
    quota = call.world.quota
    root = f"/subscriptions/{call.world.subscription}"
    below = call.world.resources.below(f"{call.world.workspace_id}/computes")
    clusters = sum(one["properties"]["computeType"] in ("AmlCompute", "ComputeInstance") for one in below)
    kind = "Microsoft.MachineLearningServices"

    def row(value: str, localized: str, used: int, limit: int, type_: str, id_: str) -> dict[str, Any]:
        return {
            "unit": "Count",
            "currentValue": used,
            "limit": limit,
            "name": {"value": value, "localizedValue": localized},
            "type": f"{kind}/{type_}/usages",
            "id": id_,
        }

    limits = quota.limits
    total, pool = limits["totaldedicatedcores"], limits["totallowprioritycores"]
    dedicated = "Total Cluster Dedicated Regional vCPUs"
    low = "Total Cluster LowPriority Regional vCPUs"
    found = [
        row("TotalClusters", "Total Clusters", clusters, limits["totalclusters"], "totalClusters", root),
        row("TotalDedicatedCores", dedicated, quota.used(None, False), total, "totalDedicatedCores", root),
        *(
            row(
                name,
                localized,
                quota.used(name, False),
                limits[sizes.family_key(name)],
                "vmFamily/dedicatedCores",
                f"{root}/usages/{name.replace(' ', '_')}",
            )
            for name, localized, _ in FAMILIES
        ),
        row("TotalLowPriorityCores", low, quota.used(None, True), pool, "totalLowPriorityCores", root),
    ]  # fmt: skip
    if not call.world.switches["low_priority_pool"]:
        found[-1:] = [
            row(
                name,
                localized.replace("Dedicated", "LowPriority"),
                quota.used(name, True),
                pool,
                "vmFamily/lowPriorityCores",
                f"{root}/usages/{name.replace(' ', '_')}",
            )
            for name, localized, _ in FAMILIES
        ]
    return arm.page(call, found, 1000)


def check_clusters(world: World) -> None:
    """
    Raises
    ------
    Refused
        400: no further cluster or instance fits into ``TotalClusters``.
    """
    below = world.resources.below(f"{world.workspace_id}/computes")
    there = sum(one["properties"]["computeType"] in ("AmlCompute", "ComputeInstance") for one in below)
    if there >= world.quota.limits["totalclusters"]:
        message = f"Total clusters quota of {world.quota.limits['totalclusters']} is reached."
        raise Refused(
            arm.compute_error(world, 400, message, code="BadRequest", details=[("ClusterQuotaReached", message)])
        )

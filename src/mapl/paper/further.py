"""Couriers beside the paper's methods, on its page: what they gain, and how far they are from pooled data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mapl.analysis.compare import Estimate
from mapl.names import DASH
from mapl.paper.statistics import CellResult, difference, results
from mapl.paper.store import Store, StoredRun
from mapl.paper.tables import FURTHER
from mapl.report.document import Table
from mapl.report.text import points

MAIN = {"heterogeneous": "res_hetero", "homogeneous": "res_homo"}
PROTOCOLS = {"": "the paper's", "modern": "modern"}
"""By label, the protocols in which couriers are run."""


@dataclass(frozen=True)
class Contest:
    """A courier, and what was run on the same shards."""

    protocol: str
    """The label of its protocol."""
    courier: CellResult
    others: Mapping[str, CellResult]
    """By method: Mutual, Pooled, and MAPL and Local of the main table."""

    @property
    def where(self) -> tuple[str, str, str]:
        """Models, data set and scenario."""
        setting = self.courier.cell.setting
        return self.courier.cell.models, str(setting["dataset"]), f"scenario {setting['scenario']}"

    def over(self, method: str) -> Estimate | None:
        """By how much the courier is better, on all test images."""
        other = self.others.get(method)
        return difference(self.courier.runs, other.runs, "all_images")[0] if other else None

    @property
    def gain(self) -> Estimate | None:
        """The courier's collaboration gain, on all test images."""
        return self.courier.gain_all

    @property
    def way(self) -> float | None:
        """The gain as a share of what pooled data gain; None without both, or where pooled data gain nothing."""
        pooled = self.others.get("Pooled")
        if pooled is None or self.gain is None:
            return None
        room, _ = difference(pooled.runs, self.courier.controls, "all_images")
        return self.gain.mean / room.mean if room is not None and room.mean > 0 else None


def contests(store: Store) -> list[Contest]:
    """Wherever a courier was run, in the paper's protocol first."""
    return [contest for label in PROTOCOLS for contest in _of_protocol(store, label)]


def _of_protocol(store: Store, label: str) -> Iterator[Contest]:
    ours = results(FURTHER, store, scale=label)
    main = [result for name in MAIN.values() for result in results(name, store, scale=label)]
    for courier in (result for result in ours if result.cell.method == "Courier"):
        beside = [r for r in (*ours, *main) if _place(r) == _place(courier) and r is not courier]
        yield Contest(label, courier, {r.cell.method: r for r in beside})


def _place(result: CellResult) -> tuple[object, ...]:
    cell = result.cell
    return cell.models, cell.setting["dataset"], cell.setting["scenario"]


EXPLAINED = (
    "Couriers are ours, not the paper's: a small common network travels, and everybody's own stays at home "
    "(docs/courier.md). Accuracies are in percent on all test images. Gain: over the same training with couriers that "
    "stay at home. Mutual: the best training without letters that we know. Pooled: the same networks with the data of "
    "their whole cluster and as many steps; the way to it is the gain as a share of what pooled data gain. The modern "
    "protocol has 200 rounds and Adam that is kept, with a rate that falls from 1e-3 along a cosine."
)

TITLES = (
    "protocol|models|data set|scenario|seeds|courier|without letters|gain|over mutual|over MAPL|over Local|"
    "way to pooled"
)


def contests_table(found: Sequence[Contest]) -> Table:
    """A row per courier."""
    return Table(TITLES.split("|"), [_row(contest) for contest in found], words=4)


def _row(contest: Contest) -> list[str]:
    way = contest.way
    return [
        PROTOCOLS[contest.protocol],
        *contest.where,
        str(len(contest.courier.runs)),
        points(contest.courier.all_images),
        points(_all_images(contest.courier.controls)),
        points(contest.gain, "+"),
        *(points(contest.over(method), "+") for method in ("Mutual", "MAPL", "Local")),
        DASH if way is None else f"{100 * way:.0f} %",
    ]


def _all_images(runs: Sequence[StoredRun]) -> Estimate | None:
    means = [sum(run.all_images) / len(run.all_images) for run in runs if run.all_images]
    return Estimate.of(means) if means else None

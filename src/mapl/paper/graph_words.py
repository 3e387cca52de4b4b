"""What a reproduction found of the learned graphs, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from mapl.analysis.clusters import adjusted_rand, share_inside
from mapl.paper.page_tables import PAPER_COMMUNICATIONS, counted_by_the_paper, first_inside
from mapl.paper.store import Row
from mapl.report.words import count, listing


def graph_sentences(rows: Sequence[Row]) -> list[str]:
    """Whether the graph found the clusters, and what it saved."""
    rows = [row for row in rows if len(set(row.clusters)) > 1]
    shares = [share for row in rows if (share := share_inside(row.matrix(), row.clusters)) == share]
    if not shares:
        return []
    first = [share for row in rows if (share := first_inside(row)) == share]
    rand = [adjusted_rand(row.matrix(), row.clusters) for row in rows]
    said = [
        f"The learned graph: over {count(len(rows), 'run')}, {100 * fmean(shares):.0f} % of the weight given to others "
        f"ends inside the true clusters (from {100 * min(shares):.0f} % to {100 * max(shares):.0f} %"
        + (f"; {100 * fmean(first):.0f} % at first" if first else "")
        + f"), and a spectral clustering of W finds the clusters exactly in {sum(r == 1 for r in rand)}."
    ]
    said += _shares_by_backbone(rows)
    alike = [row for row in rows if counted_by_the_paper(row)]
    if alike:
        sent, forms = [row.messages for row in alike], listing(sorted({f"“{row.form}”" for row in alike}))
        said.append(
            "On CIFAR-10 with 20 clients, four backbones and 400 rounds a run that learns its graph sent "
            f"{fmean(sent):,.0f} messages (from {min(sent):,} to {max(sent):,}; form {forms}); the paper says "
            f"{PAPER_COMMUNICATIONS[True]:,}, and {PAPER_COMMUNICATIONS[False]:,} without graph learning."
        )
    return said


def _shares_by_backbone(rows: Sequence[Row]) -> list[str]:
    """Who is listened to. The paper says of its figure that weights inside a cluster become equal."""
    mixed = [row for row in rows if len(set(row.backbones)) > 1]
    if not mixed:
        return []
    shares: dict[str, list[float]] = {}
    for row in mixed:
        given = row.matrix().fill_diagonal_(0)
        for name in set(row.backbones):
            theirs = [i for i, other in enumerate(row.backbones) if other == name]
            shares.setdefault(name, []).append(100 * float(given[:, theirs].sum() / given.sum()))
    by_share = sorted(shares.items(), key=lambda item: -fmean(item[1]))
    told = listing(f"{name} {min(of):.0f} to {max(of):.0f} %" for name, of in by_share)
    equal = 100 / len(shares)
    verdict = "are far from equal" if fmean(by_share[0][1]) > 1.5 * equal else "stay about equal"
    return [
        f"Inside a cluster weights {verdict} (the paper says they become equal). Of the weight given to others, "
        f"clients receive by their backbone: {told}; equal weights would give each about {equal:.0f} %."
    ]

"""Read a run's results: accuracies, losses, messages, who listens to whom, and the trained models.

python examples/read_results.py runs/digits-s1-mapl-full-m10-seed0
"""

import sys
from statistics import fmean

import mapl
from mapl.analysis.clusters import adjusted_rand, share_inside
from mapl.runs.run import restored_part


def main(folder: str) -> None:
    record = mapl.load(folder)
    print(f"{record.recipe.method.name} on {record.recipe.data.name}, {len(record.clients)} clients")
    print(f"accuracy {100 * record.mean:.1f} % ± {100 * record.std:.1f} at the last test (never the best)")

    print("accuracy by round:", {r.round: round(fmean(r.accuracy or []), 3) for r in record.tested})
    losses = record.rounds[-1].losses.items()  # None for clients that did not train in that round
    print("loss terms, last round:", {k: round(fmean(x for x in v if x is not None), 3) for k, v in losses})
    print(f"{record.messages:,} messages, {record.bytes:,} bytes, {record.seconds:.1f} s")

    clusters = [card.cluster for card in record.clients]
    weights = record.weights()  # W (M, M) of the last round; record.weights(10) is that of round 10
    inside, rand = share_inside(weights, clusters), adjusted_rand(weights, clusters)
    if inside is not None and rand is not None:  # None if nobody listens to anybody, or all are in one cluster
        print(f"weight inside true clusters {inside:.2f}, adjusted Rand index {rand:.2f}")

    # The trained models, from the newest checkpoint. The run is our own, so its method may be imported.
    part = restored_part(folder, trust=True)
    if part is not None:
        client = part.clients[0]
        right = part.engine.evaluate_all([client])[0].right[0]  # one boolean per test image
        share = float(right.double().mean())
        print(f"client 0 again: {100 * share:.1f} %, {type(client.model.backbone).__name__}")


if __name__ == "__main__":
    main(*sys.argv[1:])

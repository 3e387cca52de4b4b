"""FLT (Jamali-Rad, Abdizadeh and Singh, "Federated Learning with Taskonomy for Non-IID Data", 2022)."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mapl.client import Client, Server
from mapl.data.samples import Images
from mapl.errors import MaplError
from mapl.keys import ALWAYS, key
from mapl.methods._base import MethodSettings
from mapl.methods._encoder import check_source, encoder, trained_encoder
from mapl.methods._mixing import flatten, load_flat, mixed, row_of
from mapl.methods._plain import WholeModels
from mapl.network import Inbox, Letter, Spec, specs
from mapl.shape import told

__all__ = ["FLT"]

FEWEST = 3
"""The fewest centres that can be mapped to the plane."""


class FLTSettings(MethodSettings):
    """FLT's settings."""

    name: str = "flt"
    encoder_data: str = Field(
        "synthetic", description="Data set that the server's encoder is trained on, or 'synthetic'."
    )
    encoder_epochs: int = Field(10, ge=1, description="Epochs of the encoder's training.")
    latent: int = Field(128, ge=1, description="Dimension of the encoder's output.")
    threshold: float = Field(1.0, gt=0, description="Two clients collaborate when their distance is below this.")


class FLT(WholeModels[FLTSettings]):
    """A server determines once which clients are related; each client gets the average of its relations' models.

    Opening: the server sends an encoder that it trained on its own images. A client answers with the k-means centres of
    its encoded images, as many as it has classes. The server maps all centres to the plane by UMAP. The distance of two
    clients is that of their centres, matched by the Hungarian algorithm: √(Σ‖·‖²) / K. Below a threshold, they are
    related.

    Letter, both ways, in every round: backbone and head (θ + φ) as one vector `model`. In the first round also:
    `encoder` (W_enc) to each client, and from it `centres` (K, latent) and their number.

    Differs from the authors' program, which averages in place, client after client, so later clients see averages of
    averages. Here all averages use one snapshot. Needs UMAP: `pip install 'mapl[flt]'`.
    """

    name = "flt"
    Settings = FLTSettings
    personal = True
    opens = True

    def prepare(self, client: Client) -> None:
        # Check what the opening needs before any work is done.
        if find_spec("umap") is None:
            raise MaplError("method 'flt' needs UMAP, which is not installed: pip install 'mapl[flt]'")
        check_source(self.settings.encoder_data)
        if not isinstance(client.train, Images):
            raise MaplError(f"method 'flt' compares clients by their images, and these are {told(client.train.shape)}")

    def opening(self, server: Server) -> Letter:
        use = self.settings
        network = trained_encoder(server, use.latent, use.encoder_data, use.encoder_epochs)
        return server.letter(0, {"encoder": flatten(network)})

    def answer(self, client: Client, inbox: Inbox) -> Letter:
        from sklearn.cluster import KMeans  # slow to import, and other methods do not need it
        from threadpoolctl import threadpool_limits

        images = client.train
        assert isinstance(images, Images)  # `prepare` has refused all others
        network = encoder(images.shape, self.settings.latent)
        load_flat(inbox.tensor("encoder")[0], network)
        with torch.no_grad():
            codes = network(images.unit()).numpy()
        count = len(torch.unique(client.train.labels))
        seed = key(client.seed, client.id, ALWAYS, "centres") % 2**31
        with threadpool_limits(1):  # with more threads, the order of sums varies
            fitted = KMeans(count, n_init=10, random_state=seed).fit(codes).cluster_centers_
        centres = torch.zeros(client.model.head.out_features, self.settings.latent)
        centres[:count] = torch.from_numpy(fitted)
        return client.letter(0, {"centres": centres, "count": torch.tensor([count])})

    def settle(self, server: Server, inbox: Inbox) -> None:
        counts = inbox.tensor("count").flatten().tolist()
        if sum(counts) < FEWEST and len(inbox) < len(server.neighbours):
            return  # too few answers arrived to relate anybody
        centres = [rows[:count].numpy() for rows, count in zip(inbox.tensor("centres").cpu(), counts, strict=True)]
        plane = _plane(np.concatenate(centres), key(server.seed, server.id, ALWAYS, "plane") % 2**31)
        distance = distances(np.split(plane, np.cumsum(counts)[:-1]))
        server.state["clients"] = inbox.senders
        server.state["related"] = torch.from_numpy(distance < self.settings.threshold)

    def opening_schema(self, node: Client | Server) -> dict[str, Spec]:
        latent = self.settings.latent
        if isinstance(node, Server):
            classes = node.shapes.classes
            return {"centres": Spec((classes, latent)), "count": Spec((1,), torch.int64, low=1, high=classes)}
        return specs({"encoder": flatten(encoder(node.train.shape, latent))})

    def related(self, server: Server, clients: Tensor) -> Tensor:
        """(n, n) which of these clients are related. One that never answered is related only to itself."""
        result = torch.eye(len(clients), dtype=torch.bool)
        answered = server.state.get("clients", clients[:0])
        known = torch.isin(clients, answered)
        places = torch.searchsorted(answered, clients[known])
        where = torch.nonzero(known).flatten()
        if len(where):
            result[where[:, None], where] = server.state["related"][places][:, places]
        return result

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        weights = self.related(server, inbox.senders).double() * inbox.samples
        weights = weights / weights.sum(dim=1, keepdim=True)
        everyone = torch.arange(len(inbox))  # row i is the mix for client i
        return {"clients": inbox.senders, "models": mixed(self.mixing, weights, inbox.tensor("model"), everyone)}

    def reply(self, server: Server, client: int, round: int, aggregate: dict[str, Tensor]) -> Letter:
        return server.letter(round, {"model": row_of(client, aggregate["clients"], aggregate["models"])})


def distances(groups: list[np.ndarray]) -> np.ndarray:
    """Pairwise distances of clients (M, M), from their centres in the plane, each (K_i, 2)."""
    from scipy.optimize import linear_sum_assignment

    result = np.zeros((len(groups), len(groups)))
    for i, a in enumerate(groups):
        for j, b in enumerate(groups[:i]):
            cost = ((a[:, None] - b[None, :]) ** 2).sum(axis=2)
            matched = cost[linear_sum_assignment(cost)]
            result[i, j] = result[j, i] = np.sqrt(matched.sum()) / len(matched)
    return result


def _plane(points: np.ndarray, seed: int) -> np.ndarray:
    if len(points) < FEWEST:
        raise MaplError(
            f"method 'flt' maps the centres of all clients to the plane, which takes {FEWEST} or more, but there are "
            f"{len(points)}: it needs more clients, or clients with more classes"
        )
    threads = torch.get_num_threads()
    from umap import UMAP  # half a minute to import and compile, and only this method needs it

    few = len(points) < 10  # the spectral start needs more points than that
    start = "random" if few else "spectral"
    umap = UMAP(n_neighbors=min(15, len(points) - 1), init=start, random_state=seed, n_jobs=1)
    try:
        return np.asarray(umap.fit_transform(points))
    finally:
        # UMAP sets torch to one thread per core, which would change later sums and make them far slower.
        torch.set_num_threads(threads)

"""Settings of local training, and of the device that it runs on."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Rate = Annotated[float, Field(ge=0, lt=1)]


class TrainSettings(BaseModel):
    """Local training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(1, ge=1, description="Local epochs per round, E.")
    batch: int = Field(
        64,
        ge=2,
        description="Images per batch. A short last batch is dropped; a client with fewer images has one batch.",
    )
    steps: int | None = Field(
        None,
        ge=1,
        description="Most batches per local epoch, so that a client with more images can train with equal compute. "
        "Default: all.",
    )
    optimizer: Literal["adam", "adamw", "sgd"] = Field(
        "adam", description="Adam, AdamW, or stochastic gradient descent with momentum."
    )
    learning_rate: float = Field(1e-4, gt=0, description="Learning rate, the highest of the schedule.")
    warmup_rounds: int = Field(
        0, ge=0, description="Rounds in which the learning rate rises: round t of w, counted from 1, has t/w of it."
    )
    cosine_rounds: int | None = Field(
        None,
        ge=1,
        description="Rounds, warm-up included, after which the learning rate has fallen to 0 along half a cosine. "
        "Further rounds keep the last positive rate. Default: the rate does not fall.",
    )
    betas: tuple[Rate, Rate] = Field(
        (0.5, 0.999), description="Decay rates of 'adam' and 'adamw'; the first is the paper's momentum."
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of 'sgd'.")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="Weight decay. 'adamw' shrinks the weights themselves; the others add it to the gradient.",
    )
    threads: int = Field(
        1, ge=1, description="CPU threads per client. The last bits of a result depend on it, since sums do."
    )
    reset: bool = Field(
        True, description="Whether every round starts with a new optimiser, as in the paper's released program."
    )

    @model_validator(mode="after")
    def _cosine_after_warmup(self) -> Self:
        if self.cosine_rounds is not None and self.cosine_rounds <= self.warmup_rounds:
            raise ValueError(
                f"cosine_rounds ({self.cosine_rounds}) should be larger than warmup_rounds ({self.warmup_rounds}): "
                "both count from the first round"
            )
        return self

    @property
    def adaptive(self) -> bool:
        """Whether the optimiser is Adam or AdamW, which keep two moments of each gradient."""
        return self.optimizer != "sgd"

    def rate_factor(self, round: int) -> float:
        """What all learning rates are multiplied by in a round, in (0, 1]. Rounds are counted from 0.

        In round t it is (t + 1)/w during w warm-up rounds. Then, with c `cosine_rounds`, it is (1 + cos πp)/2 with
        p = (t − w)/(c − w): 1 in round w, and small but positive in round c − 1. Rounds after that keep the factor of
        round c − 1, so that a run can be extended and no round trains with a rate of 0.
        """
        start, end = self.warmup_rounds, self.cosine_rounds
        if round < start:
            return (round + 1) / start
        if end is None:
            return 1.0
        # sin² of what is left of the way: (1 + cos)/2 would cancel to 0 near the end of a long schedule.
        left = max(end - round, 1) / (end - start)
        return math.sin(math.pi / 2 * left) ** 2


class RaySettings(BaseModel):
    """Shards of clients on a Ray cluster: each is a process that trains some of the clients (docs/scale.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    address: str | None = Field(
        None,
        description="HOST:PORT of a cluster's head; 'auto': the cluster that this machine belongs to; 'local': a new "
        "one on this machine. Default: $RAY_ADDRESS, or else 'local'.",
    )
    shards: int | None = Field(None, ge=1, description="Shards. Default: one per GPU, or without GPUs one per core.")
    gpus_per_shard: float | None = Field(
        None,
        ge=0,
        description="GPUs of a shard. 0.5: two shards share one. 0: it trains on the CPU, with engine.workers cores "
        "(default: 1). Default: 1 if the cluster has GPUs, otherwise 0.",
    )
    wait: float = Field(
        120, gt=0, description="Seconds to wait for room on the cluster, at the start and after a shard was lost."
    )


class EngineSettings(BaseModel):
    """Where and how fast the clients train; dropout and rounding differ between devices."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="'auto' takes the GPU where there is one.")
    kind: Literal["auto", "eager", "grouped"] = Field(
        "auto",
        description="One client after another ('eager'), or in groups of one architecture; 'auto': grouped on a GPU.",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="Precision of matrix products and convolutions. 'auto': bf16 on a GPU, fp32 on a CPU, which has no "
        "tf32.",
    )
    deterministic: bool = Field(
        False,
        description="Only deterministic kernels on a GPU: slower, but runs repeat to the bit, as always on a CPU.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="Clients that a CPU trains at a time; no bit depends on it. Default: as many as cores allow.",
    )
    together: int = Field(8, ge=1, description="Most clients of one architecture that train as one batch on a GPU.")
    memory: float | None = Field(
        None,
        gt=0,
        description="GiB of GPU memory for clients' models; the rest wait on the host. Default: half of it.",
    )
    where: Literal["here", "ray"] = Field(
        "here", description="In one process ('here'), or in shards on a Ray cluster ('ray'). Results are the same."
    )
    ray: RaySettings = Field(RaySettings(), description="Shards on a Ray cluster.")

    @property
    def at_home(self) -> Self:
        """These settings in one process. A run's folder has these: where its clients trained is not part of it."""
        return self.model_copy(update={"where": "here", "ray": RaySettings()})

    def on(self, device: str) -> Self:
        """These settings with the precision that is used on a "cpu" or on "cuda"."""
        if device == "cuda":
            precision = "bf16" if self.precision == "auto" else self.precision
        else:
            precision = "bf16" if self.precision == "bf16" else "fp32"
        return self.model_copy(update={"precision": precision})

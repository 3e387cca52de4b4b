"""How a client trains, and on what; every engine reads the same settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["fp32", "tf32", "bf16"]


class TrainSettings(BaseModel):
    """Local training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(1, ge=1, description="E: local epochs a round.")
    batch: int = Field(
        64, ge=2, description="Images a batch; a short last batch is dropped, a shard below it is one batch."
    )
    optimizer: Literal["adam", "sgd"] = Field("adam", description="Adam, or stochastic gradient descent with momentum.")
    learning_rate: float = Field(1e-4, gt=0, description="Learning rate.")
    betas: tuple[Rate, Rate] = Field((0.5, 0.999), description="Adam's decay rates; the paper's momentum is the first.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of 'sgd'.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    threads: int = Field(
        1, ge=1, description="CPU threads; a setting, because sums, and so the last bits of a result, depend on them."
    )
    reset: bool = Field(
        True, description="Whether every round starts with a new optimiser, as the released program does."
    )


class EngineSettings(BaseModel):
    """Where and how fast the clients train; another device draws dropout and rounds otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="'auto' takes the GPU where there is one.")
    kind: Literal["auto", "eager", "grouped"] = Field(
        "auto",
        description="One client after another ('eager'), or in groups of one architecture; 'auto': grouped on a GPU.",
    )
    precision: Precision = Field(
        "bf16", description="Of matrix products and convolutions on a GPU; the CPU computes in fp32."
    )
    deterministic: bool = Field(
        False, description="Only deterministic kernels on a GPU: slower, and equal from run to run. The CPU always is."
    )
    workers: int | None = Field(
        None, ge=1, description="Clients that a CPU trains at a time; no bit depends on it. Default: as many as cores."
    )
    together: int = Field(8, ge=1, description="Most clients of one architecture that a GPU trains as one batch.")
    memory: float | None = Field(
        None,
        gt=0,
        description="GiB of GPU memory for clients' models; beyond it they wait on the host. Default: half the card.",
    )

"""Settings of local training, and of the device that it runs on."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

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
    optimizer: Literal["adam", "sgd"] = Field("adam", description="Adam, or stochastic gradient descent with momentum.")
    learning_rate: float = Field(1e-4, gt=0, description="Learning rate.")
    betas: tuple[Rate, Rate] = Field((0.5, 0.999), description="Adam's decay rates; the first is the paper's momentum.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of 'sgd'.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    threads: int = Field(
        1, ge=1, description="CPU threads per client. The last bits of a result depend on it, since sums do."
    )
    reset: bool = Field(
        True, description="Whether every round starts with a new optimiser, as in the paper's released program."
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
        description="Of matrix products and convolutions. 'auto': bf16 on a GPU, fp32 on a CPU, which has no tf32.",
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

    def on(self, device: str) -> Self:
        """These settings with the precision that is used on a "cpu" or on "cuda"."""
        if device == "cuda":
            precision = "bf16" if self.precision == "auto" else self.precision
        else:
            precision = "bf16" if self.precision == "bf16" else "fp32"
        return self.model_copy(update={"precision": precision})

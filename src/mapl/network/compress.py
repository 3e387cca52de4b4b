"""Compression of letters: a property of the network, which any method can use."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mapl.network.compressor import BFLOAT16, INT8, Compressor, Rounded
from mapl.network.topk import TopK


class CompressSettings(BaseModel):
    """How the float32 tensors of letters are compressed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["none", "bfloat16", "int8", "top-k"] = Field(
        "none",
        description="How float32 numbers travel: unchanged; rounded to 16 bits; rounded to 8 bits, with one scale per "
        "64 numbers; or only those that changed most ('top-k').",
    )
    keep: float = Field(0.05, gt=0, le=1, description="Share of a tensor's numbers that a letter carries with 'top-k'.")
    refresh: int = Field(10, ge=1, description="With 'top-k', at least one in this many letters is full.")


def find_compressor(settings: CompressSettings, personal: bool = False) -> Compressor | None:
    """What compresses the letters, or None. `personal`: whether a server writes a separate reply to each client."""
    if settings.kind == "top-k":
        return TopK(settings.keep, settings.refresh, personal)
    marks = {"bfloat16": BFLOAT16, "int8": INT8}
    return Rounded(marks[settings.kind]) if settings.kind in marks else None

"""The engine for GPUs. It needs Triton, which every CUDA build of torch for Linux includes."""

from mapl.engine.cuda.engine import GroupedEngine

__all__ = ["GroupedEngine"]

"""Shards of a network on a Ray cluster: each is a process that holds some clients, and letters travel between them."""

from mapl.cluster.start import on_ray

__all__ = ["on_ray"]

"""Backbones, one per file: callables (shape of a sample, d_z) → module that maps samples (B, …) to (B, d_z)."""

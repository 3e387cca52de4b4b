"""Backbones, one per file: callables (image shape, d_z) → module that maps images (B, C, H, W) to (B, d_z)."""

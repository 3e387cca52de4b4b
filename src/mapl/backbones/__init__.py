"""Backbones: one a file, each a callable (image shape, d_z) → module that maps images (B, C, H, W) to (B, d_z)."""

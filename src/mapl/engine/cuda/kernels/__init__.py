"""Triton kernels for a group of G clients of one architecture, whose batches lie one after another.

Activations are channels-last, so that a group's tensor (G · B, C, H, W) is G matrices of R = B · H · W rows and C
columns. Parameters of all members lie in one tensor (G, …), one row per client; `row` is the distance between two.

`active` (G,) says which members take part in this step. What the others remember stays as it is.
"""

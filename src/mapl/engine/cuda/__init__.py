"""The engine for GPUs. It needs Triton, which every CUDA build of torch for Linux includes.

From the outside in:

- `engine`: a round of all clients; `builder` sets it up, `ahead` draws for the next round
- `families`: clients of one kind; `homes`: where their models live; `pool`: their images
- `slot`: a group of clients in training, and its captured step; `room`: its tensors, `layout`: where each tensor lies
- `networks`: how a slot computes losses, gradients and answers; `models`: what a method sees of its clients
- `convert`: how a client's network becomes a group's (the design note is there); `guards`: what cannot be captured
- `layers/`, `losses`, `head`, `optimiser`, `views`: what is computed; `kernels/`: the Triton kernels that compute it
- `branches`: what runs beside the main stream
"""

from mapl.engine.cuda.engine import GroupedEngine

__all__ = ["GroupedEngine"]

"""Handwritten digits for two people, alice and bob, with three training images per class each.

python examples/digits_for_two.py alice        writes alice.npz

They share no image. What is not for training is for tests.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

SHOTS = 3

name = sys.argv[1]
digits = load_digits()
mine = np.random.default_rng(0).permutation(len(digits.target))[["alice", "bob"].index(name) :: 2]
images, labels = (digits.images[mine] * (255 / 16)).round().astype(np.uint8), digits.target[mine]
train = np.concatenate([np.flatnonzero(labels == k)[:SHOTS] for k in range(10)])
test = np.setdiff1d(np.arange(len(labels)), train)
np.savez(
    f"{name}.npz",
    train_images=images[train],
    train_labels=labels[train],
    test_images=images[test],
    test_labels=labels[test],
)
print(f"{name}.npz: {len(train)} training and {len(test)} test images")

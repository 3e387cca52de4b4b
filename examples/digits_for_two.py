"""Handwritten digits for two people: writes alice.npz and bob.npz, with three training images per class each.

python examples/digits_for_two.py

They share no image. What is not for training is for tests.
"""

import numpy as np
from sklearn.datasets import load_digits

SHOTS = 3

digits = load_digits()
pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
shuffled = np.random.default_rng(0).permutation(len(pixels))
for person, name in enumerate(("alice", "bob")):
    images, labels = pixels[shuffled[person::2]], digits.target[shuffled[person::2]]
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

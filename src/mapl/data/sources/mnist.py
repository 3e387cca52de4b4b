"""MNIST (LeCun et al., 1998), http://yann.lecun.com/exdb/mnist/."""

from __future__ import annotations

from typing import Any, ClassVar

from mapl.data.dataset import Dataset, DataSettings
from mapl.data.mnistlike import GREY_SUGGESTS, publish, read
from mapl.data.published import Published

__all__ = ["Mnist"]


class Mnist:
    """70,000 grey images of 28×28 pixels of handwritten digits."""

    name: ClassVar[str] = "mnist"
    suggests: ClassVar[dict[str, Any]] = GREY_SUGGESTS
    published: ClassVar[Published] = publish(
        name,
        folder="MNIST/raw",
        md5s=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    )

    def load(self, settings: DataSettings) -> Dataset:
        return read(self.published, settings)

"""FashionMNIST (Xiao et al., 2017), https://github.com/zalandoresearch/fashion-mnist."""

from __future__ import annotations

from typing import Any, ClassVar

from mapl.data.dataset import Dataset, DataSettings
from mapl.data.mnistlike import GREY_SUGGESTS, publish, read
from mapl.data.published import Published

__all__ = ["FashionMnist"]

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


class FashionMnist:
    """70,000 grey images of 28×28 pixels of clothes, shoes and bags in 10 classes."""

    name: ClassVar[str] = "fashionmnist"
    suggests: ClassVar[dict[str, Any]] = GREY_SUGGESTS
    published: ClassVar[Published] = publish(
        name,
        folder="FashionMNIST/raw",
        md5s=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        addresses=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
    )

    def load(self, settings: DataSettings) -> Dataset:
        return read(self.published, settings, CLASSES)

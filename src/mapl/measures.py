"""What is measured of the clients' answers beside accuracy, as plain functions in float64.

A client's numbers depend on its own answers alone, to the bit, whoever else is measured with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Measure = Literal["macro_f1", "balanced_accuracy", "calibration_error"]
"""What is measured of one client's answers."""

Metric = Literal["accuracy", "worst_tenth", "macro_f1", "balanced_accuracy", "calibration_error"]
"""What runs are compared by: means over clients, and the worst tenth of them."""
METRICS: tuple[Metric, ...] = get_args(Metric)

TITLES: dict[Metric, str] = {
    "accuracy": "accuracy",
    "worst_tenth": "accuracy of the worst tenth",
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "calibration_error": "calibration error",
}
LOWER_IS_BETTER: frozenset[Metric] = frozenset({"calibration_error"})

BINS = 15
"""Bins of the calibration error."""
EDGES = np.arange(BINS + 1) / BINS

Labels = NDArray[np.int64]
Shares = NDArray[np.float64]


def measured(labels: Sequence[Labels], predicted: Sequence[Labels], confidence: Sequence[Shares]) -> dict[Measure, Any]:
    """Every measure by client, (M,) in float64. The lists have one entry per client, and all entries some samples.

    Args:
        labels: the true classes (n,).
        predicted: the answers (n,).
        confidence: the probability that the client gives to each of its answers (n,); NaN counts as 0.
    """
    clients = np.repeat(np.arange(len(labels)), [len(one) for one in labels])
    true, guess = np.concatenate(labels), np.concatenate(predicted)
    sure = np.clip(np.nan_to_num(np.concatenate(confidence).astype(np.float64), nan=0.0), 0, 1)
    f1, recall = _by_class(clients, true, guess)
    return {
        "macro_f1": f1,
        "balanced_accuracy": recall,
        "calibration_error": _calibration_error(clients, true == guess, sure),
    }


def _by_class(clients: Labels, true: Labels, guess: Labels) -> tuple[Shares, Shares]:
    """Means of F1 and of recall over the classes that are among a client's test samples."""
    classes = int(max(true.max(), guess.max())) + 1
    cells = int(clients[-1] + 1) * classes
    truly, guessed = clients * classes + true, clients * classes + guess
    support, answers = (np.bincount(cell, minlength=cells) for cell in (truly, guessed))
    right = np.bincount(truly[true == guess], minlength=cells)
    own = np.flatnonzero(support)
    each, number = own // classes, np.bincount(own // classes)
    f1 = _sums(each, 2 * right[own] / (support[own] + answers[own]))
    recall = _sums(each, right[own] / support[own])
    return f1 / number, recall / number


def _calibration_error(clients: Labels, right: NDArray[np.bool_], sure: Shares) -> Shares:
    """Σ over bins of |number right − sum of confidences|, over the number of samples. Bins are (k / 15, (k + 1) / 15].

    That is the mean over samples of |accuracy − mean confidence| of their bins, as Guo et al. (2017) have it.
    """
    bins = clients * BINS + np.maximum(np.searchsorted(EDGES, sure, side="left") - 1, 0)
    gaps = np.abs(_sums(bins, sure) - _sums(bins, right.astype(np.float64)))
    return _sums(np.arange(len(gaps)) // BINS, gaps) / np.bincount(clients)


def _sums(groups: Labels, values: Shares) -> Shares:
    """Sums by group, each added up in order: its bits do not depend on other groups."""
    return np.bincount(groups, values).astype(np.float64, copy=False)


def worst_tenth(accuracy: Sequence[float]) -> float:
    """The mean accuracy of the tenth of the clients, rounded up, that have the lowest."""
    number = -(-len(accuracy) // 10)
    return fmean(sorted(accuracy)[:number])

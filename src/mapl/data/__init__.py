"""Data: readers of published formats, who gets which images, and augmentation on whole batches."""

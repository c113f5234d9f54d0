"""Hyper-parameter optimization that schedules GPUs by goodput."""

from ._core import VERSION as __version__

__all__ = ["__version__"]

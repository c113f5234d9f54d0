"""Hyper-parameter optimization that schedules GPUs by goodput."""

from ._core import VERSION as __version__
from .trials import main, trial

__all__ = ["__version__", "main", "trial"]

"""Hyper-parameter optimization that schedules GPUs by goodput.

Search from Python: :class:`Study` (ask and tell) and :func:`optimize` (a function, in processes). The domains of parameters are
:func:`float`, :func:`log`, :func:`int`, :func:`choice`, :func:`ordinal` and :func:`fixed`.
"""

from ._core import VERSION as __version__
from ._core import StudyFinished
from ._optimize import TrialsFailed, optimize
from .space import choice, fixed, float, int, log, ordinal
from .study import SearchTrial, Study

__all__ = [
    "SearchTrial",
    "Study",
    "StudyFinished",
    "TrialsFailed",
    "__version__",
    "choice",
    "fixed",
    "float",
    "int",
    "log",
    "optimize",
    "ordinal",
]

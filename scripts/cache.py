"""Where downloads are kept that all checkouts share."""

import os
from pathlib import Path


def folder():
    chosen = os.environ.get("POLLUX_TUNE_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "pollux-tune"

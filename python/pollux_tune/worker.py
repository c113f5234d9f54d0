"""`python -m pollux_tune.worker train.py`: a worker process. The program `pollux-tune` starts it; nobody else needs to."""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
import traceback
from typing import Any

from . import _core


def _load(arguments: argparse.Namespace, worker: Any, asked: Any) -> None:
    from . import trials
    from .elastic_serve import serve

    trials.serving = (worker, asked)
    if arguments.module is not None:
        name, _, function = arguments.module.partition(":")
        # As `python -m` does, and beside the study file.
        sys.path[:0] = ["", *arguments.beside]
        serve(worker, getattr(importlib.import_module(name), function), asked)
    sys.argv = [arguments.script]
    # As `python train.py` does, so that the script finds what is beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
    runpy.run_path(arguments.script, run_name="__main__")
    trials.main()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pollux_tune.worker", description=__doc__)
    parser.add_argument("script", nargs="?", help="a script with a function @pollux_tune.trial")
    parser.add_argument("--module", help="a function, as package.module:function, instead of a script")
    parser.add_argument("--from", dest="beside", action="append", default=[], help="a folder where the module may be, too")
    arguments = parser.parse_args()
    if (arguments.script is None) == (arguments.module is None):
        parser.error("either a script or --module")
    worker = _core.Worker.attach()
    if worker is None:
        parser.error("this is for the program pollux-tune; to try a script, run it: `python train.py`")
    # What is wrong with the code is told for each trial, and not only in the log of the worker.
    while (asked := worker.next()) is not None:
        if asked[0] != "prepare":
            worker.done()
            continue
        try:
            _load(arguments, worker, asked)
        except (Exception, SystemExit):
            worker.failed("trial", traceback.format_exc().strip())


if __name__ == "__main__":
    main()

"""Builds the wheel (PEP 517): the program `pollux-tune` by cargo, then the package around it by maturin.

The program is a file of its own in the wheel, not an entry point of Python, because a head starts itself again: as launcher, agent and
worker. `--config-settings profile=dev` builds both as tests are built; the default is `release`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from maturin import *  # noqa: F403 the other hooks are maturin's
import maturin

ROOT = Path(__file__).resolve().parent.parent
# What pyproject.toml calls `data`.
DATA = ROOT / "target" / "wheel-data"


def _profile(settings):
    return (settings or {}).get("profile", "release")


def _args(settings):
    """Of maturin. What is not released need not be small."""
    profile = _profile(settings)
    return {"build-args": ["--locked", "--profile", profile] + ([] if profile == "release" else ["--compression-method", "stored"])}


def _build_program(profile):
    # Both packages, so that dependencies have the same features as when maturin builds the library: then nothing is built twice.
    command = ["cargo", "build", "--locked", "--profile", profile, "--package", "pollux-tune", "--package", "pollux-tune-py"]
    command += ["--bin", "pollux-tune", "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit(f"cargo could not build the program, see above (exit code {built.returncode})")
    programs = [json.loads(line).get("executable") for line in built.stdout.splitlines()]
    program = Path(next(path for path in programs if path))
    scripts = DATA / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    fresh = scripts.parent / f"pollux-tune.{os.getpid()}"
    shutil.copy2(program, fresh)
    fresh.replace(scripts / "pollux-tune")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_program(_profile(config_settings))
    return maturin.build_wheel(wheel_directory, _args(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _build_program(_profile(config_settings))
    return maturin.build_editable(wheel_directory, _args(config_settings), metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # maturin asks for the folder, although nothing of it is needed yet.
    DATA.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, _args(config_settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel

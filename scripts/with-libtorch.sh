#!/usr/bin/env bash
# Runs a command with libtorch at hand: `scripts/with-libtorch.sh cargo test --workspace --features torch`.
#
# Gets libtorch first if need be (see libtorch.py). Without a CARGO_TARGET_DIR of your own, builds go into the cache folder, where
# all checkouts share the minutes that torch-sys takes. A LIBTORCH of your own is used as it is.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${POLLUX_TUNE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pollux-tune}
# Each checkout adds its own part to the shared folder. Beyond this many GB it is begun anew.
limit_gb=20

if [ -z "${LIBTORCH:-}" ]; then
  LIBTORCH=$("$here/libtorch.py" "${LIBTORCH_FLAVOUR:-cpu}")
  export LIBTORCH
fi

if [ -z "${CARGO_TARGET_DIR:-}" ]; then
  mkdir -p "$cache"
  export CARGO_TARGET_DIR=$cache/target
  # Held as long as the command runs, so that nobody removes the folder meanwhile.
  exec 9> "$cache/target.lock"
  if flock --exclusive --nonblock 9 && [ -d "$CARGO_TARGET_DIR" ]; then
    used_gb=$(du -s --block-size=1G "$CARGO_TARGET_DIR" | cut -f 1)
    if [ "$used_gb" -ge "$limit_gb" ]; then
      echo "with-libtorch: $CARGO_TARGET_DIR has grown to $used_gb GB and is begun anew" >&2
      rm -rf "$CARGO_TARGET_DIR"
    fi
  fi
  flock --shared 9
fi

exec "$@"

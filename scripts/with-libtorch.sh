#!/usr/bin/env bash
# Runs a command with libtorch at hand: `scripts/with-libtorch.sh cargo test --workspace --features torch`.
#
# Gets libtorch first (see libtorch.py), and unless CARGO_TARGET_DIR says otherwise, lets cargo build in the cache folder, where all
# checkouts share the minutes that torch-sys takes. A LIBTORCH of your own is used as it is, with your own target folder.
#
# LIBTORCH_FLAVOUR: `cpu` (the default), `gpu` (runs on GPUs), `cuda` (only to compile what is for GPUs), or `auto`: `gpu` where a driver of
# NVIDIA has GPUs that are not hidden, else `cpu`. `with-libtorch.sh --flavour` prints which one it would be, and gets nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Each checkout adds its own part to the shared folder. Beyond this many GB it is begun anew.
limit_gb=20

has_gpus() {
  case "${CUDA_VISIBLE_DEVICES-all}" in "" | -1* | NoDevFiles) return 1 ;; esac
  # A driver that does not work says so, in another way.
  if command -v nvidia-smi > /dev/null; then
    nvidia-smi -L 2> /dev/null | grep -q '^GPU [0-9]'
  else
    compgen -G '/proc/driver/nvidia/gpus/*' > /dev/null
  fi
}

flavour=${LIBTORCH_FLAVOUR:-cpu}
case "$flavour" in
  cpu | cuda | gpu) ;;
  auto)
    flavour=cpu
    # A libtorch of your own may have no CUDA.
    if has_gpus && { [ -z "${LIBTORCH:-}" ] || [ -e "$LIBTORCH/lib/libtorch_cuda.so" ]; }; then flavour=gpu; fi
    ;;
  *)
    echo "with-libtorch: LIBTORCH_FLAVOUR is $flavour; expected cpu, cuda, gpu or auto" >&2
    exit 2
    ;;
esac

if [ "${1:-}" = --flavour ]; then
  echo "$flavour"
  exit
fi

if [ -z "${LIBTORCH:-}" ]; then
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

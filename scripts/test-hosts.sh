#!/usr/bin/env bash
# Trains one trial over machines that ssh reaches: `GPUS=4 scripts/test-hosts.sh PROGRAM HOST HOST...`, for `make test-cuda HOSTS=...`.
#
# GPUS are those of the trial, 2 by default: more than one machine has. The program must be at the same path on all machines, and CIFAR-10
# in their cache folders (`make cifar10`). Fails unless the trial was trained on two machines.
set -euo pipefail

program=$1
shift
[ $# -ge 2 ] || { echo "test-hosts: name at least two hosts" >&2 && exit 2; }
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
hosts=$(IFS=,; echo "$*")

cat > "$folder/study.yaml" <<YAML
space: {lr: 0.1, width: 4, examples: 4000}
objective: {maximize: accuracy}
trial: {trainable: cifar10, epochs: 2, initial_batch: 128, min_gpus: ${GPUS:-2}}
search: {trials: 1, parallel: 1}
cluster: {hosts: [${hosts//,/, }]}
YAML
"$program" run "$folder/study.yaml" --folder "$folder/study"
"$program" nodes "$folder/study"
if ! "$program" show "$folder/study" 0 | grep --quiet --extended-regexp 'generation .*\[0\.[^]]* 1\.'; then
  echo "test-hosts: the trial was not trained on two machines; set GPUS to more than one of them has" >&2
  exit 1
fi

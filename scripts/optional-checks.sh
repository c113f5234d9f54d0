#!/usr/bin/env bash
# Spelling, and licences and sources of dependencies: checks that need programs which a clone does not bring along.
#
# What is missing is installed into the cache folder, once. Where that is not possible, the check is skipped, and it says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$(PYTHONPATH=scripts python3 -B -c 'import cache; print(cache.folder() / "tools")')
export PATH=$PATH:$tools/bin:$tools/python/bin

# Runs a check with a program, which the rest of the arguments install.
check() {
  local program=$1 run=$2 log
  shift 2
  if ! command -v "$program" > /dev/null; then
    echo "optional-checks: installing $program into $tools" >&2
    mkdir -p "$tools"
    if ! log=$("$@" 2>&1); then
      printf 'optional-checks: SKIPPED, %s cannot be installed:\n%s\n' "$program" "$(tail -n 3 <<< "$log")" >&2
      return
    fi
  fi
  $run
}

pip_install() { python3 -m venv "$tools/python" && "$tools/python/bin/pip" install --quiet "$1"; }

check typos "typos" pip_install typos==1.51.1
check cargo-deny "cargo deny --locked check bans licenses sources" \
  cargo install --quiet --locked --debug cargo-deny@0.20.2 --root "$tools"

# Advisories come from a database on GitHub. Where it cannot be had, nothing is known of the dependencies, which is no fault of theirs.
advisories() {
  local log
  if log=$(cargo deny --locked check advisories 2>&1); then
    echo "advisories ok"
  elif grep -q "failed to fetch advisory database" <<< "$log"; then
    echo "optional-checks: SKIPPED, the database of advisories cannot be fetched" >&2
  else
    echo "$log" >&2
    return 1
  fi
}
if command -v cargo-deny > /dev/null; then advisories; fi

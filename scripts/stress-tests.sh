#!/usr/bin/env bash
# Runs the tests again and again on a busy machine, and tells which of them waver:
#
#   scripts/stress-tests.sh [ROUNDS [BUSY]] [-- FILTER...]
#
# ROUNDS (20) times all test programs, while BUSY (10) processes do nothing but keep the cores busy. Filters are those of the test
# harness. TESTS names the programs ("lib runtime cli elastic it"), LIMIT the seconds that one may take (1800), CARGO the build tool with its arguments
# (as `make test`: with libtorch). Where others work on the machine, too: NICE (0) is the niceness of the tests, BUSY_NICE (0) that of the busy
# processes. Output of failed runs is kept in target/stress, or LOGS. Exit code 1 if a test has failed.
#
# COPIES (1) of a program run at the same time, each of which is a busy process for the others: ten times the tests in little more than the
# time that ten busy processes would take. Needs root, as each copy has a folder of its own for its files, in a namespace of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=20 busy=10
case ${1:-} in [0-9]*) rounds=$1; shift ;; esac
case ${1:-} in [0-9]*) busy=$1; shift ;; esac
[ "${1:-}" != -- ] || shift
tests=${TESTS:-lib runtime cli elastic it}
limit=${LIMIT:-1800}
copies=${COPIES:-1}
cargo=${CARGO:-scripts/with-libtorch.sh cargo}
logs=${LOGS:-target/stress}
rm -rf "$logs"
mkdir -p "$logs"

# The programs, as `cargo test` would run them.
wanted=()
for name in $tests; do
  if [ "$name" = lib ]; then wanted+=(--lib); else wanted+=(--test "$name"); fi
done
$cargo test --locked --workspace --features torch "${wanted[@]}" --no-run --message-format=json \
  | python3 -c '
import json, sys
wanted = sys.argv[1:]
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
        target = message["target"]
        name = "lib" if "lib" in target["kind"] and target["name"] == "pollux_tune" else target["name"]
        if name in wanted and target["kind"] != ["bin"]:
            print(name, message["executable"], message["manifest_path"].rsplit("/", 1)[0])
' $tests | sort -u >"$logs/programs"
[ -s "$logs/programs" ] || { echo "no test program is called any of: $tests" >&2; exit 2; }

loops=()
# Only what was started here.
trap 'for loop in "${loops[@]}"; do kill "$loop" 2>/dev/null || true; done' EXIT
for _ in $(seq "$busy"); do
  nice -n "${BUSY_NICE:-0}" sh -c 'while :; do :; done' &
  loops+=($!)
done

# Of one copy of a program: in its own package, where it finds its files.
one_run() {
  local name=$1 program=$2 folder=$3 log=$4
  shift 4
  local alone=()
  # What tests write next to what was built, at a path that is part of the program.
  [ "$copies" -eq 1 ] || alone=(unshare --mount sh -c 'mount -t tmpfs tmpfs "$0" && exec "$@"' "$(dirname "$(dirname "$(dirname "$program")")")/tmp")
  (cd "$folder" && RUST_BACKTRACE=1 exec "${alone[@]}" nice -n "${NICE:-0}" timeout --kill-after=10 "$limit" "$program" "$@") >"$log" 2>&1 </dev/null
}

runs=0 failures=0
for round in $(seq "$rounds"); do
  while read -r name program folder; do
    began=$SECONDS
    pids=() failed=()
    for copy in $(seq "$copies"); do
      one_run "$name" "$program" "$folder" "$logs/$name-$round-$copy.log" "$@" &
      pids+=($!)
    done
    for copy in $(seq "$copies"); do
      log=$logs/$name-$round-$copy.log
      runs=$((runs + 1))
      code=0
      wait "${pids[copy - 1]}" || code=$?
      if [ "$code" -eq 0 ]; then
        rm "$log"
      else
        failures=$((failures + 1))
        failed+=("failed with code $code, see $log")
        # A program that was ended in the middle names those that it had begun and not finished.
        grep -E '^test .* \.\.\. FAILED$|has been running for over' "$log" | sed -E 's/^test //; s/ (\.\.\. FAILED|has been running.*)$//' |
          sort -u | sed "s/^/$name /" >>"$logs/wavering" || true
      fi
    done
    [ ${#failed[@]} -gt 0 ] || failed=(ok)
    printf "round $round: $name %s, $((SECONDS - began)) s\n" "${failed[@]}"
  done <"$logs/programs"
done

echo "$failures of $runs runs failed, in $rounds rounds of $copies copies, with $busy busy processes"
[ ! -s "$logs/wavering" ] || { echo "failures by test:"; sort "$logs/wavering" | uniq -c | sort -rn; }
[ "$failures" -eq 0 ]

#!/usr/bin/env bash
# Runs all tests but the doc tests where little is allowed: with 64 open files, on a disk of 96 MiB, and with both.
#
#   scripts/scarce.sh                  # all three, one after the other
#   scripts/scarce.sh files            # 64 open files (ulimit -n, soft and hard)
#   scripts/scarce.sh disk             # TMPDIR on a tmpfs of 96 MiB
#   scripts/scarce.sh both             # both at once
#   ONLY='few_files|secondary:' scripts/scarce.sh both    # test binaries, PACKAGE:TARGET, whose names match
#   PART=2/3 scripts/scarce.sh files   # of each binary the second third of its tests (every third, from the second)
#   THREADS=4 scripts/scarce.sh        # tests of one binary at a time, which share the limits (1)
#   MINUTES=20 scripts/scarce.sh       # after which a binary is taken to hang (30)
#
# The tests are built once, without limits. Tests that need more themselves are left out: see `left_out`, which
# gives the reason of each and prints it. Ends with a summary, and fails if a test failed, or if fewer binaries or
# tests ran than there are. Where the disk cannot be mounted (neither as root nor in a namespace of the user), its
# modes are skipped, and the summary says so; a mode that was asked for by name fails then.
set -uo pipefail
cd "$(dirname "$0")/.."
repository="$PWD"
disk_bytes=$((96 << 20))

fail() {
  echo "$*" >&2
  exit 2
}

# left_out LIMIT: lines of "binary<TAB>test<TAB>reason" for tests that need more than `files` or `disk` allows.
left_out() {
  case "$1" in
    files)
      printf '%s\t%s\t%s\n' \
        siltstone:it handles::three_hundred_partitions_work_with_256_file_handles "sets a limit of 256, above the hard limit" \
        siltstone:it handles::six_hundred_chunk_files_are_read_with_256_file_handles "sets a limit of 256, above the hard limit" \
        siltstone:few_files four_hundred_partitions_with_large_values_work_with_256_files "sets a limit of 256, above the hard limit" \
        siltstone:few_files a_thousand_partitions_with_large_values_work_with_256_files "sets a limit of 256, above the hard limit" \
        server:it operations::hundreds_of_connections_are_served "opens 800 sockets" \
        server:it linear::level_1_is_linearizable_over_promotions "three databases and 30 sockets in one process"
      ;;
    disk)
      printf '%s\t%s\t%s\n' \
        cli:large a_folder_with_a_huge_file_is_loaded_compared_and_given_back "its file of more than 64 MiB is there twice" \
        cli:large a_value_from_a_file_is_streamed_into_a_partition_with_large_values "its file of more than 64 MiB is there twice" \
        cli:large entries_of_any_size_go_through_a_pipe_and_a_cut_import_goes_on "its file of more than 64 MiB is there twice" \
        siltstone:few_files a_thousand_partitions_with_large_values_work_with_256_files "its values and their copy take 170 MB" \
        siltstone:memory a_value_of_914_mb_goes_in_and_out_with_64_mib_of_memory "the value has 914 MB" \
        siltstone:memory a_large_value_is_copied_once "databases with a log of 64 MiB each"
      ;;
  esac
}

# limits MODE: the limits of a mode, as `left_out` names them.
limits() {
  if [[ "$1" == both ]]; then echo files disk; else echo "$1"; fi
}

# list_tests: writes the names of the tests of each binary, to `tests.NAME`; fails if a test that is left out by name
# does not exist.
list_tests() {
  local name package manifest binary
  while IFS=$'\t' read -r name package manifest binary; do
    "$binary" --list --format terse </dev/null 2>/dev/null | sed -n 's/: test$//p' >"$work/tests.$name"
    [[ "${PIPESTATUS[0]}" == 0 ]] || fail "the tests of $name cannot be listed: $binary"
  done <"$work/all"
  local test reason
  while IFS=$'\t' read -r name test reason; do
    grep -qxF -- "$test" "$work/tests.$name" 2>/dev/null || fail "left out, but there is no such test: $name $test"
  done < <(left_out files; left_out disk)
}

# choose_tests BINARY MODE: writes the tests of this part to `chosen`, those of them that are left out to `left`.
choose_tests() {
  local limit
  awk -v part="${part%/*}" -v parts="${part#*/}" 'NR % parts == part % parts' "$work/tests.$1" >"$work/part"
  for limit in $(limits "$2"); do left_out "$limit"; done |
    awk -F'\t' -v binary="$1" -v OFS='\t' '
      NR == FNR { is_here[$1]; next }
      $1 == binary && $2 in is_here { print $2, $3 }' "$work/part" - >"$work/left"
  cut -f1 "$work/left" | grep -vxF -f - "$work/part" >"$work/chosen"
}

# run_all MODE: runs each binary under the limits of the mode. The disk is mounted. Fails if a binary fails.
run_all() {
  local mode="$1" outcome=0 status name package manifest binary tests
  if [[ "$mode" != disk ]]; then
    ulimit -n 64 || return 1
  fi
  while IFS=$'\t' read -r name package manifest binary; do
    choose_tests "$name" "$mode"
    mapfile -t tests <"$work/chosen"
    echo "== $mode: $name: ${#tests[@]} tests"
    sed "s/^/left out: $name /; s/\t/: /" "$work/left"
    status=0
    if ((${#tests[@]})); then
      # In its package and its environment, as cargo runs it. Without names, all tests would run.
      (cd "$(dirname "$manifest")" && CARGO_MANIFEST_DIR="$PWD" CARGO_MANIFEST_PATH="$manifest" \
        CARGO_PKG_NAME="$package" CARGO="$(command -v cargo)" timeout --kill-after=10 "${minutes}m" \
        "$binary" --exact "${tests[@]}" --show-output --test-threads="$threads" </dev/null 2>&1)
      status=$?
    fi
    if [[ "$status" != 0 ]]; then
      outcome=1
      echo "binary failed: $name (status $status)"
    fi
    if [[ "$mode" != files ]]; then
      find "$TMPDIR" -mindepth 1 -maxdepth 1 -printf "left on the disk by $name: %f\n"
      # The next binary has the whole disk.
      find "${TMPDIR:?}" -mindepth 1 -delete
    fi
  done <"$work/binaries"
  return "$outcome"
}

# with_disk MODE: runs the mode with a small disk as TMPDIR. It is gone with the namespace.
with_disk() {
  local inner='mount -t tmpfs -o size="$1" tmpfs "$2" && exec "$3" --inner "$4"'
  TMPDIR="$work/disk" "${namespace[@]}" bash -c "$inner" bash "$disk_bytes" "$work/disk" "$repository/scripts/scarce.sh" "$1"
}

can_mount() {
  "${namespace[@]}" mount -t tmpfs -o size="$disk_bytes" tmpfs "$work/disk" 2>"$work/refusal"
}

# summary MODE OUTPUT: prints what passed, failed and was skipped. Fails if something failed or did not run. A test
# that fails may print the results of its child, so the last line of results counts.
summary() {
  awk -v mode="$1" -v expected="$(wc -l <"$work/binaries")" '
    function finish() {
      if (begun != "" && passed + failed + ignored != tests)
        wrong = wrong "\n  " begun ": " tests " tests chosen, " passed + failed + ignored " ran"
      all_passed += passed; all_failed += failed; all_ignored += ignored
      passed = failed = ignored = 0
    }
    $0 ~ "^== " mode ": " { finish(); begun = $3; tests = $4; binaries += 1 }
    /^test result: / { passed = $4; failed = $6; ignored = $8 }
    /^left out: / { left += 1 }
    /^skipped: / { skipped += 1; reasons = reasons "\n  " $0 }
    /^test .* FAILED$/ && !($2 in seen) { seen[$2]; wrong = wrong "\n  failed: " $2 }
    /^binary failed: / { wrong = wrong "\n  " $0 }
    END {
      finish()
      if (binaries != expected) wrong = wrong "\n  " binaries + 0 " binaries of " expected " begun"
      printf "%s: %d of %d binaries, %d passed, %d failed, %d ignored, %d left out, %d skipped%s%s\n",
        mode, binaries, expected, all_passed, all_failed, all_ignored, left, skipped, reasons, wrong
      exit wrong != ""
    }' "$2"
}

threads="${THREADS:-1}"
minutes="${MINUTES:-30}"
only="${ONLY:-.}"
part="${PART:-1/1}"
[[ "$part" =~ ^[1-9][0-9]*/[1-9][0-9]*$ ]] || fail "PART is like 2/3: $part"
((${part%/*} <= ${part#*/})) || fail "PART is like 2/3: $part"

if [[ "${1:-}" == --inner ]]; then
  work="${SCARCE_WORK:?}"
  run_all "$2"
  exit
fi

for mode in "$@"; do
  [[ "$mode" =~ ^(files|disk|both)$ ]] || fail "unknown mode: $mode (files, disk or both)"
done
modes=("$@")
((${#modes[@]})) || modes=(files disk both)

work="$(mktemp -d)"
# Tests run commands as another user, who has to come to the disk.
chmod 755 "$work"
mkdir "$work/disk"
trap 'rm -rf "$work"' EXIT
export SCARCE_WORK="$work"
namespace=(unshare -m)
[[ "$(id -u)" == 0 ]] || namespace=(unshare -rm)

echo "== building the tests"
cargo test --workspace --locked --no-run --message-format=json >"$work/built.json" || exit 1
# One line for each test binary: its name, its package and its path. The unit tests of a library and those of a
# program are binaries of the target `lib` and `bin`.
python3 - "$work/built.json" >"$work/all" <<'PYTHON' || exit 1
import json, os, sys

lines = set()
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    if not message["profile"]["test"]:
        continue
    manifest = message["manifest_path"]
    folder = os.path.dirname(manifest)
    is_root = os.path.basename(os.path.dirname(folder)) != "crates"
    short = "siltstone" if is_root else os.path.basename(folder)
    package = "siltstone" if is_root else "siltstone-" + short
    kind = message["target"]["kind"][0]
    target = message["target"]["name"] if kind == "test" else kind
    lines.add("\t".join([f"{short}:{target}", package, manifest, message["executable"]]))
print("\n".join(sorted(lines)))
PYTHON
list_tests
awk -F'\t' -v only="$only" '$1 ~ only' "$work/all" >"$work/binaries"
[[ -s "$work/binaries" ]] || fail "no test binary matches ONLY=$only: $(cut -f1 "$work/all" | tr '\n' ' ')"

outcome=0
summaries=()
for mode in "${modes[@]}"; do
  if [[ "$mode" != files ]] && ! can_mount; then
    summaries+=("SKIPPED: $mode: no tmpfs can be mounted here: $(tr '\n' ' ' <"$work/refusal")")
    (($# == 0)) || outcome=1
    continue
  fi
  if [[ "$mode" == files ]]; then
    (run_all files) | tee "$work/$mode.log"
  else
    with_disk "$mode" | tee "$work/$mode.log"
  fi
  [[ "${PIPESTATUS[0]}" == 0 ]] || outcome=1
  text="$(summary "$mode" "$work/$mode.log")" || outcome=1
  summaries+=("$text")
done
echo
printf '%s\n' "${summaries[@]}"
exit "$outcome"

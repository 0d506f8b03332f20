#!/usr/bin/env bash
# Runs the test suite where little is allowed: with 64 open files, on a disk of 96 MiB, and with both.
#
#   scripts/scarce.sh                  # all three, one after the other
#   scripts/scarce.sh files            # 64 open files (ulimit -n, soft and hard)
#   scripts/scarce.sh disk             # TMPDIR on a tmpfs of 96 MiB
#   scripts/scarce.sh both             # both at once
#   ONLY='few_files|secondary' scripts/scarce.sh both    # test binaries whose names match
#   THREADS=4 scripts/scarce.sh        # tests of one binary at a time, which share the limits (2)
#
# The tests are built once, without limits. Tests that need more themselves are left out: see `left_out`, which
# gives the reason of each and prints it. Ends with a summary, and fails if a test failed. Where the disk cannot be
# mounted (neither as root nor in a namespace of the user), that part is not run, and the summary says so.
set -uo pipefail
cd "$(dirname "$0")/.."
repository="$PWD"
threads="${THREADS:-2}"
only="${ONLY:-.}"
disk_bytes=$((96 << 20))

# left_out LIMIT: lines of "binary<TAB>test<TAB>reason" for tests that need more than `files` or `disk` allows.
left_out() {
  case "$1" in
    files)
      printf '%s\t%s\t%s\n' \
        it handles::three_hundred_partitions_work_with_256_file_handles "sets a limit of 256, which is above the hard limit" \
        it handles::six_hundred_chunk_files_are_read_with_256_file_handles "sets a limit of 256, which is above the hard limit" \
        few_files four_hundred_partitions_with_large_values_work_with_256_files "sets a limit of 256, which is above the hard limit" \
        few_files a_thousand_partitions_with_large_values_work_with_256_files "sets a limit of 256, which is above the hard limit"
      ;;
    disk)
      printf '%s\t%s\t%s\n' \
        large a_folder_with_a_huge_file_is_loaded_compared_and_given_back "its file of more than 64 MiB is there twice" \
        large a_value_from_a_file_is_streamed_into_a_partition_with_large_values "its file of more than 64 MiB is there twice" \
        large entries_of_any_size_go_through_a_pipe_and_a_cut_import_goes_on "its file of more than 64 MiB is there twice" \
        memory a_value_of_914_mb_goes_in_and_out_with_64_mib_of_memory "the value has 914 MB" \
        memory a_large_value_is_copied_once "databases with a log of 64 MiB each"
      ;;
  esac
}

# tests_of BINARY MODE: the same lines, for this binary under this mode.
tests_of() {
  local limits="$2"
  [[ "$2" == both ]] && limits="files disk"
  for limit in $limits; do left_out "$limit"; done | awk -F'\t' -v binary="$1" '$1 == binary' | sort -u
}

# run_all MODE: runs each binary under the limits of the mode. The disk is mounted.
run_all() {
  local mode="$1"
  if [[ "$mode" != disk ]]; then
    ulimit -n 64 || return 1
  fi
  while IFS=$'\t' read -r name folder binary; do
    local skips=()
    while IFS=$'\t' read -r _ test reason; do
      [[ -n "$test" ]] || continue
      echo "left out: $name $test: $reason"
      skips+=(--skip "$test")
    done < <(tests_of "$name" "$mode")
    echo "== $mode: $name"
    # In its package, as cargo runs it.
    (cd "$folder" && "$binary" --test-threads="$threads" "${skips[@]}" </dev/null 2>&1)
    local status=$?
    [[ "$status" == 0 ]] || echo "binary failed: $name (status $status)"
    if [[ "$mode" != files ]]; then
      find "$TMPDIR" -mindepth 1 -maxdepth 1 -printf "left on the disk by $name: %f\n"
      # The next binary has the whole disk.
      find "${TMPDIR:?}" -mindepth 1 -delete
    fi
  done <"$work/binaries"
}

# with_disk MODE: runs the mode with a small disk as TMPDIR. It is gone with the namespace.
with_disk() {
  local inner='mount -t tmpfs -o size="$1" tmpfs "$2" || exit 77; exec "$3" --inner "$4"'
  local namespace=(unshare -m)
  [[ "$(id -u)" == 0 ]] || namespace=(unshare -rm)
  mkdir -p "$work/disk"
  TMPDIR="$work/disk" "${namespace[@]}" bash -c "$inner" bash "$disk_bytes" "$work/disk" "$repository/scripts/scarce.sh" "$1"
}

can_mount() {
  local namespace=(unshare -m)
  [[ "$(id -u)" == 0 ]] || namespace=(unshare -rm)
  mkdir -p "$work/disk"
  "${namespace[@]}" mount -t tmpfs -o size="$disk_bytes" tmpfs "$work/disk" 2>"$work/refusal"
}

# summary MODE OUTPUT: prints what passed and failed; fails if something failed.
summary() {
  awk -v mode="$1" '
    /^test result: / { passed += $4; failed += $6; ignored += $8; binaries += 1 }
    /^left out: / { left += 1 }
    /^test .* FAILED$/ { names = names "\n  " $2 }
    /^binary failed: / { broken = broken "\n  " $0 }
    END {
      printf "%s: %d binaries, %d passed, %d failed, %d ignored, %d left out%s%s\n",
        mode, binaries, passed, failed, ignored, left, names, broken
      exit failed > 0 || broken != "" || binaries == 0
    }' "$2"
}

if [[ "${1:-}" == --inner ]]; then
  work="${SCARCE_WORK:?}"
  run_all "$2"
  exit 0
fi

work="$(mktemp -d)"
# Tests run commands as another user, who has to come to the disk.
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
export SCARCE_WORK="$work" THREADS="$threads"

echo "== building the tests"
cargo test --workspace --no-run --message-format=json >"$work/built.json" || exit 1
# One line for each test binary: its name, the folder of its package, and its path. Binaries of programs have no tests.
python3 - "$work/built.json" "$only" >"$work/binaries" <<'PYTHON' || exit 1
import json, os, re, sys

for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    if not message["profile"]["test"]:
        continue
    package = os.path.dirname(message["manifest_path"])
    name = message["target"]["name"]
    # Several packages have a binary of the same name.
    kind = message["target"]["kind"][0]
    if name == "it" and os.path.basename(os.path.dirname(package)) == "crates":
        name = os.path.basename(package) + "-it"
    if kind != "test":
        name += "-unit"
    if re.search(sys.argv[2], name):
        print(name, package, message["executable"], sep="\t")
PYTHON
sort -o "$work/binaries" "$work/binaries"

modes=("$@")
((${#modes[@]})) || modes=(files disk both)
outcome=0
summaries=()
for mode in "${modes[@]}"; do
  case "$mode" in
    files) (run_all files) | tee "$work/$mode.log" ;;
    disk | both)
      if ! can_mount; then
        summaries+=("$mode: not run: $(tr '\n' ' ' <"$work/refusal")")
        continue
      fi
      with_disk "$mode" | tee "$work/$mode.log"
      ;;
    *)
      echo "unknown mode: $mode" >&2
      exit 2
      ;;
  esac
  text="$(summary "$mode" "$work/$mode.log")" || outcome=1
  summaries+=("$text")
done
echo
printf '%s\n' "${summaries[@]}"
exit "$outcome"

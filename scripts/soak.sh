#!/usr/bin/env bash
# Runs the families of tests with random input again and again, with fresh seeds, and files a reproducer of each failure.
#
#   scripts/soak.sh 2                    # two hours
#   SEED=1000 scripts/soak.sh 1          # the first seed; a random one by default
#   ONLY='meet|crash' scripts/soak.sh 1  # the families whose names match
#
# A failure goes to target/soak/FAMILY-SEED.txt: the command that repeats it, and its output. Ends with a row for each
# family, and fails if there was a failure.
set -uo pipefail
cd "$(dirname "$0")/.."
hours="${1:?how many hours}"
seed="${SEED:-$RANDOM$RANDOM}"
only="${ONLY:-.}"
end="$(($(date +%s) + $(awk -v hours="$hours" 'BEGIN { printf "%d", hours * 3600 }')))"

# families: lines of "name package target filter variables".
families() {
  cat <<'ROWS'
meet siltstone --test=it meet:: MEET_SCRIPTS=30
model siltstone --test=it model::the_store PROPTEST_CASES=300
crash siltstone --test=it crash:: -
fault siltstone --test=it fault::every_fault -
exchange siltstone --test=it exchange:: -
metahive siltstone --test=it no_damage_makes_a_read_wrong MODEL_ROUNDS=300
salvage siltstone --test=it salvage::random -
transactions siltstone --test=it transactions:: -
threads siltstone --test=it concurrent:: -
secondaries siltstone-secondary --test=it histories:: -
remote siltstone-remote --test=it sim:: REMOTE_TAKEOVERS=1000
shards siltstone-server --test=it shards_linear -
ROWS
}

mkdir -p target/soak
declare -A runs failures
outcome=0
rounds=0
while (($(date +%s) < end)); do
  ((rounds += 1))
  ran=0
  while read -r name package target filter variables; do
    [[ "$name" =~ $only ]] || continue
    (($(date +%s) < end)) || break
    ran=1
    command=(env "SEED=$seed")
    [[ "$variables" == - ]] || command+=("$variables")
    command+=(cargo test -q "--package=$package" "$target" "$filter")
    runs[$name]=$((${runs[$name]:-0} + 1))
    report="target/soak/$name-$seed.txt"
    if "${command[@]}" >"$report" 2>&1 </dev/null && grep -q 'test result: ok. [1-9]' "$report"; then
      rm "$report"
      continue
    fi
    sed -i "1i ${command[*]}" "$report"
    failures[$name]=$((${failures[$name]:-0} + 1))
    outcome=1
    echo "failed: $report: ${command[*]}"
  done < <(families)
  ((ran)) || { echo "no family matches ONLY=$only" >&2; exit 2; }
  ((seed += 1))
done
echo "$rounds rounds"
for name in "${!runs[@]}"; do
  echo "$name: ${runs[$name]} runs, ${failures[$name]:-0} failed"
done | sort
exit "$outcome"

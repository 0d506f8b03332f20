#!/usr/bin/env bash
# usage: secondary-soak.sh MINUTES [SEED]
#
# A writing process with churn that is stopped, continued and killed at random, secondaries that read
# beside it with four open files, and a reading process that is killed with it
# (crates/secondary/tests/it/processes.rs), with one seed after the other. Prints each seed, and what
# was read:
#
#   SEED=<seed> ROUNDS=40 cargo test -p siltstone-secondary --test it killed_again
set -euo pipefail
minutes="${1:?how many minutes}"
seed="${2:-$RANDOM$RANDOM}"
end=$(($(date +%s) + 60 * minutes))
cargo test -q -p siltstone-secondary --test it --no-run
while (($(date +%s) < end)); do
    echo "seed $seed"
    SEED="$seed" ROUNDS=40 cargo test -q -p siltstone-secondary --test it killed_again -- --nocapture
    seed=$((seed + 1))
done

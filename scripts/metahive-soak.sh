#!/usr/bin/env bash
# usage: metahive-soak.sh MINUTES [SEED]
#
# Damages stores whose entries have metadata, compacts them, and holds every read against a model
# (tests/it/metahive/model.rs), with one seed after the other. Prints each seed; SEED=... gives the
# run back:
#
#   SEED=<seed> MODEL_ROUNDS=1000 cargo test --test it no_damage_makes_a_read_wrong
set -euo pipefail
minutes="${1:?how many minutes}"
seed="${2:-$RANDOM$RANDOM}"
end=$(($(date +%s) + 60 * minutes))
cargo test -q --test it --no-run
while (($(date +%s) < end)); do
    echo "seed $seed"
    SEED="$seed" MODEL_ROUNDS=1000 cargo test -q --test it no_damage_makes_a_read_wrong -- --nocapture
    seed=$((seed + 1))
done

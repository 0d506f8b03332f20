#!/usr/bin/env bash
# Builds with the feature `zstd`, which needs a C compiler, and runs the tests that it concerns: codec, tables, large
# values, whole stores; the model, power cuts, faults and the scripts of `meet.rs` with zstd among their compressions, power
# cuts and faults with dictionaries too; and the command.
#
#   scripts/zstd.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v "${CC:-cc}" >/dev/null; then
  echo "SKIPPED: there is no C compiler (${CC:-cc})"
  exit 0
fi
cargo test -p siltstone-tree --features zstd --lib -- sstable:: zstandard::
cargo test -p siltstone-largeval --features zstd --lib
cargo test -p siltstone --features zstd --test it -- zstd:: model:: hostile:: crash:: fault:: resume:: meet:: sim::
cargo test -p siltstone-cli --features zstd --test command -- verbs::

#!/usr/bin/env bash
# Builds with the feature `zstd`, which needs a C compiler, and runs the tests that it concerns: codec, tables, large
# values, whole stores, and the model with zstd among its compressions.
#
#   scripts/zstd.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v "${CC:-cc}" >/dev/null; then
  echo "SKIPPED: there is no C compiler (${CC:-cc})"
  exit 0
fi
cargo test -p siltstone-lsm-core --features zstd --lib sstable::
cargo test -p siltstone-largeval --features zstd --lib
cargo test -p siltstone --features zstd --test it -- zstd:: model:: hostile::

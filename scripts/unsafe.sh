#!/usr/bin/env bash
# Checks the files that hold unsafe code (UNSAFE_FILES in tests/tidy): all orders of loads and stores
# of a small model under loom, and every access of the tests of the arena and of slots under Miri.
# Neither knows the system calls of fs/map.rs, whose tests run with all others.
# Usage: scripts/unsafe.sh [TESTS]    TESTS: what Miri runs, `memtable::arena memory::` by default.
# `memtable::skiplist` takes half an hour. Miri is skipped where it is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

RUSTFLAGS="--cfg loom" cargo test --quiet -p siltstone-tree --lib --target-dir target/loom \
    skiplist::tests::loom

if cargo +nightly miri --version 2>/dev/null; then
    [ $# -gt 0 ] || set -- memtable::arena memory::
    cargo +nightly miri test --quiet -p siltstone-tree --lib --target-dir target/miri -- "$@"
else
    echo "SKIPPED: Miri is not installed (rustup component add miri --toolchain nightly)"
fi

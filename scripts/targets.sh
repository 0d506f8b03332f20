#!/usr/bin/env bash
# Checks that the libraries and the command compile for other systems, without warnings.
# A target is checked if rustup has its standard library or can get it; no linker is needed, because nothing is
# linked. The targets that cannot be had are printed, and are no failure. Other arguments replace the list.
# No debug information, one target folder: dependencies without a difference are built once a target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=(
    aarch64-apple-darwin
    x86_64-apple-darwin
    x86_64-pc-windows-gnu
    x86_64-unknown-freebsd
    x86_64-unknown-linux-musl
    aarch64-linux-android
    i686-unknown-linux-gnu
    armv7-unknown-linux-gnueabihf
    wasm32-wasip1
)
(($# == 0)) || targets=("$@")
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

missing=()
failed=()
installed="$(rustup target list --installed 2>/dev/null || true)"
for target in "${targets[@]}"; do
    if ! grep -qx "$target" <<<"$installed" && ! rustup target add "$target" 2>/dev/null; then
        missing+=("$target")
        continue
    fi
    crates=(-p siltstone -p siltstone-storage -p siltstone-tree -p siltstone-lsm-core -p siltstone-largeval -p siltstone-metahive -p siltstone-secondary -p siltstone-streams)
    # The command starts other processes and threads, which WASI does not have; a remote has a thread, too.
    [[ $target == wasm32-* ]] || crates+=(-p siltstone-cli -p siltstone-remote)
    lints=(-D warnings)
    # Where std keeps thread locals under keys of the system, clippy does not see their `const`.
    [[ $target != *-android ]] || lints+=(-A clippy::missing_const_for_thread_local)
    echo "-- $target"
    cargo clippy --quiet --locked --target-dir target/targets --target "$target" \
        "${crates[@]}" --lib --bins --features siltstone/async,siltstone/bytes,siltstone/metrics,siltstone/mmap,siltstone/serde \
        -- "${lints[@]}" || failed+=("$target")
done
((${#missing[@]} == 0)) || echo "SKIPPED, neither installed nor to be had: ${missing[*]}"
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; exit 1; }

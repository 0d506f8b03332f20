#!/usr/bin/env bash
# Makes the package of every crate and builds each from its package, as a registry would. Publishes nothing.
# The packages are in target/package; docs/releasing.md says in which order they are published.
# Usage: scripts/package.sh [ARGUMENTS OF cargo package]    such as --offline or --allow-dirty
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
cargo package --workspace --locked "$@"

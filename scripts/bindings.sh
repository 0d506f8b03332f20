#!/usr/bin/env bash
# Builds and tests the bindings, which are no part of the workspace: those of C in bindings/c, and of Python in
# bindings/python.
# Usage: scripts/bindings.sh [c|python|wheel]    without an argument: all that can be tested here.
# `wheel` builds a wheel for distribution, with optimizations, in bindings/python/target/wheels.
# The programs in C run under valgrind where it is installed. The tests of Python use the active virtual environment, or
# one in bindings/python/target, into which maturin and the packages of the tests are installed. What is missing is printed,
# and is no failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

skip() { echo "SKIPPED: $*"; }

# Enters a virtual environment that has maturin, pytest, hypothesis and mypy, or says why there is none.
python_tools() {
    local python="${PYTHON:-python3}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        skip "bindings/python needs a Python of version 3.11 or later"
        return 1
    fi
    if [[ -z "${VIRTUAL_ENV:-}" ]]; then
        local venv=bindings/python/target/venv
        [[ -d $venv ]] || "$python" -m venv "$venv" || { skip "the Python here has no venv"; return 1; }
        # shellcheck disable=SC1091
        source "$venv/bin/activate"
    fi
    python -c 'import hypothesis, maturin, mypy, pytest' 2>/dev/null ||
        python -m pip install --quiet maturin hypothesis mypy pytest ||
        { skip "maturin, hypothesis, mypy or pytest are neither installed nor to be had"; return 1; }
}

python_tests() {
    echo "== bindings/python"
    python_tools || return 0
    (
        cd bindings/python
        cargo fmt --check
        cargo clippy --locked -- -D warnings
        maturin develop --quiet --locked
        # The folder of the tests is below the package; its parent is not on the path.
        pytest
    )
}

python_wheel() {
    echo "== a wheel of bindings/python"
    python_tools || return 0
    (cd bindings/python && maturin build --release --locked)
}

c_tests() {
    echo "== bindings/c"
    if ! cc --version >/dev/null 2>&1; then
        skip "bindings/c needs a C compiler"
        return 0
    fi
    valgrind --version 2>/dev/null || skip "valgrind is not installed: the programs in C run without it"
    (
        cd bindings/c
        cargo fmt --check
        cargo clippy --locked --all-targets -- -D warnings
        cargo test --locked
    )
}

case "${1:-all}" in
    # Not joined by `&&`, which would let a failed step in the first go on.
    all)
        c_tests
        python_tests
        ;;
    c) c_tests ;;
    python) python_tests ;;
    wheel) python_wheel ;;
    *) echo "usage: scripts/bindings.sh [c|python|wheel]" >&2; exit 2 ;;
esac

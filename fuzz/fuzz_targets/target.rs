//! Runs the target that `TARGET` names under libFuzzer.
#![no_main]

use std::sync::LazyLock;

#[path = "../../crates/cli/tests/fuzz/targets.rs"]
mod targets;

static TARGET: LazyLock<targets::Target> = LazyLock::new(|| {
    let wanted = std::env::var("TARGET").expect("TARGET is the name of a target");
    let found = targets::TARGETS.into_iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("there is no target {wanted}")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (*TARGET)(bytes));

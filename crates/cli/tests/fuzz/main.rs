//! Replays the corpus of each fuzz target, with random changes of it.
//!
//! `scripts/fuzz.sh` searches for new inputs; what it finds goes into `corpus/`, one input a line, in hex.

#[cfg(target_os = "linux")]
mod command;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use targets::{TARGETS, Target};
use testkit::{Rng, mutate};

/// Changes of each input.
const MUTATIONS: usize = 60;
/// A decoder takes at most twice its input and this.
const BYTES_MAX: u64 = 64 << 20;

fn corpus_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fuzz/corpus/{name}.txt"))
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = corpus_file(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| from_hex(line).unwrap_or_else(|| panic!("{}: {line}", path.display())))
        .collect()
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let pairs = line.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn hex(bytes: &[u8]) -> String {
    let shown = bytes.iter().take(4096);
    shown.map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a target on `bytes`. Returns what went wrong.
fn fault_of(target: Target, bytes: &[u8]) -> Option<String> {
    let mut panicked = false;
    let taken = allocation_counter::measure(|| {
        panicked = catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err();
    });
    let len = bytes.len() as u64;
    match taken.bytes_max {
        _ if panicked => Some(format!("a panic with the {len} bytes {}", hex(bytes))),
        most if most > 2 * len + BYTES_MAX => {
            Some(format!("{most} bytes of memory for the {len} bytes {}", hex(bytes)))
        }
        _ => None,
    }
}

#[test]
fn every_input_and_its_changes_end_in_an_error_or_a_value() {
    let mut rng = Rng::from_env_or(41);
    let mut faults = Vec::new();
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "{name} has a corpus");
        let mut runs = 0;
        for input in &inputs {
            faults.extend(fault_of(target, input).map(|fault| format!("{name}: {fault}")));
            for _ in 0..MUTATIONS {
                let mut changed = input.clone();
                let other = rng.pick(&inputs).clone();
                mutate(&mut rng, &mut changed, &other);
                faults.extend(fault_of(target, &changed).map(|fault| format!("{name}: {fault}")));
                runs += 1;
            }
        }
        println!("{name}: {} inputs, {runs} changes", inputs.len());
    }
    assert!(faults.is_empty(), "{} faults, the first:\n{}", faults.len(), faults[0]);
}

//! The whole store compared with a simple model: random operations on tiny files, so that a few
//! hundred of them pass through every level, segment and manifest generation; with cursors and
//! snapshots held across all of it, clean reopenings, and power cuts of every outcome.
//!
//! The store runs in steps on one thread, with a file system in memory and seeded numbers, so that
//! a case can be repeated. `SEED=n` and `PROPTEST_CASES=n` run other and more cases.
//!
//! After a power cut the logged partitions must hold a prefix of the commit order that includes
//! everything that was synced. A partition without a log must hold a prefix of its own writes that
//! includes everything up to its last flush. The model is then cut to the recovered state.
//!
//! Some partitions are a FIFO: the model takes from the store how much of them is gone, and checks that it is the oldest.

mod fifo;
mod harness;
mod operation;
mod oracle;

use std::sync::atomic::Ordering;

use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};

use harness::{Harness, Surroundings};
use operation::{Operation, operations, options};

use crate::store::keys;

fn from_env(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("the variable is a decimal number"))
}

fn check(options: &siltstone::Options, around: Surroundings, operations: &[Operation]) {
    let mut harness = Harness::new(options, around);
    operations.iter().for_each(|operation| harness.apply(operation));
    harness.finish(options);
}

#[test]
fn the_store_answers_as_the_model_does() {
    let cases = from_env("PROPTEST_CASES", 300);
    run(cases, Surroundings::default);
    let removals = fifo::REMOVALS.load(Ordering::Relaxed);
    assert!(removals > cases / 10, "{removals} times something of a FIFO was gone");
}

#[test]
fn an_encrypted_store_answers_as_the_model_does() {
    run(from_env("PROPTEST_CASES", 300) / 8, || Surroundings::encrypted(keys()));
}

#[test]
fn a_store_that_shares_resources_answers_as_the_model_does() {
    run(from_env("PROPTEST_CASES", 300) / 8, Surroundings::shared);
}

fn run(cases: u64, around: fn() -> Surroundings) {
    let config = Config {
        cases: cases as u32,
        rng_seed: RngSeed::Fixed(from_env("SEED", 1)),
        failure_persistence: None,
        max_shrink_iters: from_env("SHRINK", 20_000) as u32,
        ..Config::default()
    };
    let outcome =
        TestRunner::new(config).run(&(options(), operations()), |(options, operations)| {
            check(&options, around(), &operations);
            Ok(())
        });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, (options, operations))) => {
            let lines: Vec<_> =
                operations.iter().map(|operation| format!("{operation:?}")).collect();
            panic!("{why}\nopened with {options:?}, then\n{}", lines.join("\n"));
        }
        Err(abort) => panic!("{abort}"),
    }
}

//! Read-modify-write without locks: a counter that several threads increment, and a lease that one
//! thread gets.
//!
//! `cargo run --example counter`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Db, Partition, Result, Swap};

const THREADS: u64 = 8;
const EACH: u64 = 500;

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("this program writes 8 bytes"))
}

/// Increments the counter `EACH` times. Returns the number of computations that were repeated.
fn add(page: &Partition) -> Result<u64> {
    let mut calls = 0;
    for _ in 0..EACH {
        page.update("visits", |old| {
            calls += 1;
            Some((old.map_or(0, number) + 1).to_be_bytes())
        })?;
    }
    Ok(calls - EACH)
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-counter-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let page = db.partition("page")?;

    let again: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| add(&page))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it returns its errors"))
            .sum::<Result<u64>>()
    })?;
    let visits = number(&page.get("visits")?.expect("it was added to"));
    println!("{visits} visits; {again} sums were computed again");
    assert_eq!(visits, THREADS * EACH);

    // Several threads find the lease free; one of them gets it.
    let mut owner = None;
    for name in ["alice", "bob", "carol"] {
        match page.compare_and_set("lease", None, Some(name.as_bytes()))? {
            Swap::Done(commit) => {
                println!("{name} has the lease, since commit {}", commit.seq);
                owner = Some(name);
            }
            Swap::Differs(other) => {
                println!(
                    "{name} finds that {:?} has it",
                    other.expect("the lease is never released")
                );
            }
        }
    }
    assert_eq!(owner, Some("alice"));

    drop(page);
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}

//! A queue: entries are put at one end, and the first is read and deleted. Each pop costs the same,
//! however many entries there were: a search for the first entry skips the deleted ones.
//!
//! `cargo run --release --example queue -- [POPS] [queue|stack|queues|transaction|snapshot] [POPS
//! BETWEEN FLUSHES]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::time::{Duration, Instant};

use siltstone::{Db, Durability, Partition, Result};

/// Entries that are in a queue at any time.
const LIVE: u64 = 10;
const VALUE: &[u8] = b"a message";

fn push(page: &Partition, queue: u64, n: u64) -> Result<()> {
    page.put([queue.to_be_bytes(), n.to_be_bytes()].concat(), VALUE)?;
    Ok(())
}

/// Deletes the first entry of a queue, or the last one, and returns its number.
fn pop(page: &Partition, queue: u64, is_stack: bool) -> Result<u64> {
    let mut range = page.prefix(queue.to_be_bytes());
    let entry = if is_stack { range.next_back() } else { range.next() };
    let (key, _) = entry.expect("the queue has entries")?;
    page.delete(&key)?;
    Ok(u64::from_be_bytes(key[8..].try_into().expect("this program writes 8 bytes")))
}

fn pop_in_transaction(db: &Db, page: &Partition) -> Result<u64> {
    let mut transaction = db.transaction();
    let (key, _) = transaction.iter(page).next().expect("the queue has entries")?;
    transaction.delete(page, &key);
    transaction.commit(Durability::Os)?;
    Ok(u64::from_be_bytes(key[8..].try_into().expect("this program writes 8 bytes")))
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let pops: u64 = arguments.next().map_or(20_000, |text| text.parse().expect("a number of pops"));
    let mode = arguments.next().unwrap_or_else(|| "queue".to_owned());
    let flush_every: u64 =
        arguments.next().map_or(0, |text| text.parse().expect("a number of pops"));
    let queues = if mode == "queues" { 50 } else { 1 };

    let folder = std::env::temp_dir().join(format!("siltstone-queue-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let page = db.partition("queue")?;
    for queue in 0..queues {
        for n in 0..LIVE {
            push(&page, queue, n)?;
        }
    }
    let snapshot = (mode == "snapshot").then(|| db.snapshot());
    let started = Instant::now();
    let mut longest = Duration::ZERO;
    for n in 0..pops {
        let queue = n % queues;
        let turn = n / queues;
        let began = Instant::now();
        push(&page, queue, turn + LIVE)?;
        let popped = match &*mode {
            "transaction" => pop_in_transaction(&db, &page)?,
            _ => pop(&page, queue, mode == "stack")?,
        };
        longest = longest.max(began.elapsed());
        assert_eq!(popped, if mode == "stack" { turn + LIVE } else { turn });
        if flush_every > 0 && n % flush_every == flush_every - 1 {
            db.flush()?;
        }
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / pops as f64;
    println!("{mode}: {pops} pops, {each:.2} us each, {longest:?} the longest");
    assert_eq!(page.keys().count() as u64, LIVE * queues);
    assert_eq!(snapshot.map_or(LIVE, |snapshot| snapshot.keys(&page).count() as u64), LIVE);

    db.close()?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

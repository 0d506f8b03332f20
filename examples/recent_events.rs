//! The newest events of a log and their senders: a FIFO partition that keeps so many bytes, and `multi_get` of all senders
//! of a page at one moment.
//!
//! `cargo run --example recent_events`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeSet;

use siltstone::{CompactionStyle, Db, Options, Partition, PartitionOptions, Result};

const EVENTS: u64 = 20_000;
const SENDERS: u64 = 300;
/// The bytes that the events may take in tables.
const BYTES_MAX: u64 = 512 << 10;
/// The events of a page.
const PAGE: usize = 50;

fn sender_of(event: u64) -> String {
    format!("sender {:03}", event * event % SENDERS)
}

/// The newest events, with the names of their senders.
fn newest(events: &Partition, names: &Partition) -> Result<Vec<(u64, String)>> {
    let page = events.iter().rev().take(PAGE).collect::<Result<Vec<_>>>()?;
    // Each sender once, in one call: blocks that are not cached are read together.
    let senders: BTreeSet<&[u8]> = page.iter().map(|(_, event)| &event[..10]).collect();
    let senders: Vec<&[u8]> = senders.into_iter().collect();
    let found = names.multi_get(&senders)?;
    let mut lines = Vec::new();
    for (key, event) in &page {
        let number = u64::from_be_bytes(key[..].try_into().expect("this program writes 8 bytes"));
        let at = senders.binary_search(&&event[..10]).expect("it is one of them");
        let name = found[at].as_ref().expect("every sender has a name");
        lines.push((number, String::from_utf8_lossy(name).into_owned()));
    }
    Ok(lines)
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-events-{}", std::process::id()));
    // A table has about one write buffer, and that is the smallest part that goes.
    let db = Db::builder(&folder).options(Options::new().write_buffer_bytes(64 << 10)).open()?;
    let fifo = CompactionStyle::Fifo { bytes_max: BYTES_MAX, seconds_max: 24 * 3600 };
    let events = db.partition_with("events", PartitionOptions::new().compaction_style(fifo))?;
    let names = db.partition("names")?;
    for sender in 0..SENDERS {
        names.put(format!("sender {sender:03}"), format!("the one with number {sender}"))?;
    }
    for event in 0..EVENTS {
        let text =
            format!("{} reports {:x}", sender_of(event), event.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        events.put(event.to_be_bytes(), text.repeat(2))?;
    }
    db.flush()?;
    db.wait_idle()?;

    let (oldest, _) = events.first()?.expect("the newest ones are kept");
    let oldest = u64::from_be_bytes(oldest[..].try_into().expect("this program writes 8 bytes"));
    let kept = events.iter().count() as u64;
    println!("{kept} of {EVENTS} events are kept, from number {oldest} on");
    assert!(oldest > 0 && kept == EVENTS - oldest, "the oldest are gone, and no other ones");
    assert_eq!(db.stats().compaction_written_bytes, 0, "no event was written a second time");

    let page = newest(&events, &names)?;
    println!("the newest is {} of {}", page[0].0, page[0].1);
    assert_eq!((page.len(), page[0].0), (PAGE, EVENTS - 1));

    // A key that is gone, or never was, has no value; the others have theirs.
    let keys = [0, EVENTS - 1, EVENTS].map(u64::to_be_bytes);
    let found: Vec<bool> = events.multi_get(&keys)?.iter().map(Option::is_some).collect();
    assert_eq!(found, [false, true, false]);

    drop((events, names));
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}

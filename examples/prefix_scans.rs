//! Prefix filters: scans of prefixes that are not there, over seven levels, with the option on and off.
//!
//! `cargo run --release --example prefix_scans -- 100000` (users; default 4,000). It prints the times of both
//! partitions, read in turns, and the median of their ratios.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::time::{Duration, Instant};

use siltstone::{Compression, Db, Partition, PartitionOptions, PrefixExtractor, Result};

/// Pairs of measurements; their median counts.
const TURNS: u64 = 15;

/// Every other user has mails. In order, a number is followed by one that lies far away.
fn user(n: u64, users: u64) -> String {
    format!("user{:09}/", 2 * (n * 7_919 % users))
}

fn fill(db: &Db, partition: &Partition, users: u64) -> Result<()> {
    for n in 0..users {
        for mail in 0..4 {
            partition.put(format!("{}{mail:04}", user(n, users)), [b'm'; 80])?;
        }
    }
    db.flush()?;
    db.wait_idle()?;
    // A table of level 0, over all keys.
    for n in (0..users).step_by(16) {
        partition.put(format!("{}9999", user(n, users)), "the newest")?;
    }
    db.flush()
}

/// Scans the mails of users who have none, and of one who has some.
fn scan(partition: &Partition, users: u64, turn: u64) -> Duration {
    let scans = users.min(20_000);
    let begin = Instant::now();
    for n in 0..scans {
        let missing = format!("user{:09}/", 2 * ((n + turn) * 104_729 % users) + 1);
        assert!(partition.prefix(missing).next().is_none(), "such a user has no mails");
    }
    let spent = begin.elapsed() / u32::try_from(scans).unwrap_or(u32::MAX);
    assert!(partition.prefix(user(turn, users)).count() >= 4, "no entry is missing");
    spent
}

fn main() -> Result<()> {
    let users = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4_000);
    let folder = std::env::temp_dir().join(format!("siltstone-prefixes-{}", std::process::id()));
    let db = Db::builder(&folder).cache_bytes(1 << 30).write_buffer_bytes(256 << 10).open()?;
    // So small that all seven levels have tables: each is three times as large as the one above.
    let base = users * 400 / 250 + 1024;
    let options = PartitionOptions::new().table_bytes(base).level_base_bytes(base);
    let options = options.level_multiplier(3).level0_tables(2).compression(Compression::None);
    let without = db.partition_with("without", options.clone())?;
    let with = options.prefix_extractor(PrefixExtractor::Through(b'/'));
    let with = db.partition_with("with", with)?;
    fill(&db, &without, users)?;
    fill(&db, &with, users)?;
    for partition in db.stats().partitions.iter().filter(|it| it.name != "default") {
        let tables: Vec<u64> = partition.levels.iter().map(|level| level.table_count).collect();
        println!("{}: tables of the levels {tables:?}", partition.name);
    }

    let mut ratios = Vec::new();
    for turn in 0..TURNS {
        let off = scan(&without, users, turn);
        let on = scan(&with, users, turn);
        println!("a missing prefix: {off:?} without the option, {on:?} with it");
        ratios.push(off.as_secs_f64() / on.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("median of {TURNS} turns: {median:.1} times as fast; least {:.1}", ratios[0]);
    let stats = db.stats();
    println!("{} tables asked, {} spared", stats.prefix_asked_count, stats.prefix_spared_count);
    assert!(stats.prefix_spared_count > 9 * (stats.prefix_asked_count - stats.prefix_spared_count));

    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}

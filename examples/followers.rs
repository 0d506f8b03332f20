//! Followers of the changes: their cost for a writer, the commits a second that they follow live, and how fast one
//! catches up with a log.
//!
//! `cargo run --release --example followers -- [COMMITS] [VALUE_BYTES]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::thread;
use std::time::{Duration, Instant};

use siltstone::changes::{Changes, FeedItem};
use siltstone::{Db, Options, Result, SeqNo};

const FOLLOWERS: [usize; 3] = [0, 1, 4];
const ROUNDS: usize = 3;

/// Follows until `commits` commits are seen.
fn follow(mut changes: Changes, commits: u64) -> Result<()> {
    let mut seen = 0;
    while seen < commits {
        if let Some(FeedItem::Commit(batch)) = changes.wait_next(Duration::from_secs(1))? {
            assert_eq!(batch.first_seq, batch.seq, "each commit has one operation");
            seen += 1;
        }
    }
    assert_eq!(changes.position().seq.get(), commits, "each commit was seen once");
    Ok(())
}

/// The seconds of the writer, until its followers have everything, and of a follower that begins then.
fn round(commits: u64, value_bytes: usize, followers: usize) -> Result<[f64; 3]> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new().log_retained_bytes(u64::MAX);
    let db = Db::builder(dir.path()).options(options).open()?;
    let events = db.partition("events")?;
    let value = vec![7; value_bytes];
    let followers: Vec<_> = (0..followers)
        .map(|_| {
            let changes = db.changes(SeqNo::ZERO)?;
            Ok(thread::spawn(move || follow(changes, commits)))
        })
        .collect::<Result<_>>()?;
    let began = Instant::now();
    for n in 0..commits {
        events.put(n.to_be_bytes(), &value)?;
    }
    let written = began.elapsed();
    // An ordinary commit appears with the next sync of the log.
    db.wait_durable(db.visible_seq())?;
    followers.into_iter().try_for_each(|it| it.join().expect("no follower panics"))?;
    let followed = began.elapsed();
    let began = Instant::now();
    follow(db.changes(SeqNo::ZERO)?, commits)?;
    Ok([written, followed, began.elapsed()].map(|time| time.as_secs_f64()))
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let commits: u64 = args.next().unwrap_or(20_000);
    let value_bytes = args.next().unwrap_or(100);
    let mut best = [[f64::INFINITY; 3]; FOLLOWERS.len()];
    // In turns, so that a busy machine does not favour one of them.
    for _ in 0..ROUNDS {
        for (best, followers) in best.iter_mut().zip(FOLLOWERS) {
            let seconds = round(commits, value_bytes as usize, followers)?;
            best.iter_mut().zip(seconds).for_each(|(best, it)| *best = best.min(it));
        }
    }
    println!("{commits} commits of {value_bytes} bytes, the best of {ROUNDS} rounds");
    for ([written, followed, caught_up], followers) in best.into_iter().zip(FOLLOWERS) {
        println!(
            "{followers} followers: {:.0} commits/s written, {:.0} commits/s followed; catching up {:.0} MB/s",
            commits as f64 / written,
            commits as f64 / followed,
            (commits * (8 + value_bytes)) as f64 / caught_up / 1e6,
        );
    }
    Ok(())
}

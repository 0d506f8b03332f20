//! Metadata of an application's own for every entry: figures that a cleaning step wants without
//! reading a value, hidden from readers, made when a memtable is flushed and carried through
//! compactions, exports and ingests.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use siltstone::hooks::{CompactionFilterFactory, HookProvider};
use siltstone::metahive::{ScrubOptions, Statistics};
use siltstone::{Db, MetaHive, MetaHiveOptions, PartitionOptions, Result};

fn options() -> MetaHiveOptions {
    MetaHiveOptions::new().provider(Arc::new(Statistics::default()))
}

/// Finds the provider again when the database is opened: it is the application's own code.
struct Hooks;

impl HookProvider for Hooks {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let hive = MetaHive::new(options());
        let is_it = name == MetaHive::NAME && params == hive.params();
        is_it.then(|| Arc::new(hive) as Arc<dyn CompactionFilterFactory>)
    }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("siltstone-provider-{}", std::process::id()));
    let db = Db::builder(&dir).hooks(Arc::new(Hooks)).open()?;
    let pages = db.partition_with("pages", PartitionOptions::new().metahive(options()))?;
    for n in 0..100 {
        let length = if n == 42 { 5_000 } else { 300 + n };
        pages.put(format!("page {n:03}"), "x".repeat(length))?;
    }
    db.flush()?;
    drop(pages);
    db.close()?;

    // Another process, another day: the figures are beside the entries, and outlive compactions.
    let db = Db::builder(&dir).hooks(Arc::new(Hooks)).open()?;
    let pages = db.partition("pages")?;
    pages.compact(..)?;
    let mut far = Vec::new();
    for key in pages.keys() {
        let key = key?;
        let explanation = pages.explain(&key)?;
        let metadata = explanation.versions[0].metadata.as_ref().expect("it was flushed");
        // The first 8 bytes are the sequence number of the entry.
        let figures = Statistics::decode(&metadata.payload[8..]);
        let (length, distance) = figures.expect("the provider made them");
        if distance > 1_000 {
            far.push(key.to_vec());
            println!("{} has {length} bytes, {distance} off the mean", key.escape_ascii());
        }
    }
    assert_eq!(far, [b"page 042"]);
    // Readers do not see them, and an entry that disagrees with them is damage.
    assert_eq!(pages.keys().count(), 100);
    assert!(pages.scrub(ScrubOptions::default())?.is_sound());
    db.close()?;
    std::fs::remove_dir_all(&dir).expect("nobody else uses the folder");
    Ok(())
}

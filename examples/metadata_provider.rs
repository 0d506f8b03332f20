//! Metadata of the application for every entry: statistics that a cleaning step needs without reading
//! the values. The metadata is hidden from readers. A flush creates it; compactions, exports and
//! ingests keep it.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use siltstone::hooks::{CompactionFilterFactory, HookProvider};
use siltstone::metahive::{ScrubOptions, Statistics};
use siltstone::{Db, MetaHive, MetaHiveOptions, PartitionOptions, Result};

fn options() -> MetaHiveOptions {
    MetaHiveOptions::new().provider(Arc::new(Statistics::default()))
}

/// Supplies the provider at each open, because it is code of the application.
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

    // After a reopen the statistics are still stored with the entries, also after compactions.
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
    // Readers do not see the metadata. An entry that disagrees with its metadata is damaged.
    assert_eq!(pages.keys().count(), 100);
    assert!(pages.scrub(ScrubOptions::default())?.is_sound());
    db.close()?;
    std::fs::remove_dir_all(&dir).expect("no other program uses the folder");
    Ok(())
}

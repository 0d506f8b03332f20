//! Damage of what memory holds beside the bytes of a block.

use std::sync::Arc;

use lsm_core::fs::MemFs;
use lsm_core::hooks::Hooks;
use lsm_core::options::PartitionOptions;
use lsm_core::raw::{self, Found, ReadAt, TableBlock, Witness};
use lsm_core::{Db, Partition, Result};
use metahive::{MetaHive, VerifiedBy, verified_get};

/// Damages the word by which a search finds the entry that it is shown.
struct Damaging;

impl Witness for Damaging {
    fn passed(&mut self, _: &TableBlock<'_>) -> Result<()> {
        Ok(())
    }

    fn found(&mut self, found: &Found<'_>) -> Result<()> {
        let place = found.place.expect("the entry is in a table");
        place.block.damage_word(place.at.index())
    }
}

fn damage_word_of(partition: &Partition, key: &str) {
    let read = partition
        .with_view(key.as_bytes(), |pinned, key| raw::read(pinned, key, false, &mut Damaging));
    assert!(read.unwrap().is_some());
}

/// The bytes of the block and all of its metadata agree, and the search passes the key all the same.
#[test]
fn a_key_that_a_search_passes_in_memory_does_not_count_as_absent() {
    let db = Db::builder("/db").fs(Arc::new(MemFs::new())).open().unwrap();
    let hive = Arc::new(MetaHive::default());
    let hooks = Hooks::new().filter(hive.clone());
    let p = db.partition_with("p", PartitionOptions::new(), Some(hooks)).unwrap();
    let keys: Vec<String> = (0..40).map(|n| format!("key {n:02}")).collect();
    for key in &keys {
        p.put(key, format!("value of {key}")).unwrap();
    }
    db.flush().unwrap();
    for (before, key) in keys.iter().enumerate() {
        damage_word_of(&p, key);
        assert_eq!(p.get(key).unwrap(), None, "{key}: the damage strikes a plain read");
        assert_eq!(hive.counts().reads_mended, before as u64);
        let found = verified_get(&p, key).unwrap().unwrap_or_else(|| panic!("{key} is there"));
        assert_eq!(
            (&found.value[..], found.by),
            (format!("value of {key}").as_bytes(), VerifiedBy::Metadata)
        );
        assert!(p.get(key).unwrap().is_some(), "{key}: what was read again is in the cache");
    }
    assert_eq!(hive.counts().reads_mended, keys.len() as u64);
}

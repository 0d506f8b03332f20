//! Hooks through the public crate: partitions are created with hooks, and a later open finds the
//! hooks again.

use std::path::Path;
use std::sync::Arc;

use metahive::payload::SUFFIX;
use siltstone::hooks::{
    CompactionFilter, CompactionFilterFactory, Decision, Entry, HookProvider, Job,
};
use siltstone::metahive::Statistics;
use siltstone::raw::RawMode;
use siltstone::{
    Db, Durability, ErrorKind, Hooks, MetaHive, MetaHiveOptions, Partition, PartitionOptions,
    PrefixDropFilter, Result,
};

use crate::test_value_store::NoHooks;

fn fill(partition: &Partition, keys: std::ops::Range<u32>) {
    for n in keys {
        partition.put(format!("key {n:03}"), format!("value {n}")).unwrap();
    }
}

/// The number of entries in the tables of a partition, and of hidden ones.
fn census(partition: &Partition) -> (u64, u64) {
    let mut entries = 0;
    let mut hidden = 0;
    for table in partition.walk().unwrap().tables() {
        let mut walk = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = walk.next().unwrap() {
            *(if entry.hidden { &mut hidden } else { &mut entries }) += 1;
        }
    }
    (entries, hidden)
}

/// Compacts and checks how many entries there are, and how many of them have metadata.
#[track_caller]
fn check(partition: &Partition, entries: u64, sealed: u64) {
    partition.compact(..).unwrap();
    assert_eq!(partition.iter().count() as u64, entries);
    assert_eq!(census(partition), (entries, sealed));
}

fn with_metahive() -> PartitionOptions {
    PartitionOptions::new().metahive(MetaHiveOptions::default())
}

#[test]
fn a_partition_made_with_metahive_is_found_by_name_and_still_seals() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition_with("p", with_metahive().block_bytes(512)).unwrap();
    fill(&p, 0..50);
    check(&p, 50, 50);
    db.close().unwrap();
    drop(p);

    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.options().get_block_bytes(), 512);
    fill(&p, 50..100);
    let other = db.partition("other").unwrap();
    let batch = db.batch().put(&p, "more", "of it").put(&other, "and", "this");
    batch.commit(Durability::Sync).unwrap();
    check(&p, 101, 101);
    check(&other, 1, 0);
    assert_eq!(db.snapshot().get(&p, "more").unwrap().as_deref(), Some(&b"of it"[..]));
    // Any key is accepted, as before the partition was opened again.
    p.put([SUFFIX], "").unwrap();
    p.put(1u64.to_be_bytes(), "one").unwrap();
    check(&p, 103, 103);
}

#[test]
fn metahive_can_be_switched_on_off_and_on_again_over_data() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition_with("p", PartitionOptions::new().block_bytes(512)).unwrap();
    fill(&p, 0..50);
    check(&p, 50, 0);

    let on = || p.options().metahive(MetaHiveOptions::default());
    db.partition_with("p", on()).unwrap();
    fill(&p, 50..60);
    check(&p, 60, 60);
    // Options that name no hooks leave the hooks as they are.
    db.partition_with("p", p.options().block_bytes(1024)).unwrap();
    fill(&p, 60..70);
    check(&p, 70, 70);

    db.partition_with("p", on().hooks(Hooks::new())).unwrap();
    p.put(b"free\x01", "again").unwrap();
    fill(&p, 0..70);
    check(&p, 71, 0);
    let options = p.options();
    drop(p);
    db.close().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.options().stored(), options.stored());
    fill(&p, 0..70);
    check(&p, 71, 0);

    // A key from the time without MetaHive, and then its tombstone, prevent the switch.
    let on = || options.clone().metahive(MetaHiveOptions::default());
    assert_eq!(db.partition_with("p", on()).unwrap_err().kind(), ErrorKind::ReservedKey);
    p.delete(b"free\x01").unwrap();
    assert_eq!(db.partition_with("p", on()).unwrap_err().kind(), ErrorKind::ReservedKey);
    check(&p, 70, 0);
    db.partition_with("p", on()).unwrap();
    fill(&p, 70..71);
    check(&p, 71, 71);
}

fn any_key(wanted: bool) -> PartitionOptions {
    PartitionOptions::new().metahive(MetaHiveOptions::new().any_key(wanted))
}

/// Partitions of all three key forms: as new ones are made, and as earlier versions made them.
#[test]
fn any_key_is_accepted_by_default_and_the_key_form_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition_with("p", with_metahive()).unwrap();
    let strict = db.partition_with("strict", any_key(false)).unwrap();
    p.put(b"one\x01", "1").unwrap();
    assert_eq!(strict.put(b"one\x01", "1").unwrap_err().kind(), ErrorKind::ReservedKey);
    drop((p, strict));
    db.close().unwrap();

    let db = Db::open(dir.path()).unwrap();
    let strict = db.partition_with("strict", with_metahive()).unwrap();
    assert_eq!(strict.put(b"one\x01", "1").unwrap_err().kind(), ErrorKind::ReservedKey);
    let p = db.partition("p").unwrap();
    p.put(b"two\x01", "2").unwrap();
    p.put(b"two\0", "3").unwrap();
    check(&p, 3, 3);
    // The form stays when MetaHive is turned off, and is there when it is turned on again.
    let p = db.partition_with("p", PartitionOptions::new().hooks(Hooks::new())).unwrap();
    p.put(b"three\x01", "4").unwrap();
    check(&p, 4, 0);
    drop((p, strict));
    db.close().unwrap();
    let db = Db::open(dir.path()).unwrap();
    for options in [with_metahive(), any_key(true), any_key(false)] {
        let p = db.partition_with("p", options).unwrap();
        p.put(b"three\x01", "5").unwrap();
        p.compact(..).unwrap();
        check(&p, 4, 4);
        let keys = p.keys().collect::<Result<Vec<_>>>().unwrap();
        assert_eq!(keys, [&b"one\x01"[..], b"three\x01", b"two\0", b"two\x01"]);
    }
    db.partition("q").unwrap();
    let refused = db.partition_with("q", any_key(true)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let q = db.partition_with("q", with_metahive()).unwrap();
    assert_eq!(q.put(b"one\x01", "1").unwrap_err().kind(), ErrorKind::ReservedKey);
}

/// Removes every entry with an empty value.
struct DropEmpty;

impl CompactionFilterFactory for DropEmpty {
    fn name(&self) -> &'static str {
        "drop-empty"
    }

    fn decides(&self) -> bool {
        true
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(DropEmpty))
    }
}

impl CompactionFilter for DropEmpty {
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        Ok(if entry.value.is_empty() { Decision::Remove } else { Decision::Keep })
    }
}

/// An application with hooks of its own.
#[derive(Clone)]
struct Application(Arc<MetaHive>);

impl Application {
    fn new() -> Application {
        Application(Arc::new(MetaHive::new(statistics())))
    }
}

fn statistics() -> MetaHiveOptions {
    MetaHiveOptions::new().provider(Arc::new(Statistics::default()))
}

impl HookProvider for Application {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        match name {
            "drop-empty" => Some(Arc::new(DropEmpty)),
            MetaHive::NAME if params == self.0.params() => Some(self.0.clone()),
            _ => None,
        }
    }
}

fn open_with(application: &Application, dir: &Path) -> Db {
    // The source that was added last has none of them, and is asked first.
    let builder = Db::builder(dir).hooks(Arc::new(application.clone()));
    builder.hooks(Arc::new(NoHooks)).open().unwrap()
}

#[test]
fn filters_of_application_and_crate_run_with_metahive_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let application = Application::new();
    let write = |p: &Partition| {
        for key in ["drop 1", "keep 1", "keep 2"] {
            p.put(key, "v").unwrap();
        }
        p.put("keep 3", "").unwrap();
    };
    let db = Db::open(dir.path()).unwrap();
    let options = with_metahive().filter(Arc::new(PrefixDropFilter::new(["drop"])));
    let p = db.partition_with("p", options.filter(Arc::new(DropEmpty))).unwrap();
    write(&p);
    check(&p, 2, 2);
    drop(p);
    db.close().unwrap();

    let db = open_with(&application, dir.path());
    let p = db.partition("p").unwrap();
    write(&p);
    check(&p, 2, 2);
    drop(p);
    db.close().unwrap();

    // Without the application only its own filter is missing.
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    write(&p);
    check(&p, 3, 3);
}

#[test]
fn application_metadata_needs_its_hooks_and_pauses_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let application = Application::new();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition_with("p", PartitionOptions::new().metahive(statistics())).unwrap();
    fill(&p, 0..50);
    check(&p, 50, 50);
    drop(p);
    db.close().unwrap();

    let db = open_with(&application, dir.path());
    let p = db.partition("p").unwrap();
    fill(&p, 40..60);
    check(&p, 60, 60);
    assert_eq!(application.0.counts().faults, 0);
    assert!(application.0.counts().sealed > 0, "the application is asked first");
    drop(p);
    db.close().unwrap();

    // The hooks are missing: all reads work as before, the reserved keys stay reserved, and
    // compactions drop metadata.
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.iter().count(), 60);
    p.put([SUFFIX], "").unwrap();
    p.delete([SUFFIX]).unwrap();
    fill(&p, 0..60);
    check(&p, 60, 0);
    // With the hooks given again, metadata is back for this open.
    let p = db.partition_with("p", PartitionOptions::new().metahive(statistics())).unwrap();
    fill(&p, 0..60);
    check(&p, 60, 60);
    drop(p);
    db.close().unwrap();

    let db = open_with(&application, dir.path());
    let p = db.partition("p").unwrap();
    fill(&p, 60..70);
    check(&p, 70, 70);
    assert_eq!(application.0.counts().faults, 0);
}

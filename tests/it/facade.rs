//! The facade's part: partitions are created with hooks, and found with them again.

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
    assert_eq!(p.put([SUFFIX], "").unwrap_err().kind(), ErrorKind::ReservedKey);
}

#[test]
fn metahive_goes_on_over_data_and_off_and_on_again() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition_with("p", PartitionOptions::new().block_bytes(512)).unwrap();
    fill(&p, 0..50);
    check(&p, 50, 0);

    let on = || p.options().metahive(MetaHiveOptions::default());
    db.partition_with("p", on()).unwrap();
    fill(&p, 50..60);
    check(&p, 60, 60);
    // Options that name no hooks leave them as they are.
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

    // A key of the time without it, and then its tombstone, are in the way.
    let on = || options.clone().metahive(MetaHiveOptions::default());
    assert_eq!(db.partition_with("p", on()).unwrap_err().kind(), ErrorKind::ReservedKey);
    p.delete(b"free\x01").unwrap();
    assert_eq!(db.partition_with("p", on()).unwrap_err().kind(), ErrorKind::ReservedKey);
    check(&p, 70, 0);
    db.partition_with("p", on()).unwrap();
    fill(&p, 70..71);
    check(&p, 71, 71);
}

#[test]
fn with_any_key_every_key_is_welcome_and_metadata_stays() {
    let dir = tempfile::tempdir().unwrap();
    let any_key = || PartitionOptions::new().metahive(MetaHiveOptions::new().any_key(true));
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition_with("p", any_key()).unwrap();
    p.put(b"one\x01", "1").unwrap();
    drop(p);
    db.close().unwrap();

    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    p.put(b"two\x01", "2").unwrap();
    check(&p, 2, 2);
    assert_eq!(p.keys().collect::<Result<Vec<_>>>().unwrap(), [b"one\x01", b"two\x01"]);
    for other in [with_metahive(), PartitionOptions::new().hooks(Hooks::new())] {
        let refused = db.partition_with("p", other).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    db.partition("q").unwrap();
    let refused = db.partition_with("q", any_key()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    check(&p, 2, 2);
}

/// Removes every entry with an empty value.
struct DropEmpty;

impl CompactionFilterFactory for DropEmpty {
    fn name(&self) -> &str {
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

/// An application that knows its own hooks, as any would.
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
    Db::builder(dir).hooks(Arc::new(application.clone())).open().unwrap()
}

#[test]
fn filters_of_the_application_and_of_the_crate_run_beside_metahive_after_reopening() {
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

    // Without the application its own filter is missing, and no other.
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    write(&p);
    check(&p, 3, 3);
}

#[test]
fn metadata_of_the_application_needs_its_hooks_and_rests_without_them() {
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

    // Nobody has the code: all reads as before, the rule holds, and metadata goes.
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.iter().count(), 60);
    assert_eq!(p.put([SUFFIX], "").unwrap_err().kind(), ErrorKind::ReservedKey);
    fill(&p, 0..60);
    check(&p, 60, 0);
    // Given again it is back, for this open.
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

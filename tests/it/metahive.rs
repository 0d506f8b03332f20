//! MetaHive through the whole engine: the same results as without it, damage that is found and
//! repaired or quarantined, nodes without it, power cuts.

mod around;
mod attach;
mod cluster;
mod copies;
mod crash;
mod damage;
mod engine_metadata;
mod exchange;
mod explain;
mod faulty;
mod flips;
mod model;
mod repairs;
mod restore;
mod scrub;
mod silent_damage;
mod spans;
mod verified;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{Fs, MemFs};
use lsm_core::hooks::{
    CompactionFilterFactory, Event, EventListener, HookProvider, Hooks, OwnedEntry,
};
use lsm_core::internals::iter::InternalIter;
use lsm_core::internals::names::FileName;
use lsm_core::internals::sstable::RawMode;
use lsm_core::internals::version::{DbVersion, Missing, PrefixCounts, TableContext, recover};
use lsm_core::types::SeqNo;
use metahive::payload::{Payload, SUFFIX, entry_key};
use metahive::table_seal::TableSeal;
use metahive::{MetaHive, MetaHiveOptions, ScrubOptions, checksum};
use proptest::prelude::*;
use siltstone::{
    BackgroundMode, Builder, Db, ErrorKind, Options, Partition, PartitionOptions, Snapshot,
};
use testkit::Rng;

use crate::store::stepped;

const DIR: &str = "/db";

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Small limits, so that every path runs.
fn small_buffers() -> Options {
    Options::new().write_buffer_bytes(4 << 10).wal_segment_bytes(8 << 10).cache_bytes(64 << 10)
}

fn builder(fs: Arc<dyn Fs>, seed: u64) -> Builder {
    stepped(fs, DIR, seed).options(small_buffers())
}

/// The engine without any hook.
fn plain(fs: &MemFs, seed: u64) -> lsm_core::Db {
    let mut rng = Rng::new(seed);
    lsm_core::Db::builder(DIR)
        .fs(Arc::new(fs.clone()))
        .background(BackgroundMode::Stepped)
        .random(move || rng.next_u64())
        .options(small_buffers())
        .open()
        .unwrap()
}

fn tiny() -> PartitionOptions {
    let options = PartitionOptions::new().block_bytes(256).table_bytes(1 << 10);
    options.level_base_bytes(2 << 10).level0_tables(2).level_multiplier(2)
}

/// Returns the same filter for every job.
#[derive(Clone)]
struct Provider(Arc<MetaHive>);

impl Provider {
    fn new(hive: MetaHive) -> Provider {
        Provider(Arc::new(hive))
    }

    fn hooks(&self) -> Hooks {
        Hooks::new().filter(self.0.clone())
    }
}

impl HookProvider for Provider {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let is_ours = name == MetaHive::NAME && params == self.0.params();
        is_ours.then(|| self.0.clone() as Arc<dyn CompactionFilterFactory>)
    }
}

/// The events that report damage.
#[derive(Default)]
struct Log(Mutex<Vec<Event>>);

impl Log {
    /// The sources of repairs, and the keys and bytes that were quarantined.
    fn take(&self) -> (Vec<String>, Content) {
        let mut repaired = Vec::new();
        let mut quarantined = Content::new();
        for event in self.0.lock().unwrap().drain(..) {
            match event {
                Event::Repaired { source, .. } => repaired.push(source),
                Event::Quarantined { damage, value } => {
                    quarantined.insert(damage.key.unwrap(), value);
                }
                _ => {}
            }
        }
        (repaired, quarantined)
    }
}

impl EventListener for Log {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

fn pairs(range: siltstone::Range) -> Content {
    range.map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
}

/// The entries of the tables of partition `p`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Census {
    entries: u64,
    /// Those of them whose metadata is in the same block and matches.
    sealed: u64,
    hidden: u64,
    /// The number of entries that the seals of the tables state.
    seals: u64,
    tables: u64,
}

impl Census {
    fn assert_all_sealed(&self) {
        assert!(self.entries > 0);
        assert_eq!(
            (self.sealed, self.hidden, self.seals),
            (self.entries, self.entries, self.entries)
        );
    }
}

/// The version that the manifest in memory describes, and the context that opens its tables.
fn recovered(fs: &MemFs) -> (DbVersion, TableContext) {
    let dir = Path::new(DIR);
    let listed = fs.list(dir, "").unwrap();
    let names: Vec<_> = listed.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
    let version = recover(fs, dir, &names).unwrap().unwrap().version;
    let fs = Arc::new(fs.clone());
    let context = TableContext {
        fs,
        dir: dir.to_owned(),
        db_id: version.db_id,
        missing: Missing::Damage,
        cache: None,
        are_mapped: false,
        files: None,
        prefix_counts: PrefixCounts::default(),
    };
    (version, context)
}

fn census(fs: &MemFs) -> Census {
    let (version, context) = recovered(fs);
    let mut census = Census::default();
    for (_, table) in version.partition_named("p").unwrap().tables() {
        let reader = table.reader(&context).unwrap();
        let seal = TableSeal::of(&reader.properties().user, "integrity").unwrap();
        census.seals += seal.map_or(0, |seal| seal.sealed);
        census.tables += 1;
        // By key and sequence number: checksum and block.
        let mut open: BTreeMap<(Vec<u8>, SeqNo), (u64, u64)> = BTreeMap::new();
        let mut entries = reader.raw_iter(RawMode::default());
        entries.seek(None).unwrap();
        while entries.valid() {
            let key = entries.key();
            let value = entries.value();
            let block = entries.origin().0;
            let seq = key.trailer.seq();
            if entries.hidden() {
                census.hidden += 1;
                let owner = open.remove(&(entry_key(key.user).unwrap().to_vec(), seq));
                let payload = Payload::decode(value).unwrap();
                let is_sealed = owner == Some((payload.sum, block)) && payload.seq == seq;
                census.sealed += u64::from(is_sealed);
            } else {
                census.entries += 1;
                let sum = checksum::of_entry(key.user, value, seq, key.trailer.kind().unwrap());
                open.insert((key.user.to_vec(), seq), (sum, block));
            }
            entries.next().unwrap();
        }
    }
    census
}

/// A store and its expected content.
struct Checked {
    fs: MemFs,
    provider: Provider,
    db: Db,
    p: Partition,
    model: Content,
    snapshots: Vec<(Snapshot, Content)>,
}

impl Checked {
    fn open(fs: MemFs, provider: Provider) -> Checked {
        let hooks = provider.hooks();
        let db = builder(Arc::new(fs.clone()), 1).hooks(Arc::new(provider.clone())).open().unwrap();
        let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
        Checked { fs, provider, db, p, model: Content::new(), snapshots: Vec::new() }
    }

    fn reopen(self) -> Checked {
        let Checked { fs, provider, db, p, model, snapshots } = self;
        drop((p, snapshots));
        db.close().unwrap();
        let db = builder(Arc::new(fs.clone()), 2).hooks(Arc::new(provider.clone())).open().unwrap();
        let p = db.partition("p").unwrap();
        Checked { fs, provider, db, p, model, snapshots: Vec::new() }
    }

    fn check(&self, probe: &[u8]) {
        let Checked { p, model, snapshots, .. } = self;
        assert_eq!(&pairs(p.iter()), model);
        let back: Vec<_> = p.iter().rev().map(|pair| pair.unwrap().0.to_vec()).collect();
        assert!(back.iter().rev().eq(model.keys()));
        for key in model.keys().map(Vec::as_slice).chain([probe]) {
            assert_eq!(p.get(key).unwrap().as_deref(), model.get(key).map(|v| &v[..]), "{key:?}");
            let plus = [key, &[SUFFIX]].concat();
            assert_eq!(p.contains(&plus).unwrap(), model.contains_key(&plus));
        }
        let from = p.range(probe.to_vec()..).next().map(|pair| pair.unwrap().0.to_vec());
        assert_eq!(from.as_ref(), model.range(probe.to_vec()..).next().map(|(key, _)| key));
        let before = p.range(..probe.to_vec()).next_back().map(|pair| pair.unwrap().0.to_vec());
        assert_eq!(before.as_ref(), model.range(..probe.to_vec()).next_back().map(|(key, _)| key));
        for (snapshot, then) in snapshots {
            assert_eq!(&pairs(snapshot.iter(p)), then);
        }
        verified::check(self, probe);
    }
}

/// Keys that extend one another with the bytes around the suffix.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0u8..4, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn reads_are_the_same_with_and_without_metahive(
        ops in prop::collection::vec((0u8..10, key(), 0u8..200), 1..150),
        any_key: bool,
    ) {
        let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().any_key(any_key)));
        let mut it = Checked::open(MemFs::new(), provider);
        for (what, key, arg) in ops {
            match what {
                0..4 => {
                    let value = vec![arg; usize::from(arg)];
                    let put = it.p.put(&key, &value);
                    if key.ends_with(&[SUFFIX]) && !any_key {
                        prop_assert_eq!(put.unwrap_err().kind(), ErrorKind::ReservedKey);
                        let delete = it.p.delete(&key).unwrap_err();
                        prop_assert_eq!(delete.kind(), ErrorKind::ReservedKey);
                    } else {
                        put.unwrap();
                        it.model.insert(key.clone(), value);
                    }
                }
                4 if any_key || !key.ends_with(&[SUFFIX]) => {
                    it.p.delete(&key).unwrap();
                    it.model.remove(&key);
                }
                5 if arg % 4 == 0 => it.p.compact(..).unwrap(),
                6 if it.snapshots.len() < 2 => {
                    it.snapshots.push((it.db.snapshot(), it.model.clone()));
                }
                7 if arg % 4 == 0 => it = it.reopen(),
                8 => { it.db.step().unwrap(); }
                _ if arg % 2 == 0 => it.db.flush().unwrap(),
                _ => {}
            }
            it.check(&key);
        }
        it.snapshots.clear();
        it.p.compact(..).unwrap();
        it.check(b"\x02");
        let found = census(&it.fs);
        prop_assert_eq!(found.entries, it.model.len() as u64);
        prop_assert_eq!((found.sealed, found.hidden, found.seals), (found.entries, found.entries, found.entries));
        let counts = it.provider.0.counts();
        prop_assert_eq!((counts.faults, counts.made, counts.orphans_dropped), (0, 0, 0));
    }
}

fn key_of(n: u32) -> Vec<u8> {
    format!("key {n:03}").into_bytes()
}

fn filled(fs: &MemFs, provider: &Provider) -> Checked {
    let mut it = Checked::open(fs.clone(), provider.clone());
    for n in 0..300u32 {
        let key = key_of(n);
        let value = format!("value {n} ").repeat(4);
        it.p.put(&key, &value).unwrap();
        it.model.insert(key, value.into_bytes());
    }
    it.db.flush().unwrap();
    it
}

#[test]
fn a_node_without_metahive_reads_everything_keeps_the_rule_and_cleans_up() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().any_key(false)));
    let it = filled(&fs, &provider);
    it.p.compact(..).unwrap();
    census(&fs).assert_all_sealed();
    let Checked { db, p, model, .. } = it;
    drop(p);
    db.close().unwrap();

    let db = plain(&fs, 3);
    let p = db.partition("p").unwrap();
    assert_eq!(pairs(p.iter()), model);
    let refused = p.put(b"x\x01", "v").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReservedKey);
    for key in model.keys() {
        p.put(key, &model[key]).unwrap();
    }
    p.compact(..).unwrap();
    assert_eq!(pairs(p.iter()), model);
    let found = census(&fs);
    assert_eq!((found.entries, found.hidden, found.seals), (model.len() as u64, 0, 0));
    drop(p);
    db.close().unwrap();

    // Back on a node with it, compactions create the missing metadata.
    let db = builder(Arc::new(fs.clone()), 4).hooks(Arc::new(provider.clone())).open().unwrap();
    let p = db.partition("p").unwrap();
    for key in model.keys() {
        p.put(key, &model[key]).unwrap();
    }
    p.compact(..).unwrap();
    assert_eq!(pairs(p.iter()), model);
    census(&fs).assert_all_sealed();
    assert!(provider.0.counts().made > 0);
    assert_eq!(provider.0.counts().faults, 0);
}

#[test]
fn an_existing_partition_accepts_metahive_unless_it_has_reserved_keys() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let db = builder(Arc::new(fs.clone()), 5).open().unwrap();
    let p = db.partition_with("p", tiny()).unwrap();
    for n in 0..100u8 {
        p.put([n, b'k'], [n; 40]).unwrap();
    }
    p.put(b"bad\x01", "v").unwrap();
    db.flush().unwrap();
    let refused = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReservedKey);
    assert!(refused.to_string().contains("bad\\x01"), "{refused}");
    p.delete(b"bad\x01").unwrap();
    // A tombstone would go to a sealed table, where only metadata may have such a key.
    let refused = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReservedKey);
    p.compact(..).unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    p.put("one", "more").unwrap();
    p.compact(..).unwrap();
    assert_eq!(p.iter().count(), 101);
    p.put("and", "one").unwrap();
    p.compact(..).unwrap();
    assert_eq!(p.iter().count(), 102);
    assert_eq!(provider.0.counts().faults, 0);
}

fn kind<T>(result: siltstone::Result<T>) -> Result<(), ErrorKind> {
    result.map(drop).map_err(|error| error.kind())
}

#[test]
fn a_key_with_the_ending_of_metadata_is_refused_wherever_it_would_come_in() {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 6).open().unwrap();
    let hive = tiny().metahive(MetaHiveOptions::new().any_key(false));
    let p = db.partition_with("p", hive.clone()).unwrap();
    let other = db.partition_with("other", tiny()).unwrap();
    let seq = db.visible_seq();
    let refused = Err(ErrorKind::ReservedKey);
    assert_eq!(kind(p.put(b"k\x01", "v").map(drop)), refused);
    assert_eq!(kind(p.delete(b"\x01").map(drop)), refused);
    // A whole batch, over all of its partitions.
    let batch = db.batch().put(&other, "a", "1").put(&p, "b", "2").put(&p, b"k\x01", "3");
    assert_eq!(kind(batch.commit(siltstone::Durability::Os).map(drop)), refused);
    assert_eq!((db.visible_seq(), other.iter().count(), p.iter().count()), (seq, 0, 0));
    // An export, also one of a node that accepts such keys.
    other.put(b"k\x01", "v").unwrap();
    other.put("a", "1").unwrap();
    other.export(.., "/export").unwrap();
    assert_eq!(kind(p.ingest("/export").map(drop)), refused);
    assert_eq!(p.iter().count(), 0);
    // A partition that is created with MetaHive accepts these keys as any other, and hides their
    // zero byte.
    let every = db.partition_with("every", tiny().metahive(MetaHiveOptions::default())).unwrap();
    let keys = [&b"\0"[..], b"\0\0", b"\0\x01", b"\x01", b"\x01\0", b"\x01\x01", b"k\x01"];
    for key in keys {
        every.put(key, key).unwrap();
    }
    every.compact(..).unwrap();
    assert!(every.keys().map(|key| key.unwrap().to_vec()).eq(keys.map(<[u8]>::to_vec)));
    for key in keys {
        assert_eq!(every.verified_get(key).unwrap().unwrap().value[..], *key);
    }
    assert!(every.scrub(ScrubOptions::default()).unwrap().is_sound());
}

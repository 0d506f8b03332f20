//! A cluster of three nodes, one of them with MetaHive: section 5.3 of the MetaHive paper.
//!
//! A balancer shards by key prefix and moves prefixes between the nodes, as tables, while writes
//! and reads continue. Two nodes are old: they run the engine without MetaHive. The node with
//! MetaHive has faulty memory: one entry in a hundred gets a flipped bit between the read from a
//! table and the write to another table. The bit is in the checksum of the metadata, as in the
//! paper, or in the second checksum of the metadata, or in key, value, sequence number or kind of
//! the entry. Entries that came from an old node and have no metadata yet get no flipped bits,
//! because nothing can detect these.
//!
//! The example shows for each fault that it is detected: the events of the engine name file, block
//! and key of each damaged entry, and for every flipped bit there must be such an event.
//!
//! `cargo run --release --example heterogeneous_cluster [SEED]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsm_core::codec::checksum64_seeded;
use lsm_core::hooks::{Origin, OwnedEntry};
use lsm_core::raw::{RawMode, Walk};
use lsm_core::types::{EntryKind, FileNo, SeqNo};
use metahive::payload::{PAYLOAD_BYTES, SUFFIX, entry_key};
use metahive::{ScrubOptions, scrub};
use siltstone::{
    Damage, Durability, Event, EventListener, MetaHive, Options, PartitionOptions, Result,
};
use testkit::Rng;

/// The size of a run.
pub struct Plan {
    /// The folder of the databases.
    pub folder: PathBuf,
    /// The seed of everything that is random except the scheduling of threads.
    pub seed: u64,
    /// Number of key prefixes.
    pub prefixes: usize,
    /// Number of keys of each prefix.
    pub keys: u64,
    /// Number of prefixes that are moved, one after another.
    pub moves: usize,
}

/// The observations of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Entries that were moved in tables.
    pub moved: u64,
    /// Operations of the application in the meantime.
    pub operations: u64,
    /// Flipped bits, by field.
    pub faults: BTreeMap<&'static str, u64>,
    /// Flipped bits that no event named.
    pub undetected: Vec<Struck>,
    /// Damage that events named and that was not injected.
    pub invented: Vec<Damage>,
    /// Entries that arrived on another node with other content, or not at all.
    pub faults_that_left: u64,
    /// Entries on the node with MetaHive that disagree with their metadata in the end.
    pub faults_that_stayed: u64,
    /// The counters of MetaHive.
    pub counts: metahive::Counts,
    /// Metadata entries that old nodes received in tables.
    pub metadata_handed_over: u64,
    /// Metadata entries that a reader of an old node sees.
    pub metadata_visible: u64,
    /// Metadata entries on old nodes after they compacted.
    pub metadata_left: u64,
    /// Entries on the node with MetaHive that have no metadata after its compaction.
    pub unsealed: u64,
    /// Reads that did not return the last write.
    pub wrong_values: u64,
}

/// The node with MetaHive; the others are old.
const NEW_NODE: usize = 0;
const NODES: usize = 3;
/// The fields of an entry and of its metadata in which faults are injected.
pub const FIELDS: usize = 6;

struct Node {
    db: lsm_core::Db,
    data: lsm_core::Partition,
}

/// The key, and the value unless it was deleted.
type Write = (Vec<u8>, Option<Vec<u8>>);

/// A key prefix: its node, and the writes of the application.
struct Shard {
    owner: usize,
    truth: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The writes during a move, in order.
    arriving: Option<Vec<Write>>,
}

struct Cluster {
    nodes: Vec<Node>,
    shards: Vec<Mutex<Shard>>,
    keys: u64,
    operations: AtomicU64,
    wrong_values: AtomicU64,
}

/// The name of a damaged entry in events: its file, the offset of its block, and its key.
type Name = (PathBuf, u64, Vec<u8>);

/// A flipped bit.
#[derive(Clone, Debug)]
pub struct Struck {
    /// The field of the entry or its metadata.
    pub field: &'static str,
    /// The table's file.
    pub file: PathBuf,
    /// Offset of the block in it, and which entry of the block.
    pub place: (u64, u32),
    /// The key that the report of the damage has.
    pub key: Vec<u8>,
}

/// The memory of the node with MetaHive. It flips bits of the same entries again and again, as bad
/// memory does.
#[derive(Default)]
struct BadMemory {
    seed: u64,
    node: Mutex<Option<lsm_core::Partition>>,
    /// The files of tables whose entries have metadata, as far as they are known.
    has_metadata: Mutex<BTreeMap<FileNo, Option<PathBuf>>>,
    /// No two have the same name.
    struck: Mutex<BTreeMap<Name, Struck>>,
    /// The damage that events named.
    reported: Mutex<BTreeMap<Name, Damage>>,
}

impl EventListener for BadMemory {
    fn on_event(&self, event: &Event) {
        let Event::Corruption(damage) = event else { return };
        let offset = damage.offset.unwrap_or_default();
        let key = damage.key.clone().unwrap_or_default();
        lock(&self.reported).insert((damage.file.clone(), offset, key), damage.clone());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flip(bytes: &mut [u8], bit: u64) {
    let bit = (bit % (8 * bytes.len() as u64)) as usize;
    bytes[bit / 8] ^= 1 << (bit % 8);
}

impl BadMemory {
    /// The file of a table whose entries have metadata.
    fn file_with_metadata(&self, file: FileNo) -> Option<PathBuf> {
        lock(&self.has_metadata)
            .entry(file)
            .or_insert_with(|| {
                let walk = Walk::open(lock(&self.node).as_ref()?).ok()?;
                let table = walk.tables().find(|table| table.meta().file == file)?;
                (table.meta().hidden > 0).then(|| table.path())
            })
            .clone()
    }

    fn strike(&self, at: Origin, entry: &mut OwnedEntry) {
        let Some(number) = at.file else { return };
        let place = [number.0, at.block_offset, u64::from(at.entry)].map(u64::to_le_bytes).concat();
        let draw = checksum64_seeded(&place, self.seed);
        if !draw.is_multiple_of(100) {
            return;
        }
        let Some(file) = self.file_with_metadata(number) else { return };
        let mut hit = entry.clone();
        let Some(field) = flip_one(&mut hit, draw / 100) else { return };
        // The event of damaged metadata has the key of its entry.
        let reported =
            if is_metadata(entry) { entry_key(&hit.key).unwrap_or(&hit.key) } else { &hit.key };
        let key = reported.to_vec();
        let place = (at.block_offset, at.entry);
        let mut struck = lock(&self.struck);
        let name = (file.clone(), at.block_offset, key.clone());
        let known = struck.entry(name).or_insert(Struck { field, file, place, key });
        // Another version of the key in the same block would have the same name in events.
        if known.place == place {
            *entry = hit;
        }
    }

    /// Compares the injected faults with the reported ones.
    fn report(&self, report: &mut Report) {
        let struck = lock(&self.struck);
        let reported = lock(&self.reported);
        for (name, fault) in &*struck {
            *report.faults.entry(fault.field).or_default() += 1;
            if !reported.contains_key(name) {
                report.undetected.push(fault.clone());
            }
        }
        let invented = reported.iter().filter(|(name, _)| !struck.contains_key(*name));
        report.invented = invented.map(|(_, damage)| damage.clone()).collect();
    }
}

fn is_metadata(entry: &OwnedEntry) -> bool {
    entry_key(&entry.key).is_some() && entry.value.len() == PAYLOAD_BYTES
}

/// Flips a bit that `draw` chooses, and returns its field.
fn flip_one(entry: &mut OwnedEntry, draw: u64) -> Option<&'static str> {
    let bit = draw / 4;
    match (is_metadata(entry), draw % 4) {
        (true, 0 | 1) => {
            flip(&mut entry.value[8..16], bit);
            Some("checksum of the metadata")
        }
        (true, _) => {
            flip(&mut entry.value[16..], bit);
            Some("second checksum of the metadata")
        }
        (false, 1) if !entry.value.is_empty() => {
            flip(&mut entry.value, bit);
            Some("value")
        }
        (false, 0 | 1) => {
            flip(&mut entry.key, bit);
            Some("key")
        }
        (false, 2) => {
            entry.seq = SeqNo::new(entry.seq.get() ^ 1 << (bit % 56))?;
            Some("sequence number")
        }
        (false, _) => {
            // One flipped bit turns a value into a deletion or a poison record.
            let mask = if bit.is_multiple_of(2) { 1 } else { 4 };
            entry.kind = EntryKind::from_u8(entry.kind as u8 ^ mask)?;
            Some("kind")
        }
    }
}

/// Small, so that a short run has many flushes and compactions.
fn options() -> Options {
    Options::new().write_buffer_bytes(1 << 20).wal_segment_bytes(256 << 10).cache_bytes(4 << 20)
}

fn open_nodes(folder: &Path, hive: &Arc<MetaHive>, memory: &Arc<BadMemory>) -> Result<Vec<Node>> {
    let small = PartitionOptions::new().table_bytes(64 << 10).level_base_bytes(256 << 10);
    let bad = memory.clone();
    let builder = siltstone::Db::builder(folder.join("new")).options(options());
    let builder = builder.listener(memory.clone());
    let new = builder.inject(move |at, entry| bad.strike(at, entry)).open()?;
    let data = new.partition_with("data", small.clone().filter(hive.clone()))?;
    let mut nodes = vec![Node { db: new.engine().clone(), data: data.engine().clone() }];
    for name in ["old 1", "old 2"] {
        let db = lsm_core::Db::builder(folder.join(name)).options(options()).open()?;
        let data = db.partition_with("data", small.stored().clone(), None)?;
        nodes.push(Node { db, data });
    }
    Ok(nodes)
}

fn prefix(shard: usize) -> String {
    format!("{shard:02}/")
}

impl Cluster {
    /// Writes or reads one key through the balancer.
    fn operate(&self, rng: &mut Rng) -> Result<()> {
        let at = rng.below(self.shards.len() as u64) as usize;
        let key = format!("{}{:05}", prefix(at), rng.below(self.keys)).into_bytes();
        let mut shard = lock(&self.shards[at]);
        let node = &self.nodes[shard.owner];
        let what = rng.below(10);
        if what < 4 {
            let found = node.data.get(&key)?;
            if found.as_deref() != shard.truth.get(&key).map(|value| &value[..]) {
                self.wrong_values.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            let value = (what < 9).then(|| format!("{:016x}", rng.next_u64()).repeat(5));
            let value = value.map(String::into_bytes);
            write(&node.data, &key, value.as_deref())?;
            if let Some(arriving) = &mut shard.arriving {
                arriving.push((key.clone(), value.clone()));
            }
            match value {
                Some(value) => shard.truth.insert(key, value),
                None => shard.truth.remove(&key),
            };
        }
        self.operations.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Moves a prefix to another node: first its tables, then the writes during the move.
    fn move_prefix(&self, at: usize, to: usize, folder: &Path, report: &mut Report) -> Result<()> {
        let from = {
            let mut shard = lock(&self.shards[at]);
            shard.arriving = Some(Vec::new());
            shard.owner
        };
        let source = &self.nodes[from];
        let target = &self.nodes[to];
        let range = prefix(at)..format!("{at:02}0");
        report.moved += source.data.export(range, folder)?.entries;
        target.data.ingest(folder)?;
        let mut shard = lock(&self.shards[at]);
        for (key, value) in shard.arriving.take().into_iter().flatten() {
            write(&target.data, &key, value.as_deref())?;
        }
        shard.owner = to;
        let mut expected = shard.truth.clone();
        for pair in target.data.prefix(prefix(at)) {
            let (key, value) = pair?;
            let is_right = expected.remove(&*key).is_some_and(|truth| truth[..] == value[..]);
            report.faults_that_left += u64::from(!is_right);
        }
        report.faults_that_left += expected.len() as u64;
        drop(shard);
        if to != NEW_NODE && from == NEW_NODE {
            // Includes entries that no read returns: sequence numbers, and overwritten versions.
            let arrived = scrub(&target.data, ScrubOptions::new())?;
            report.faults_that_left += arrived.faults().count() as u64;
            report.metadata_handed_over += hidden_entries(target)?;
            report.metadata_visible += visible_metadata(target)?;
        }
        let mut batch = source.db.batch();
        for pair in source.data.prefix(prefix(at)) {
            batch = batch.delete(&source.data, pair?.0);
        }
        batch.commit(Durability::default())?;
        Ok(())
    }
}

fn write(data: &lsm_core::Partition, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    match value {
        Some(value) => data.put(key, value)?,
        None => data.delete(key)?,
    };
    Ok(())
}

/// Metadata entries in the tables of a node.
fn hidden_entries(node: &Node) -> Result<u64> {
    let mut hidden = 0;
    for table in Walk::open(&node.data)?.tables() {
        let mut entries = table.walk(RawMode::Streaming)?;
        while let Some(entry) = entries.next()? {
            hidden += u64::from(entry.hidden);
        }
    }
    Ok(hidden)
}

/// Metadata that a user of the node can see, by a scan or a get.
fn visible_metadata(node: &Node) -> Result<u64> {
    let mut visible = 0;
    for key in node.data.keys() {
        let key = key?;
        let plus = [&key[..], &[SUFFIX]].concat();
        visible += u64::from(key.ends_with(&[SUFFIX])) + u64::from(node.data.contains(plus)?);
    }
    Ok(visible)
}

/// Runs a cluster.
pub fn run(plan: &Plan) -> Result<Report> {
    let hive = Arc::new(MetaHive::default());
    let memory = Arc::new(BadMemory { seed: plan.seed, ..BadMemory::default() });
    let shard = |at| Shard { owner: at % NODES, truth: BTreeMap::new(), arriving: None };
    let cluster = Cluster {
        nodes: open_nodes(&plan.folder, &hive, &memory)?,
        shards: (0..plan.prefixes).map(|at| Mutex::new(shard(at))).collect(),
        keys: plan.keys,
        operations: AtomicU64::new(0),
        wrong_values: AtomicU64::new(0),
    };
    let mut rng = Rng::new(plan.seed);
    *lock(&memory.node) = Some(cluster.nodes[NEW_NODE].data.clone());
    for _ in 0..plan.prefixes as u64 * plan.keys {
        cluster.operate(&mut rng)?;
    }
    let mut report = Report::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let mut own = rng.fork();
        let cluster = &cluster;
        let is_over = &is_over;
        let application = scope.spawn(move || -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                cluster.operate(&mut own)?;
            }
            Ok(())
        });
        let moved = (0..plan.moves).try_for_each(|number| {
            let at = rng.below(plan.prefixes as u64) as usize;
            let to = (lock(&cluster.shards[at]).owner + 1 + rng.below(2) as usize) % NODES;
            let folder = plan.folder.join(format!("move {number}"));
            cluster.move_prefix(at, to, &folder, &mut report)
        });
        is_over.store(true, Ordering::Relaxed);
        application.join().expect("the application does not panic").and(moved)
    })?;

    for node in &cluster.nodes {
        node.data.compact(..)?;
        node.db.wait_idle()?;
    }
    for (at, shard) in cluster.shards.iter().enumerate() {
        let shard = lock(shard);
        let mut found = BTreeMap::new();
        for pair in cluster.nodes[shard.owner].data.prefix(prefix(at)) {
            let (key, value) = pair?;
            found.insert(key.to_vec(), value.to_vec());
        }
        report.wrong_values += u64::from(found != shard.truth);
    }
    for node in &cluster.nodes[NEW_NODE + 1..] {
        report.metadata_left += hidden_entries(node)?;
        report.metadata_visible += visible_metadata(node)?;
    }
    let scrubbed = scrub(&cluster.nodes[NEW_NODE].data, ScrubOptions::new())?;
    report.unsealed = scrubbed.counts.unsealed;
    report.faults_that_stayed = scrubbed.faults().count() as u64;
    report.operations = cluster.operations.into_inner();
    report.wrong_values += cluster.wrong_values.into_inner();
    report.counts = hive.counts();
    // It would keep the node open.
    lock(&memory.node).take();
    memory.report(&mut report);
    Ok(report)
}

fn main() -> Result<()> {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let folder =
        std::env::temp_dir().join(format!("siltstone-cluster-{}-{seed}", std::process::id()));
    println!("seed {seed}");
    let plan = Plan { folder: folder.clone(), seed, prefixes: 12, keys: 1_000, moves: 36 };
    let report = run(&plan)?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");

    let injected: u64 = report.faults.values().sum();
    println!("{:>9} operations of the application", report.operations);
    println!("{:>9} entries moved in {} moves", report.moved, plan.moves);
    println!("{injected:>9} faults injected, one bit each:");
    for (field, count) in &report.faults {
        println!("{count:>13} {field}");
    }
    println!("{:>9} of them were detected by no one", report.undetected.len());
    println!("{:>9} reports of damage that was not injected", report.invented.len());
    println!("{:>9} damaged entries on the way to another node", report.faults_that_left);
    println!("{:>9} entries without metadata got theirs", report.counts.made);
    println!("{:>9} metadata entries handed to old nodes in tables", report.metadata_handed_over);
    println!("{:>9} metadata entries visible on old nodes", report.metadata_visible);
    println!("{:>9} metadata entries left on old nodes after compaction", report.metadata_left);
    println!("{:>9} entries without metadata on the new node", report.unsealed);
    println!("{:>9} wrong values served", report.wrong_values);
    check(&report);
    assert_eq!(report.faults.len(), FIELDS, "each field was hit: {:?}", report.faults);
    Ok(())
}

/// Checks the facts that must hold after every run.
pub fn check(report: &Report) {
    assert!(report.moved > 0 && report.metadata_handed_over > 0);
    assert!(report.undetected.is_empty(), "undetected: {:#?}", report.undetected);
    assert!(report.invented.is_empty(), "never made: {:#?}", report.invented);
    assert_eq!((report.faults_that_left, report.faults_that_stayed), (0, 0), "undetected faults");
    assert!(report.counts.made > 0, "entries from old nodes get metadata");
    assert_eq!((report.metadata_visible, report.metadata_left), (0, 0));
    assert_eq!((report.unsealed, report.wrong_values), (0, 0));
}

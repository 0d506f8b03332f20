//! A cluster of three nodes of which one has MetaHive: section 5.3 of the MetaHive paper.
//!
//! A balancer shards by key prefix and moves prefixes between the nodes, as tables, while writes
//! and reads go on. Two nodes are old: the bare engine, which knows nothing of metadata. In the
//! memory of the node with MetaHive one entry in a hundred has a bit flipped between being read
//! from a table and being written to another: in the checksum of its metadata, as in the paper,
//! and also in the metadata's second checksum or sequence number, in key, value, sequence number
//! or kind of the entry itself. Spared are entries that came from an old node and have no metadata
//! yet: nothing can tell whether those are what was written.
//!
//! `cargo run --release --example heterogeneous_cluster [SEED]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsm_core::codec::checksum64_seeded;
use lsm_core::hooks::{Origin, OwnedEntry};
use lsm_core::raw::{RawMode, Walk};
use lsm_core::types::{EntryKind, FileNo, SeqNo};
use metahive::payload::{PAYLOAD_BYTES, SUFFIX, entry_key};
use metahive::{ScrubOptions, scrub};
use siltstone::{Durability, MetaHive, Options, PartitionOptions, Result};
use testkit::Rng;

/// The size of a run.
pub struct Plan {
    /// The folder of the databases.
    pub folder: PathBuf,
    /// Of all that is random but the threads' turns.
    pub seed: u64,
    /// Key prefixes.
    pub prefixes: usize,
    /// Keys of each.
    pub keys: u64,
    /// Prefixes that are moved, one after the other.
    pub moves: usize,
}

/// The observations of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Entries that were handed over as tables.
    pub moved: u64,
    /// Operations of the application meanwhile.
    pub operations: u64,
    /// Flipped bits, by field.
    pub faults: BTreeMap<&'static str, u64>,
    /// Entries that came to another node different from what was written, or not at all.
    pub faults_that_left: u64,
    /// Entries on the node with MetaHive that disagree with their metadata in the end.
    pub faults_that_stayed: u64,
    /// The counters of MetaHive.
    pub counts: metahive::Counts,
    /// Metadata entries that old nodes were handed inside of tables.
    pub metadata_handed_over: u64,
    /// Metadata entries that a reader of an old node sees.
    pub metadata_visible: u64,
    /// Metadata entries on old nodes after they compacted.
    pub metadata_left: u64,
    /// Entries on the node with MetaHive that have no metadata after it compacted.
    pub unsealed: u64,
    /// Answers that were not what was written last.
    pub wrong_values: u64,
}

/// The node with MetaHive; the others are old.
const NEW_NODE: usize = 0;
const NODES: usize = 3;

struct Node {
    db: lsm_core::Db,
    data: lsm_core::Partition,
}

/// Key, and value unless it was deleted.
type Write = (Vec<u8>, Option<Vec<u8>>);

/// A key prefix: who has it, and what the application wrote.
struct Shard {
    owner: usize,
    truth: BTreeMap<Vec<u8>, Vec<u8>>,
    /// While it moves: what is written meanwhile, in order.
    arriving: Option<Vec<Write>>,
}

struct Cluster {
    nodes: Vec<Node>,
    shards: Vec<Mutex<Shard>>,
    keys: u64,
    operations: AtomicU64,
    wrong_values: AtomicU64,
}

/// Which entries of the node with MetaHive have a flipped bit, always the same ones: memory that
/// is bad stays bad.
#[derive(Default)]
struct BadMemory {
    seed: u64,
    node: Mutex<Option<lsm_core::Partition>>,
    /// Tables whose entries have metadata, as far as is known.
    has_metadata: Mutex<BTreeMap<FileNo, bool>>,
    hit: Mutex<BTreeSet<(FileNo, u64, u32)>>,
    fields: Mutex<BTreeMap<&'static str, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flip(bytes: &mut [u8], bit: u64) {
    let bit = (bit % (8 * bytes.len() as u64)) as usize;
    bytes[bit / 8] ^= 1 << (bit % 8);
}

impl BadMemory {
    fn has_metadata(&self, file: FileNo) -> bool {
        let look = || {
            let walk = Walk::open(lock(&self.node).as_ref()?).ok()?;
            let table = walk.tables().find(|table| table.meta().file == file)?;
            Some(table.meta().hidden > 0)
        };
        *lock(&self.has_metadata).entry(file).or_insert_with(|| look().unwrap_or(false))
    }

    fn strike(&self, at: Origin, entry: &mut OwnedEntry) {
        let Some(file) = at.file else { return };
        let place = [file.0, at.block_offset, u64::from(at.entry)].map(u64::to_le_bytes).concat();
        let draw = checksum64_seeded(&place, self.seed);
        if !draw.is_multiple_of(100) || !self.has_metadata(file) {
            return;
        }
        let field = draw / 100 % 4;
        let bit = draw / 400;
        let is_metadata = entry_key(&entry.key).is_some() && entry.value.len() == PAYLOAD_BYTES;
        let name = match (is_metadata, field) {
            (true, 0 | 1) => {
                flip(&mut entry.value[8..16], bit);
                "checksum of the metadata"
            }
            (true, 2) => {
                flip(&mut entry.value[16..], bit);
                "second checksum of the metadata"
            }
            (true, _) => {
                flip(&mut entry.value[..8], bit);
                "sequence number in the metadata"
            }
            (false, 1) if !entry.value.is_empty() => {
                flip(&mut entry.value, bit);
                "value"
            }
            (false, 0 | 1) => {
                flip(&mut entry.key, bit);
                "key"
            }
            (false, 2) => {
                let flipped = SeqNo::new(entry.seq.get() ^ 1 << (bit % 56));
                entry.seq = flipped.expect("56 bits");
                "sequence number"
            }
            (false, _) => {
                // Of a value one bit makes a deletion or a record known to be damaged.
                let mask = if bit.is_multiple_of(2) { 1 } else { 4 };
                let Some(kind) = EntryKind::from_u8(entry.kind as u8 ^ mask) else { return };
                entry.kind = kind;
                "kind"
            }
        };
        if lock(&self.hit).insert((file, at.block_offset, at.entry)) {
            *lock(&self.fields).entry(name).or_default() += 1;
        }
    }
}

/// Small, so that a short life sees many flushes and compactions.
fn options() -> Options {
    Options::new().write_buffer_bytes(1 << 20).wal_segment_bytes(256 << 10).cache_bytes(4 << 20)
}

fn open_nodes(folder: &Path, hive: &Arc<MetaHive>, memory: &Arc<BadMemory>) -> Result<Vec<Node>> {
    let small = PartitionOptions::new().table_bytes(64 << 10).level_base_bytes(256 << 10);
    let bad = memory.clone();
    let builder = siltstone::Db::builder(folder.join("new")).options(options());
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

    /// Moves a prefix to another node: its tables first, then what was written meanwhile.
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
            // Also of what nobody reads: sequence numbers, and versions that were overwritten.
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

/// Metadata that a user of the node can see, by scanning or by asking for it.
fn visible_metadata(node: &Node) -> Result<u64> {
    let mut visible = 0;
    for key in node.data.keys() {
        let key = key?;
        let plus = [&key[..], &[SUFFIX]].concat();
        visible += u64::from(key.ends_with(&[SUFFIX])) + u64::from(node.data.contains(plus)?);
    }
    Ok(visible)
}

/// The life of a cluster.
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
    report.faults = lock(&memory.fields).clone();
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
    removed.expect("nobody else uses the folder");

    let injected: u64 = report.faults.values().sum();
    println!("{:>9} operations of the application", report.operations);
    println!("{:>9} entries moved in {} moves", report.moved, plan.moves);
    println!("{injected:>9} faults injected, one bit each:");
    for (field, count) in &report.faults {
        println!("{count:>13} {field}");
    }
    let detected = injected - report.faults_that_left.min(injected);
    println!("{detected:>9} faults detected before the data left the node");
    println!("{:>9} of them by a second run, the others mended on the way", report.counts.faults);
    println!("{:>9} entries without metadata got theirs", report.counts.made);
    println!("{:>9} metadata entries handed to old nodes in tables", report.metadata_handed_over);
    println!("{:>9} metadata entries visible on old nodes", report.metadata_visible);
    println!("{:>9} metadata entries left on old nodes after compaction", report.metadata_left);
    println!("{:>9} entries without metadata on the new node", report.unsealed);
    println!("{:>9} wrong values served", report.wrong_values);
    check(&report);
    Ok(())
}

/// Checks the facts that must hold after every run.
pub fn check(report: &Report) {
    let injected: u64 = report.faults.values().sum();
    assert!(injected > 0 && report.moved > 0 && report.metadata_handed_over > 0);
    assert_eq!((report.faults_that_left, report.faults_that_stayed), (0, 0), "undetected faults");
    assert!(report.counts.faults + report.counts.metadata_rebuilt >= injected);
    assert!(report.counts.made > 0, "entries from old nodes get metadata");
    assert_eq!((report.metadata_visible, report.metadata_left), (0, 0));
    assert_eq!((report.unsealed, report.wrong_values), (0, 0));
}

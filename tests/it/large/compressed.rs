//! Values that are compressed in their chunk files: they read back in every way, use the space of
//! their stored bytes, and keep their form when they move.

use siltstone::hooks::{CompactionFilterFactory, HookProvider, ValueStoreFactory};
use siltstone::large_values::BlobStat;
use siltstone::stream::{StreamExport, StreamImport};

use super::*;

/// Sub-blocks that compress, and others that do not; the last byte differs between values.
fn mixed(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut value = vec![b'v'; len];
    for (index, sub_block) in value.chunks_mut(256).enumerate() {
        if rng.below(2) == 1 || index % 5 == 4 {
            rng.fill(sub_block);
        }
    }
    if let Some(last) = value.last_mut() {
        *last = rng.next_u64() as u8;
    }
    value
}

fn stat(p: &Partition, key: &str) -> BlobStat {
    p.stat_blob(key).unwrap().unwrap()
}

#[test]
fn compressed_values_around_every_edge_read_back_in_every_way() {
    check_every_edge(compressed(), mixed);
    // None of their sub-blocks is compressed.
    check_every_edge(compressed(), value);
    check_every_edge(compressed().metahive(MetaHiveOptions::default()), |_, len| vec![7; len]);
}

#[test]
fn compressed_values_take_the_space_of_their_stored_bytes_which_comes_back() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", compressed()).unwrap();
    for n in 0..40_u8 {
        p.put([n], vec![n; 5000]).unwrap();
    }
    p.put("random", value(&mut Rng::from_env_or(8), 5000)).unwrap();
    p.flush().unwrap();
    db.wait_idle().unwrap();
    let space = p.space().unwrap();
    assert_eq!(space.total_bytes, chunk_bytes(&fs, "/db"));
    let headers = 64 * p.chunks().unwrap().len() as u64;
    assert_eq!((space.live_bytes + headers, space.dead_bytes), (space.total_bytes, 0));
    assert!(space.total_bytes < 40 * 800 + 6000, "{space:?}");
    let random = stat(&p, "random");
    assert_eq!((random.len, random.stored_len), (5000, 5000));
    for n in 0..40_u8 {
        p.delete([n]).unwrap();
    }
    p.delete("random").unwrap();
    assert!(p.wait_reclaimed(Duration::from_secs(60)).unwrap());
    assert_eq!((chunk_bytes(&fs, "/db"), p.space().unwrap().total_bytes), (0, 0));
}

#[test]
fn values_that_move_keep_their_form_and_their_hash() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", compressed()).unwrap();
    let mut rng = Rng::from_env_or(14);
    for n in 0..40 {
        p.put(format!("{n:02}"), mixed(&mut rng, 1000)).unwrap();
    }
    rest(&db, &clock);
    // New values are not compressed from now on, and old ones stay as they are.
    let p = db.partition_with("p", options()).unwrap();
    p.put("plain", vec![1; 3000]).unwrap();
    assert_eq!(stat(&p, "plain").stored_len, 3000);
    for n in (0..40).filter(|n| n % 3 != 1) {
        p.delete(format!("{n:02}")).unwrap();
    }
    let before = content(&p);
    let stored: Vec<_> = before.keys().map(|key| p.stat_blob(key).unwrap()).collect();
    rest(&db, &clock);
    let moved = value_store(&db).moved_bytes;
    let bytes: u64 = stored.iter().flatten().map(|stat| stat.stored_len).sum();
    assert!(moved > 1000 && moved < bytes, "{moved} stored bytes moved, of {bytes}");
    assert_eq!(content(&p), before);
    let after: Vec<_> = before.keys().map(|key| p.stat_blob(key).unwrap()).collect();
    assert_eq!(after, stored);
    assert!(db.verify(Default::default()).unwrap().is_sound());
    let p = db.partition_with("p", options().large_values(LargeValueOptions::off())).unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!((chunk_bytes(&fs, "/db"), content(&p)), (0, before));
}

/// Records the parameters of the value store at an open.
#[derive(Clone, Default)]
struct Params(Arc<Mutex<Vec<u8>>>);

impl HookProvider for Params {
    fn compaction_filter(&self, _: &str, _: &[u8]) -> Option<Arc<dyn CompactionFilterFactory>> {
        None
    }

    fn value_store(&self, _: &str, params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        *self.0.lock().unwrap() = params.to_vec();
        None
    }
}

/// A program that does not know compressed values must not open them after compression is turned
/// off: they are in the log and in tables.
#[test]
fn a_partition_that_had_compressed_values_keeps_the_version_of_its_parameters() {
    for (options, version) in [(vec![options()], 1), (vec![compressed(), options()], 2)] {
        let fs = MemFs::new();
        let db = open(&fs);
        for options in options {
            db.partition_with("p", options).unwrap().put("k", vec![1; 3000]).unwrap();
        }
        db.close().unwrap();
        let heard = Params::default();
        let builder = stepped(Arc::new(fs), "/db", 7).hooks(Arc::new(heard.clone()));
        let db = builder.open().unwrap();
        assert_eq!(heard.0.lock().unwrap()[0], version);
        assert_eq!(db.partition("p").unwrap().get("k").unwrap().unwrap(), vec![1; 3000]);
    }
}

#[test]
fn a_value_is_mapped_unless_a_part_of_it_is_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let clock = ManualClock::default();
    let db = open_with(Arc::new(OsFs), path.to_str().unwrap(), &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    p.put("plain", vec![5; 3000]).unwrap();
    let is_mapped = p.get_ref("plain").unwrap().unwrap().is_mapped();
    let p = db.partition_with("p", compressed()).unwrap();
    let mut random = value(&mut Rng::from_env_or(2), 3000);
    p.put("random", &random).unwrap();
    let lent = p.get_ref("random").unwrap().unwrap();
    assert_eq!((lent.is_mapped(), &lent[..]), (is_mapped, &random[..]));
    // One sub-block of the twelve.
    random[512..768].fill(0);
    p.put("part", &random).unwrap();
    let lent = p.get_ref("part").unwrap().unwrap();
    assert_eq!((lent.is_mapped(), &lent[..]), (false, &random[..]));
}

#[test]
fn compressed_values_pass_through_checkpoints_and_streams() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", compressed()).unwrap();
    let mut rng = Rng::from_env_or(21);
    for n in 0..10_u8 {
        p.put([n], mixed(&mut rng, 4000)).unwrap();
    }
    db.checkpoint("/copy").unwrap();
    let copy = open_with(Arc::new(fs.clone()), "/copy", &ManualClock::default()).unwrap();
    assert_eq!(content(&copy.partition("p").unwrap()), content(&p));
    let mut stream = Vec::new();
    db.export_stream(&mut stream, &StreamExport::new()).unwrap();
    let target = open(&MemFs::new());
    let q = target.partition_with("p", compressed()).unwrap();
    target.import_stream(&mut &stream[..], &StreamImport::new()).unwrap();
    assert_eq!(content(&q), content(&p));
    assert!(q.space().unwrap().total_bytes < 40_000);
}

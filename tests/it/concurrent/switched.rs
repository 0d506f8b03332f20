//! MetaHive is switched on and off in a partition that has data and is written to. Every write
//! succeeds whose key is no key of metadata, nothing is lost, and nothing panics.

use lsm_core::hooks::Hooks;
use siltstone::PrefixDropFilter;

use super::*;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

const WRITES: u64 = 800;

/// Writes and reads its own keys, and takes snapshots.
fn write(p: &Partition, db: &Db, writer: u64) -> Content {
    let mut rng = Rng::new(writer);
    let mut model = Content::new();
    for n in 0..WRITES {
        // Includes keys that sort directly before metadata, and values that are stored in chunk
        // files.
        let key = format!("key {writer} {}", rng.below(200)).into_bytes();
        let key = if rng.below(3) == 0 { [&key[..], &[0]].concat() } else { key };
        if rng.below(6) == 0 {
            p.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let len = if rng.below(4) == 0 { 900 } else { 40 };
            let value = [&n.to_be_bytes()[..], &vec![writer as u8; len]].concat();
            p.put(&key, &value).unwrap();
            model.insert(key.clone(), value);
        }
        assert_eq!(p.get(&key).unwrap().as_deref(), model.get(&key).map(Vec::as_slice));
        if n.is_multiple_of(100) {
            let prefix = format!("key {writer} ").into_bytes();
            let snapshot = db.snapshot();
            let seen = snapshot.range(p, prefix.clone()..[&prefix[..], &[0xff]].concat());
            let seen = seen.map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
            assert!(seen.eq(model.clone()), "write {n} of writer {writer}");
        }
    }
    model
}

/// Writes a key with the ending of metadata, and removes it completely. Returns how often it was
/// refused.
fn disturb(p: &Partition, is_done: &AtomicBool) -> u64 {
    let mut refused = 0;
    while !is_done.load(Ordering::Relaxed) {
        match p.put(b"key 0 7\x01", "no metadata") {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ReservedKey, "{error}");
                refused += 1;
                continue;
            }
        }
        p.delete(b"key 0 7\x01").unwrap();
        p.compact(..).unwrap();
    }
    refused
}

/// Switches MetaHive on and off in `p`, and tries it in `q`, which has a reserved key, together
/// with a filter that would remove everything.
fn switch(db: &Db, is_done: &AtomicBool) -> [u64; 2] {
    let mut counts = [0, 0];
    while !is_done.load(Ordering::Relaxed) {
        let everything = apart().filter(Arc::new(PrefixDropFilter::new([b"key".to_vec()])));
        let refused = db.partition_with("q", everything.metahive(MetaHiveOptions::new()));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReservedKey);
        match db.partition_with("p", apart().metahive(MetaHiveOptions::new())) {
            Ok(p) => {
                p.flush().unwrap();
                counts[0] += 1;
                db.partition_with("p", apart().hooks(Hooks::new())).unwrap();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ReservedKey, "{error}");
                counts[1] += 1;
            }
        }
    }
    counts
}

fn check_all(db: &Db, models: [(&Partition, &Content); 2]) {
    for (partition, model) in models {
        let seen = partition.iter().map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        assert!(seen.filter(|(key, _)| !key.ends_with(b"\x01")).eq(model.clone()));
    }
    let report = db.verify(Default::default()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn metahive_is_switched_on_in_a_partition_with_data_that_is_written_to() {
    let seed = Rng::from_env_or(41).next_u64() >> 1;
    let fs = MemFs::new();
    let store = open(Arc::new(fs.clone()), Path::new("/db"), apart);
    let db = &store.db;
    let p = &db.partition_with("p", apart()).unwrap();
    let q = &db.partition_with("q", apart()).unwrap();
    q.put(b"z\x01", "no metadata").unwrap();
    let is_done = &AtomicBool::new(false);
    let (models, refused, [on, off]) = std::thread::scope(|scope| {
        let disturbing = scope.spawn(move || disturb(p, is_done));
        let switching = scope.spawn(move || switch(db, is_done));
        let done = DoneOnDrop(is_done);
        let writers = [p, p, q].into_iter().zip(seed..);
        let writers: Vec<_> =
            writers.map(|(p, seed)| scope.spawn(move || write(p, db, seed))).collect();
        let models: Vec<_> = writers.into_iter().map(|it| it.join().unwrap()).collect();
        drop(done);
        (models, disturbing.join().unwrap(), switching.join().unwrap())
    });
    eprintln!("{on} times on, {off} times refused, {refused} puts refused");
    let [first, second, of_q] = models.try_into().unwrap();
    let of_p: Content = first.into_iter().chain(second).collect();
    check_all(db, [(p, &of_p), (q, &of_q)]);
    // Nothing is refused permanently.
    for (partition, key) in [(p, &b"key 0 7\x01"[..]), (q, b"z\x01")] {
        partition.delete(key).unwrap();
        partition.compact(..).unwrap();
        let sealed = apart().metahive(MetaHiveOptions::new());
        db.partition_with(partition.name(), sealed).unwrap();
        partition.compact(..).unwrap();
    }
    check_all(db, [(p, &of_p), (q, &of_q)]);
    let health = db.health();
    assert!(health.background_errors.is_empty(), "{health:?}");
}

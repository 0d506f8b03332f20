//! Metadata that the engine makes of notes, compared with the same metadata from the filter: the
//! files are equal, byte for byte.

use super::around::Around;
use super::*;

/// A key that often extends another one, so that it sorts between that key and its metadata.
fn key(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.index(4);
    (0..len).map(|_| *rng.pick(&[0, 1, 2, b'a', b'b'])).collect()
}

/// A value: most are short, and some are too long to share a block.
fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(200) {
        0 => (1 << 20) + rng.index(2000),
        1..10 => 200 + rng.index(400),
        _ => rng.index(40),
    };
    vec![rng.next_u64() as u8; len]
}

/// The tables of a partition with this filter after the writes, flushes and compactions of a seed,
/// at three times.
fn tables(filter: Arc<dyn CompactionFilterFactory>, seed: u64) -> Vec<(String, Vec<u8>)> {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), seed).open().unwrap();
    let hooks = Hooks::new().filter(filter);
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    let mut rng = Rng::new(seed);
    let mut snapshots = Vec::new();
    let mut tables = Vec::new();
    for round in 0..12 {
        for _ in 0..rng.index(120) {
            match rng.below(10) {
                0 => {
                    p.delete(key(&mut rng)).unwrap();
                }
                1 => snapshots.push(db.snapshot()),
                2 => snapshots.truncate(snapshots.len() / 2),
                _ => {
                    p.put(key(&mut rng), value(&mut rng)).unwrap();
                }
            }
        }
        db.flush().unwrap();
        if rng.chance(1, 3) {
            p.compact(..).unwrap();
        }
        db.wait_idle().unwrap();
        if round % 4 == 3 {
            for path in fs.paths() {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                if name.ends_with(".sst") {
                    tables.push((name, fs.read_raw(&path).unwrap()));
                }
            }
        }
    }
    tables
}

#[test]
fn metadata_lies_in_the_same_bytes_whoever_writes_it() {
    let mut total = 0;
    for seed in 0..12 {
        let beside = tables(Arc::new(MetaHive::default()), seed);
        let apart = tables(Arc::new(Around::new(())), seed);
        assert_eq!(beside.len(), apart.len(), "seed {seed}");
        for (one, other) in beside.iter().zip(&apart) {
            assert!(one == other, "seed {seed}: {} and {} differ", one.0, other.0);
        }
        total += beside.len();
    }
    assert!(total > 20, "{total}");
}

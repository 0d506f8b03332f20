//! The figures of a verification are those of what was read.

use siltstone::MetaHiveOptions;

use super::*;

#[test]
fn figures_are_those_of_what_was_read() {
    let fs = MemFs::new();
    let db = build(&fs);
    let sealed = partition_options(Compression::None).metahive(MetaHiveOptions::default());
    let sealed = db.partition_with("sealed", sealed).unwrap();
    for number in 0..20 {
        sealed.put(key(number), "value").unwrap();
    }
    let before = db.verify(VerifyOptions::new()).unwrap();
    db.flush().unwrap();
    let after = db.verify(VerifyOptions::new()).unwrap();
    assert_eq!((before.hidden, after.hidden), (0, 20), "{after}");
    assert!(after.to_string().ends_with("entries read, and 20 hidden ones"), "{after}");
    // A deleted table was not read, also where an old handle could still read its bytes.
    let gone = tables(&db, "sealed").pop().unwrap();
    assert!(sealed.get(key(1)).unwrap().is_some());
    fs.delete(&gone.path).unwrap();
    let lacking = db.verify(VerifyOptions::new()).unwrap();
    assert_eq!((lacking.damage().len(), lacking.hidden), (1, 0), "{lacking}");
    assert_eq!(lacking.damage()[0].file, gone.path);
    assert_eq!(lacking.files, after.files - 1);
    assert_eq!(lacking.bytes, after.bytes - gone.bytes);
    assert_eq!(lacking.entries, after.entries - gone.entries);
}

/// The figures of a live table.
struct LiveTable {
    path: PathBuf,
    bytes: u64,
    entries: u64,
}

fn tables(db: &Db, partition: &str) -> Vec<LiveTable> {
    let walk = db.partition(partition).unwrap().walk().unwrap();
    let tables = walk.tables().map(|table| LiveTable {
        path: table.path(),
        bytes: table.meta().bytes,
        entries: table.meta().entries,
    });
    tables.collect()
}

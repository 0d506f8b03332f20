//! Every byte of a small encrypted store is changed, one at a time.

use super::*;

/// One byte in so many is changed; together with the runs by `SEED` from 0 to one less, all of them.
const STEP: usize = 5;

fn small(fs: &Arc<dyn Fs>) -> Db {
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(4 << 10);
    stepped(fs.clone(), DIR, 1).options(options).open().unwrap()
}

/// Reads all values; an error of the open or of a read.
fn read(mem: &MemFs) -> siltstone::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let fs = over(mem, &ring());
    let db = stepped(fs, DIR, 2).read_only(true).open()?;
    let mut found = Vec::new();
    for name in ["default", "large"] {
        for entry in db.partition(name)?.iter() {
            let (key, value) = entry?;
            found.push((key.to_vec(), value.to_vec()));
        }
    }
    Ok(found)
}

#[test]
fn no_changed_byte_of_an_encrypted_store_is_silent() {
    let mem = MemFs::new();
    let fs = over(&mem, &ring());
    let db = small(&fs);
    let default = db.partition("default").unwrap();
    let large = db.partition_with("large", large()).unwrap();
    for number in 0..30 {
        default.put(format!("{number:03}"), format!("value {number}")).unwrap();
    }
    large.put("large", MARKER.repeat(60)).unwrap();
    db.flush().unwrap();
    settle(&db);
    default.put("in", "the log").unwrap();
    large.put("logged", MARKER.repeat(20)).unwrap();
    // The end of the log is attested, so that what is lost of it is missed.
    db.close().unwrap();
    let whole = read(&mem).unwrap();
    assert_eq!(whole.len(), 33);
    let seed = crate::crash::seed_or(0) as usize;
    let mut found = 0;
    let mut harmless = 0;
    for path in mem.paths() {
        for at in (seed % STEP..mem.read_raw(&path).unwrap().len()).step_by(STEP) {
            let bit = 1 << (at / STEP % 8);
            mem.corrupt(&path, at as u64, bit).unwrap();
            match read(&mem) {
                Err(_) => found += 1,
                Ok(seen) if seen == whole => harmless += 1,
                Ok(_) => panic!("byte {at} of {} changed what is read", path.display()),
            }
            mem.corrupt(&path, at as u64, bit).unwrap();
        }
    }
    println!("{found} found, {harmless} without effect");
    assert!(found > 100 && read(&mem).unwrap() == whole);
}

//! A flipped bit in a table: `verify` reports its place, all other keys are still readable, and a repair makes a new
//! database in which the bit is turned back.
//!
//! `cargo run --example verify`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]
#![expect(clippy::disallowed_methods, reason = "it plays the disk")]

use siltstone::{Db, Result, VerifyOptions};

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-verify-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let words = db.partition("words")?;
    for number in 0..10_000 {
        words.put(format!("word{number:05}"), format!("meaning {number}"))?;
    }
    words.compact(..)?;
    drop(words);
    println!("{}", db.verify(VerifyOptions::default())?);
    db.close()?;

    // The middle of the table is a data block; bloom, index and footer are at the end.
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let mut paths = files.map(|file| file.expect("it can be listed").path());
    let table = paths.find(|path| path.extension().is_some_and(|ending| ending == "sst"));
    let table = table.expect("the words were written to a table");
    let mut bytes = std::fs::read(&table).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1 << 3;
    std::fs::write(&table, bytes).expect("it can be written");

    let db = Db::open(&folder)?;
    let report = db.verify(VerifyOptions::default())?;
    println!("{report}");
    let damage = &report.damage()[0];
    let (first, last) = damage.keys.clone().expect("the keys of a block are known");
    assert_eq!((report.damage().len(), &damage.file), (1, &table));

    // Reads of the damaged keys return an error; all other keys are readable.
    let words = db.partition("words")?;
    let mut sound = 0;
    let mut lost = 0;
    for number in 0..10_000 {
        let key = format!("word{number:05}").into_bytes();
        match words.get(&key) {
            Ok(value) => sound += usize::from(value.is_some()),
            Err(error) => {
                assert!(error.is_corruption() && (&first..=&last).contains(&&key));
                lost += 1;
            }
        }
    }
    println!("{sound} words read, {lost} say that they are damaged");
    assert!(lost > 0 && sound + lost == 10_000);
    drop(words);
    db.close()?;

    // The damaged database stays as it is.
    let repaired = folder.with_extension("repaired");
    let report = Db::builder(&folder).repair_into(&repaired)?;
    for (damage, source) in &report.repaired {
        println!("{}: mended by {source}", damage.file.display());
    }
    // The checksum of the block finds one changed bit. Of more damage, `report.doubtful` has the keys.
    assert!(report.is_complete() && report.repaired.len() == 1, "{report:?}");
    let db = Db::open(&repaired)?;
    assert!(db.verify(VerifyOptions::default())?.is_sound());
    assert_eq!(db.partition("words")?.iter().count(), 10_000);
    db.close()?;
    for folder in [folder, repaired] {
        std::fs::remove_dir_all(folder).expect("no other program uses the folder");
    }
    Ok(())
}

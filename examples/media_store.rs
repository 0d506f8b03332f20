//! A store of media: streams a file in, serves ranges of it, copies it to another database, deletes
//! it, and shows its space come back.
//!
//! `cargo run --example media_store [FILE]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::io::{Read, Seek, SeekFrom, Write};

use siltstone::stream::{StreamExport, StreamImport};
use siltstone::{Db, Durability, LargeValueOptions, Partition, PartitionOptions};

/// Bytes of the value that is made if no file is named.
const LEN: u64 = 64 << 20;

/// Streams a file into a value, or a pattern in which every byte encodes its offset. Memory holds
/// one piece at a time.
fn store(media: &Partition, name: &str, file: Option<&str>) -> Result<u64, Box<dyn Error>> {
    let mut writer = media.put_stream(name, None)?;
    match file {
        #[expect(clippy::disallowed_methods, reason = "the file is outside the database")]
        Some(path) => drop(std::io::copy(&mut std::fs::File::open(path)?, &mut writer)?),
        None => {
            for at in (0..LEN).step_by(8) {
                writer.write_all(&at.to_le_bytes())?;
            }
        }
    }
    let len = writer.written();
    // Value and key are on the device together, or neither is.
    writer.commit(Durability::Sync)?;
    Ok(len)
}

/// Copies all entries to another database through a pipe, which could also lead to another machine.
/// No value is in memory as a whole.
fn copy(db: &Db, to: &Db) -> siltstone::Result<u64> {
    let (reader, writer) = std::io::pipe()?;
    std::thread::scope(|scope| {
        let exporter = scope.spawn(move || db.export_stream(writer, &StreamExport::new()));
        let imported = to.import_stream(reader, &StreamImport::new())?;
        exporter.join().expect("an export does not panic")?;
        Ok(imported.entries)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1);
    let folder = std::env::temp_dir().join(format!("siltstone-media-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    let media = db.partition_with("media", options)?;
    // Small values and large ones are in one partition.
    media.put("film/title", "Twelve minutes of rain")?;
    let len = store(&media, "film", file.as_deref())?;
    println!("stored {len} bytes in {} chunk files", media.chunks().map_or(0, |all| all.len()));

    // A player requests ranges. Only the pieces that contain a range are read and verified.
    let middle = len / 2 / 8 * 8;
    let range = media.get_range("film", middle..middle + 8)?.ok_or("the film is there")?;
    if file.is_none() {
        assert_eq!(range[..], middle.to_le_bytes());
    }
    let mut reader = media.open_blob("film")?.ok_or("the film is there")?;
    reader.seek(SeekFrom::End(-8))?;
    let mut end = Vec::new();
    reader.read_to_end(&mut end)?;
    println!("8 bytes from {middle}: {:02x?}; the last ones: {end:02x?}", &range[..]);

    let copied_folder = folder.with_extension("copy");
    let copied = Db::open(&copied_folder)?;
    let entries = copy(&db, &copied)?;
    // Lent without a copy, with the feature `mmap`.
    let film = copied.partition("media")?.get_ref("film")?.ok_or("the film was copied")?;
    assert_eq!((entries, film.len() as u64), (2, len));
    assert!(film[film.len() - 8..] == end[..]);
    println!("copied {entries} entries through a pipe");
    drop(film);
    copied.close()?;
    std::fs::remove_dir_all(&copied_folder)?;

    // A delete marks the value as garbage; open readers still have it. The space comes back
    // automatically, some seconds after the last reader is dropped. `reclaim` frees it now.
    media.delete("film")?;
    reader.seek(SeekFrom::Start(0))?;
    reader.read_exact(&mut [0; 8])?;
    drop(reader);
    let before = db.stats().disk_bytes;
    media.reclaim()?;
    let after = db.stats().disk_bytes;
    println!("on disk: {before} bytes with the deleted film, {after} without");
    assert!(after < before && media.space().is_some_and(|space| space.total_bytes == 0));
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}

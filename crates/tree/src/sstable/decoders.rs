//! A table of given parts, for the fuzz targets of this repository.

use std::sync::Arc;

use super::bloom::bloom_hash;
use super::compression::CompressionKind;
use super::footer::{FOOTER_BYTES, Footer};
use super::stored::{Extent, TRAILER_BYTES, seed};
use super::{RawMode, ReadMode, SstIdentity, SstReader, identify, salvage};
use crate::codec::{checksum64_seeded, put_u64};
use crate::error::Result;
use crate::fs::{File, Fs, MemFs};
use crate::iter::InternalIter;
use crate::types::{DbId, Epoch, FileNo, KeyRef, SeqNo};

const IDENTITY: SstIdentity = SstIdentity { db_id: DbId(7), file: FileNo(1), epoch: Epoch(1) };

/// Reads a table in every way. `bytes` are the parts of the table: a byte of flags, then the bloom, the index and the
/// properties, each after its length in 2 bytes, and the rest is the data. The checksums of the table are right, so
/// that the code after them sees the bytes.
pub fn table(bytes: &[u8]) {
    let Some((flags, rest)) = bytes.split_first() else { return };
    let (bloom, rest) = part(rest);
    let (index, rest) = part(rest);
    let (properties, data) = part(rest);
    let kinds = [
        CompressionKind::None,
        CompressionKind::Lz4,
        CompressionKind::Lz4Front,
        CompressionKind::Zstd,
    ];
    let kind = kinds[usize::from(flags & 3)];
    let mut file = Vec::new();
    // Two blocks at most: the index names them by their places, and no byte of one moves the other.
    let (first, second) =
        if flags & 8 == 0 { (data, &[][..]) } else { data.split_at(data.len() / 2) };
    for block in [first, second].into_iter().filter(|block| !block.is_empty()) {
        frame(&mut file, block, kind);
    }
    let bloom = if bloom.is_empty() {
        Extent { offset: 0, len: 0 }
    } else {
        frame(&mut file, bloom, CompressionKind::None)
    };
    let index = frame(&mut file, index, CompressionKind::None);
    let properties = frame(&mut file, properties, CompressionKind::None);
    let footer = Footer {
        compatible: 0,
        incompatible: 0,
        index_levels: 1 + (flags >> 2 & 1),
        db_id: IDENTITY.db_id,
        unique_id: IDENTITY.unique_id(),
        bloom,
        index,
        properties,
        file_hash: 0,
    };
    let len = (file.len() + FOOTER_BYTES) as u64;
    footer.encode(&mut file, len);
    // Every result is allowed. The search of a salvage takes a second, so that few inputs ask for it.
    let _ = read(&file, flags & 0xf0 == 0xf0);
}

fn part(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((len, rest)) = bytes.split_first_chunk() else { return (&[], &[]) };
    rest.split_at(rest.len().min(u16::from_le_bytes(*len).into()))
}

fn frame(file: &mut Vec<u8>, payload: &[u8], kind: CompressionKind) -> Extent {
    let start = file.len();
    file.extend_from_slice(payload);
    file.push(kind as u8);
    let seed = seed(IDENTITY.unique_id(), start as u64);
    let sum = checksum64_seeded(&file[start..], seed);
    put_u64(file, sum);
    debug_assert_eq!(file.len() - start, payload.len() + TRAILER_BYTES);
    Extent { offset: start as u64, len: (file.len() - start) as u64 }
}

/// The file of `bytes` in a file system in memory.
fn file_of(bytes: &[u8]) -> Result<Arc<dyn File>> {
    let fs = MemFs::new();
    let path = std::path::Path::new("/t.sst");
    fs.write_raw(path, bytes)?;
    fs.open_read(path)
}

fn read(bytes: &[u8], salvages: bool) -> Result<()> {
    let file = file_of(bytes)?;
    let found = identify(file.clone(), "t.sst".into());
    if salvages {
        let suffix = found.map(|found| found.properties.hidden_suffix).unwrap_or_default();
        if let Some(salvaged) = salvage(file.clone(), "t.sst".into(), IDENTITY, 0, &suffix)? {
            let reader = Arc::new(salvaged.reader);
            let _ = walk_raw(&reader, RawMode::Scrub, bytes.len());
        }
    }
    let opened = SstReader::open(file, "t.sst".into(), IDENTITY, None, None)?;
    let reader = Arc::new(opened);
    reader.verify(None, &mut |_| Ok(()))?;
    for mode in [RawMode::Suspects, RawMode::Cached, RawMode::Scrub] {
        let _ = walk_raw(&reader, mode, bytes.len());
    }
    let mut keys = Vec::new();
    for mode in [ReadMode::Cached, ReadMode::Streaming] {
        let mut iter = reader.iter(mode);
        iter.seek(None)?;
        for _ in 0..bytes.len() {
            if !iter.valid() {
                break;
            }
            keys.push((iter.key().user.to_vec(), iter.value().len()));
            iter.next()?;
        }
    }
    let mut iter = reader.iter(ReadMode::Cached);
    iter.seek_before(None)?;
    for _ in 0..bytes.len() {
        if !iter.valid() {
            break;
        }
        iter.prev()?;
    }
    for (key, _) in keys.iter().rev().take(20) {
        let _ = reader.get(key, bloom_hash(key), SeqNo::MAX);
        let _ = iter.seek(Some(KeyRef::seek(key, SeqNo::ZERO)));
        let _ = iter.seek_before(Some(KeyRef::seek(key, SeqNo::MAX)));
    }
    reader.get(b"key", bloom_hash(b"key"), SeqNo::MAX).map(drop)
}

fn walk_raw(reader: &Arc<SstReader>, mode: RawMode, steps: usize) -> Result<()> {
    let mut iter = reader.raw_iter(mode);
    iter.seek(None)?;
    for _ in 0..steps {
        if !iter.valid() {
            break;
        }
        let _ = (iter.key(), iter.value(), iter.origin(), iter.hidden());
        iter.next()?;
    }
    Ok(())
}

//! The decoders of objects in a bucket, for the fuzz targets of this repository.

use crate::disk_cache::block_file::check_block_file;
use crate::folder::Folder;
use lsm_core::codec::put_sum;

use crate::format::{JournalObject, decode_base};
use crate::journal::decode_boundary;
use crate::lease::BucketLease;
use crate::takeover::TakeoverRequest;

/// Decodes the objects of a bucket, with a right checksum: which one, says the first byte. A folder takes in what is
/// sound, and is sound after it.
pub fn object(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let mut sealed = body.to_vec();
    put_sum(&mut sealed);
    match kind % 6 {
        0 => journal(&sealed),
        1 => drop(decode_base(2, &sealed)),
        2 => drop(TakeoverRequest::decode(&sealed)),
        3 => drop(decode_boundary(1, &sealed)),
        4 => drop(BucketLease::decode("lease/0", &sealed)),
        _ => check_block_file(&sealed),
    }
}

fn journal(sealed: &[u8]) {
    for number in [1, 2] {
        let Ok(object) = JournalObject::decode(number, sealed) else { continue };
        assert_eq!(object.encode(), sealed, "an object reads back");
        let mut folder = Folder::default();
        let _ = folder.take_in(&object);
        assert!(folder.files.values().all(|file| file.read().is_sound()), "a sound folder");
    }
}

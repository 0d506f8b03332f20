//! Reads of the bytes that the system has in memory.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use crate::fs::uncached::{drop_from_cache, read_cached};

const LEN: usize = 1 << 20;

/// Returns `true` for ext4 and XFS, which drop pages on request; tmpfs has nothing else.
pub(in crate::fs) fn drops_pages(file: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstatfs(file).unwrap().f_type as u64;
    let drops = [0xef53, 0x5846_5342].contains(&kind);
    if !drops {
        println!("skipped: a file system of type {kind:#x}");
    }
    drops
}

/// Drops the file's pages until `is_dropped`. One request is not enough on a busy machine: the kernel keeps a page
/// that is also referenced elsewhere, for example from a processor's list of new pages.
pub(in crate::fs) fn drop_until(file: BorrowedFd<'_>, len: usize, is_dropped: impl Fn() -> bool) {
    let dropped = (0..10_000).any(|_| {
        drop_from_cache(file, 0, len as u64);
        is_dropped()
    });
    assert!(dropped, "each read found all pages in memory");
}

/// The end of what is read from `offset` of a file with these bytes.
fn read_end(file: &fs::File, bytes: &[u8], offset: usize) -> usize {
    let mut buf = vec![0xee; LEN - offset];
    let got = read_cached(file.as_fd(), offset as u64, &mut buf).unwrap();
    assert_eq!(buf[..got], bytes[offset..][..got]);
    offset + got
}

#[test]
fn it_ends_where_the_device_would_be_read() {
    let bytes: Vec<u8> = (0..LEN).map(|n| (n / 1000) as u8).collect();
    // Not in the folder for temporary files, which is often in memory.
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read_end(&file, &bytes, 0), LEN);
    if drops_pages(file.as_fd()) {
        drop_until(file.as_fd(), LEN, || read_end(&file, &bytes, LEN / 2) < LEN);
    }
    file.read_exact_at(&mut vec![0; LEN], 0).unwrap();
    assert_eq!(read_end(&file, &bytes, 1000), LEN);
    assert_eq!(read_cached(file.as_fd(), LEN as u64, &mut [0]), Some(0), "after the end");
}

//! The bytes that a reader of a value asks the device for, and its threads.

use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::hooks::ChunkId;
use lsm_core::types::{Epoch, FileNo};

use parking_lot::Mutex;

use super::*;
use crate::format::Form;
use crate::packing::SubBlockCodec;

/// A file that is partly in the system's cache.
#[derive(Default)]
struct Asked {
    bytes: Vec<u8>,
    /// The system has what lies before this.
    cached_end: AtomicU64,
    /// Offsets and lengths of the requested read-ahead.
    ahead: Mutex<Vec<(u64, u64)>>,
}

impl File for Asked {
    fn append(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let bytes = self.bytes.get(offset as usize..).unwrap_or_default();
        let len = bytes.len().min(buf.len());
        buf[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let cached = self.cached_end.load(Ordering::Relaxed).saturating_sub(offset);
        let len = buf.len().min(cached as usize);
        self.read_at(offset, &mut buf[..len])
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.ahead.lock().push((offset, len));
        self.cached_end.fetch_max(offset + len, Ordering::Relaxed);
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn preallocate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The handle of a block whose value begins at 64 + 48 + 3.
fn handle(form: Form, sub_block_log2: u8, len: u64) -> Handle {
    Handle {
        chunk: ChunkId { number: FileNo(5), epoch: Epoch(1) },
        offset: 64,
        key_len: 3,
        sub_block_log2,
        len,
        stored_us: 0,
        root: 0,
        form,
    }
}

fn block(file: &Arc<Asked>, handle: Handle, source: ByteSource) -> Block {
    Block { file: file.clone(), path: Path::new("chunk").into(), handle, source }
}

/// Reads a part of `value` in sub-blocks of 2^`log2` bytes. The system has the bytes before
/// `cached_end` of the file in its cache. Returns the requested read-ahead.
fn ahead_of(
    value: &[u8],
    log2: u8,
    cached_end: u64,
    source: ByteSource,
    range: std::ops::Range<usize>,
) -> Vec<(u64, u64)> {
    let mut handle = handle(Form::Plain, log2, value.len() as u64);
    let sums = value.chunks(1 << log2).map(checksum64).collect();
    let table = SubBlocks::as_given(&handle, sums);
    handle.root = table.root_of(handle.len);
    let front = handle.value_offset() as usize;
    let bytes = [&vec![0; front], value, &table.encode(&handle), &[9; 5000]].concat();
    let file = Arc::new(Asked { bytes, cached_end: cached_end.into(), ..Asked::default() });
    let block = block(&file, handle, source);
    let mut buf = vec![0; range.len()];
    if range.len() == value.len() {
        block.read_whole(&mut buf, Parallelism::Threads(1)).unwrap();
    } else {
        block.read_range(range.start as u64, &mut buf, &table).unwrap();
    }
    assert_eq!(buf, value[range]);
    std::mem::take(&mut *file.ahead.lock())
}

#[test]
fn a_reader_asks_for_what_it_will_read_and_is_not_in_memory() {
    use ByteSource::{Cached, Device};
    let at = 64 + 48 + 3;
    let value: Vec<u8> = (0..2000_u32).map(|n| (n * n / 7) as u8).collect();
    for (cached_end, source, range, expected) in [
        (0, Cached, 0..2000, vec![(at, 2000)]),
        (at + 1000, Cached, 0..2000, vec![(at + 1000, 1000)]),
        (at + 2000, Cached, 0..2000, vec![]),
        (0, Device, 0..2000, vec![]),
        // Four sub-blocks, one, and none. One is a single read.
        (0, Cached, 300..1100, vec![(at + 256, 1280 - 256)]),
        (0, Cached, 600..700, vec![]),
        (0, Cached, 1000..1000, vec![]),
    ] {
        let case = format!("{range:?} of {source:?}, {cached_end} bytes in memory");
        assert_eq!(ahead_of(&value, 8, cached_end, source, range), expected, "{case}");
    }
    // For a longer one, the end: the system would read on after it.
    let ahead = ahead_of(&vec![3; 9 << 20], 18, 0, Cached, 0..9 << 20);
    assert_eq!(ahead, [(at + (1 << 20), 8 << 20)]);
}

#[test]
fn no_more_of_a_value_is_read_ahead_than_was_asked_for_and_than_there_is() {
    // After the front of a block of 48 bytes and a key of 3; 40 sub-blocks, or one.
    let at = 64 + 48 + 3;
    let table = 40 * 12;
    let compressed = Form::Compressed { codec: SubBlockCodec::Lz4, stored_len: 3000 };
    for (form, sub_block_log2, len, expected) in [
        (Form::Plain, 8, 2500, vec![(at, 2500)]),
        (Form::Plain, 8, u64::MAX, vec![(at, 10_000)]),
        (compressed, 8, 2500, vec![(at, 2500), (at + 3000, table)]),
        (compressed, 8, 9000, vec![(at, 3000 + table)]),
        (compressed, 14, 2500, vec![(at, 2500)]),
        (compressed, 14, 9000, vec![(at, 3000)]),
    ] {
        let asked = Arc::new(Asked::default());
        block(&asked, handle(form, sub_block_log2, 10_000), ByteSource::Cached).prefetch(len);
        assert_eq!(*asked.ahead.lock(), expected, "{len} bytes of {form:?}");
    }
}

#[test]
fn several_threads_read_from_32_mib_on_and_never_more_than_cores() {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let many = cores.min(4);
    for (len, threads) in [(0, 1), ((32 << 20) - 1, 1), (32 << 20, many), (1 << 40, many)] {
        assert_eq!(Parallelism::Auto.threads(len), threads, "{len} bytes");
    }
    assert_eq!(Parallelism::Threads(0).threads(1 << 40), 1);
    assert_eq!(Parallelism::Threads(7).threads(1), 7);
}

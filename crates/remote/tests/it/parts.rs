//! Long objects are put in parts: memory is bounded, and an upload that fails leaves nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use remote::{Remote, Store, StoreError, StoreResult};
use siltstone::fs::{AppendMode, Fs, MemFs};

use crate::store_layer::{Layered, StoreLayer};

const MIB: u64 = 1 << 20;
/// Above this an object is put in parts.
const WHOLE_MAX: u64 = 16 * MIB;
const PART: u64 = 8 * MIB;
const TABLE: &str = "/db/0000000000000063-00000063.sst";
const CHUNK: &str = "/db/0000000000000064-00000064.chunk";

/// A store that counts the bytes that its callers hold.
struct CountingStore {
    inner: Arc<dyn Store>,
    longest_whole: AtomicU64,
    longest_part: AtomicU64,
    parts: AtomicU64,
    uploads: AtomicU64,
    /// The next upload fails at its second part.
    fails: AtomicBool,
}

impl StoreLayer for CountingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.longest_whole.fetch_max(bytes.len() as u64, Ordering::Relaxed);
        self.inner.put(name, bytes)
    }

    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        let fails = self.fails.swap(false, Ordering::Relaxed);
        let mut number = 0;
        let mut counted = parts.map(|part| {
            let part = part?;
            number += 1;
            self.parts.fetch_add(1, Ordering::Relaxed);
            self.longest_part.fetch_max(part.len() as u64, Ordering::Relaxed);
            match fails && number == 2 {
                true => Err(StoreError::transient("503")),
                false => Ok(part),
            }
        });
        self.inner.put_parts(name, &mut counted)
    }
}

fn counting(objects: &Arc<InMemory>) -> (Remote, Arc<Layered<CountingStore>>) {
    let store = Layered::new(CountingStore {
        inner: Remote::new(objects.clone(), "").unwrap().store(),
        longest_whole: AtomicU64::new(0),
        longest_part: AtomicU64::new(0),
        parts: AtomicU64::new(0),
        uploads: AtomicU64::new(0),
        fails: AtomicBool::new(false),
    });
    (Remote::with_store(store.clone()).stepped(), store)
}

fn byte_at(offset: u64) -> u8 {
    (offset / 1021) as u8
}

/// A file of so many bytes, which are put.
fn write(fs: &dyn Fs, path: &str, len: u64) {
    let file = fs.open_append(Path::new(path), AppendMode::IfAbsent).unwrap();
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
}

fn check(fs: &dyn Fs, path: &str, len: u64) {
    let file = fs.open_read(Path::new(path)).unwrap();
    assert_eq!(file.len().unwrap(), len, "{path}");
    let mut buf = vec![0; MIB as usize];
    for offset in (0..len).step_by(buf.len()) {
        let count = file.read_at(offset, &mut buf).unwrap();
        assert!((offset..).zip(&buf[..count]).all(|(at, byte)| *byte == byte_at(at)), "{path}");
    }
}

fn of_reader(path: &str) -> PathBuf {
    Path::new("/remote").join(Path::new(path).file_name().unwrap())
}

#[test]
fn long_objects_are_put_in_parts_of_bounded_memory() {
    let objects = Arc::new(InMemory::new());
    let (remote, store) = counting(&objects);
    let primary = remote.fs(Arc::new(MemFs::new())).primary("/db").unwrap();
    // As much as one put takes, and one byte more; a chunk file whose range is long.
    write(&*primary.fs(), "/db/0000000000000001-00000001.sst", WHOLE_MAX);
    assert_eq!(store.uploads.load(Ordering::Relaxed), 0);
    write(&*primary.fs(), TABLE, WHOLE_MAX + 1);
    assert_eq!(store.parts.load(Ordering::Relaxed), 3);
    write(&*primary.fs(), CHUNK, 3 * PART);
    primary.ship().unwrap();
    assert_eq!(store.uploads.load(Ordering::Relaxed), 2);
    assert_eq!(store.longest_part.load(Ordering::Relaxed), PART);
    assert!(store.longest_whole.load(Ordering::Relaxed) <= WHOLE_MAX);
    let (remote, _) = counting(&objects);
    let reader = remote.reader().unwrap();
    check(&reader, of_reader(TABLE).to_str().unwrap(), WHOLE_MAX + 1);
    check(&reader, of_reader(CHUNK).to_str().unwrap(), 3 * PART);
}

#[test]
fn an_upload_that_fails_leaves_nothing_and_is_made_again() {
    let objects = Arc::new(InMemory::new());
    let (remote, store) = counting(&objects);
    let primary = remote.fs(Arc::new(MemFs::new())).primary("/db").unwrap();
    store.fails.store(true, Ordering::Relaxed);
    write(&*primary.fs(), TABLE, 3 * PART);
    assert_eq!(store.uploads.load(Ordering::Relaxed), 2);
    primary.ship().unwrap();
    check(&remote_reader(&objects), of_reader(TABLE).to_str().unwrap(), 3 * PART);
    // Of the store alone: an error of a part is that of the call, and no object appears.
    let inner = Remote::new(objects.clone(), "").unwrap().store();
    let parts = [Ok(vec![1; PART as usize]), Err(StoreError::transient("away"))];
    inner.put_parts("table/x/y", &mut parts.into_iter()).unwrap_err();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let path = "table/x/y".into();
    assert!(runtime.block_on(objects.head(&path)).is_err());
    let parts = [Ok(vec![1; PART as usize]), Ok(vec![2; 5])];
    inner.put_parts("table/x/y", &mut parts.into_iter()).unwrap();
    assert_eq!(runtime.block_on(objects.head(&path)).unwrap().size, PART + 5);
}

fn remote_reader(objects: &Arc<InMemory>) -> remote::RemoteReader {
    counting(objects).0.reader().unwrap()
}

#[test]
fn a_copy_of_a_long_object_is_made_in_parts() {
    let objects = Arc::new(InMemory::new());
    let (remote, _) = counting(&objects);
    let primary = remote.fs(Arc::new(MemFs::new())).primary("/db").unwrap();
    write(&*primary.fs(), TABLE, 3 * PART);
    primary.ship().unwrap();
    let copy = Arc::new(InMemory::new());
    let (other, store) = counting(&copy);
    counting(&objects).0.copy_to(&other).unwrap();
    assert_eq!(store.uploads.load(Ordering::Relaxed), 1);
    check(&remote_reader(&copy), of_reader(TABLE).to_str().unwrap(), 3 * PART);
}

#[test]
fn a_local_file_that_fails_in_an_upload_is_the_error_of_the_file() {
    let disk = MemFs::new();
    let (remote, store) = counting(&Arc::new(InMemory::new()));
    let primary = remote.fs(Arc::new(disk.clone())).primary("/db").unwrap();
    let file = primary.fs().open_append(Path::new(CHUNK), AppendMode::IfAbsent).unwrap();
    file.append(&vec![1; 3 * PART as usize]).unwrap();
    disk.write_raw(Path::new(CHUNK), b"short").unwrap();
    let error = file.sync().unwrap_err();
    assert!(error.to_string().contains("shorter than written"), "{error}");
    assert_eq!(store.uploads.load(Ordering::Relaxed), 1, "another attempt would not help");
}

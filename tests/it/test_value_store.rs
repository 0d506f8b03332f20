//! A value store in memory, and a fuse that makes hooks fail, for the tests of several files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{AppendMode, Fs};
use lsm_core::hooks::{
    ChunkId, CompactionFilterFactory, Dropped, Entry, HookProvider, NamedChunk, PendingHandle,
    Relocation, RelocationJob, StoreContext, StoreEdit, StoreFigures, StoreSection, StoreSnapshot,
    StoredValue, ValueStore, ValueStoreFactory,
};
use lsm_core::types::EntryKind;
use siltstone::{Error, ErrorKind, Result, ValueStoreStats};

/// The effect of a fuse on the call for which it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureMode {
    /// It panics.
    Panic,
    /// It returns an error.
    Fail,
    /// It returns corruption.
    Corrupt,
}

/// Makes one call of a hook, by its name, fail as long as it is set. Clones share it.
#[derive(Clone, Default)]
pub struct Fuse(Arc<Mutex<Option<(&'static str, FailureMode)>>>);

impl Fuse {
    pub fn set(&self, call: &'static str, blow: FailureMode) {
        *self.0.lock().unwrap() = Some((call, blow));
    }

    pub fn clear(&self) {
        *self.0.lock().unwrap() = None;
    }

    /// Returns `true` if it is set for `call`.
    pub fn is_set(&self, call: &str) -> bool {
        self.0.lock().unwrap().is_some_and(|(set, _)| set == call)
    }

    /// Called at the beginning of `call`.
    pub fn pass(&self, call: &str) -> Result<()> {
        let set = self.0.lock().unwrap().filter(|(set, _)| *set == call);
        match set {
            None => Ok(()),
            Some((_, FailureMode::Panic)) => panic!("the fuse of {call} has blown"),
            Some((_, FailureMode::Fail)) => {
                Err(Error::new(ErrorKind::Io, format!("the fuse of {call} has blown")))
            }
            Some((_, FailureMode::Corrupt)) => {
                Err(Error::corruption("shelf", None, format!("the fuse of {call} has blown")))
            }
        }
    }
}

/// The function that a checkpoint calls.
type Call = Box<dyn FnOnce() + Send>;

/// Values in memory; durable ones survive [`TestValueStore::cut`]. Clones share them.
#[derive(Clone, Default)]
pub struct TestValueStore {
    state: Arc<Mutex<State>>,
    pub fuse: Fuse,
    /// `true` if jobs move every value that they meet.
    moves: bool,
    /// Names a file of its values for a checkpoint, which it makes then.
    names_files: bool,
    /// That of the partition, once it is open.
    context: Option<StoreContext>,
    /// Called once, in the next checkpoint.
    in_checkpoint: Arc<Mutex<Option<Call>>>,
    /// Called once, in the next put.
    in_put: Arc<Mutex<Option<Call>>>,
}

#[derive(Clone, Default)]
struct State {
    next: u64,
    values: BTreeMap<u64, Vec<u8>>,
    durable: BTreeMap<u64, Vec<u8>>,
    dropped: BTreeMap<u64, Vec<u64>>,
    applied: BTreeMap<u64, Vec<u64>>,
    /// Every value that edits were to add, as often as they were.
    added: Vec<u64>,
    sync_failures: u64,
    /// The values that were read, and those that were to be read ahead.
    reads: Vec<String>,
}

impl TestValueStore {
    /// An empty store whose values every job moves, or keeps.
    pub fn moving(moves: bool) -> TestValueStore {
        TestValueStore { moves, ..TestValueStore::default() }
    }

    /// An empty store that supports checkpoints.
    pub fn with_files() -> TestValueStore {
        TestValueStore { names_files: true, ..TestValueStore::default() }
    }

    /// The store in a checkpoint in `dir`.
    pub fn open(fs: &dyn Fs, dir: &Path) -> Result<TestValueStore> {
        let chunks = fs.list(dir, "")?.into_iter().filter_map(|it| ChunkId::of_name(&it.name));
        let newest = chunks.max().expect("the checkpoint has a file of values");
        let file = fs.open_read(&newest.path(dir))?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_at(0, &mut bytes)?;
        let mut state = State::default();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let n = number(rest);
            let len = number(&rest[8..]) as usize;
            state.values.insert(n, rest[16..16 + len].to_vec());
            state.next = n;
            rest = &rest[16 + len..];
        }
        state.durable = state.values.clone();
        Ok(TestValueStore { state: Arc::new(Mutex::new(state)), ..TestValueStore::with_files() })
    }

    /// Calls `call` in the next checkpoint, before anything is copied.
    pub fn call_in_checkpoint(&self, call: impl FnOnce() + Send + 'static) {
        *self.in_checkpoint.lock().unwrap() = Some(Box::new(call));
    }

    /// Calls `call` in the next put, before the value is taken.
    pub fn call_in_put(&self, call: impl FnOnce() + Send + 'static) {
        *self.in_put.lock().unwrap() = Some(Box::new(call));
    }

    /// The number of values.
    pub fn live(&self) -> usize {
        self.state.lock().unwrap().values.len()
    }

    /// The store as a power cut leaves it.
    pub fn cut(&self) -> TestValueStore {
        let mut state = self.state.lock().unwrap().clone();
        state.values = state.durable.clone();
        state.dropped.clear();
        let state = Arc::new(Mutex::new(state));
        TestValueStore {
            state,
            fuse: Fuse::default(),
            in_checkpoint: Arc::default(),
            ..self.clone()
        }
    }

    /// Counts a failed sync that was reported to its caller.
    pub fn note_failed_sync(&self) {
        self.state.lock().unwrap().sync_failures += 1;
    }

    /// The values that were read since the last call, as `read 1`, and read ahead, as `ahead 1`.
    pub fn take_reads(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().reads)
    }

    /// Loses the value that was put as the `n`th.
    pub fn lose(&self, n: u64) {
        let mut state = self.state.lock().unwrap();
        assert!(state.values.remove(&n).is_some());
        state.durable.remove(&n);
    }

    /// The number of values that were dropped by the edits it was notified of.
    pub fn dropped_count(&self) -> usize {
        let state = self.state.lock().unwrap();
        state.applied.values().flatten().collect::<std::collections::BTreeSet<_>>().len()
    }

    /// The handle of the value that was put as the `n`th, which is released with it.
    fn pending(&self, n: u64) -> PendingHandle {
        let shelf = self.clone();
        PendingHandle::new(n.to_le_bytes().to_vec(), move || {
            let mut state = shelf.state.lock().unwrap();
            state.values.remove(&n);
            state.durable.remove(&n);
        })
    }

    /// Checks the values that tables name according to the edits: each was added once, and dropped
    /// once at most.
    pub fn named(&self) -> usize {
        let state = self.state.lock().unwrap();
        let mut added = state.added.clone();
        added.sort_unstable();
        assert!(added.windows(2).all(|pair| pair[0] != pair[1]), "added twice: {added:?}");
        let mut dropped: Vec<u64> = state.applied.values().flatten().copied().collect();
        dropped.sort_unstable();
        assert!(dropped.windows(2).all(|pair| pair[0] != pair[1]), "dropped twice: {dropped:?}");
        assert!(dropped.iter().all(|n| added.binary_search(n).is_ok()), "dropped, never added");
        added.len() - dropped.len()
    }
}

fn number(handle: &[u8]) -> u64 {
    u64::from_le_bytes(*handle.first_chunk().unwrap())
}

impl ValueStoreFactory for TestValueStore {
    fn name(&self) -> &'static str {
        "shelf"
    }

    fn threshold_bytes(&self) -> u64 {
        100
    }

    fn open(
        &self,
        context: StoreContext,
        sections: &[StoreSection],
    ) -> Result<Arc<dyn ValueStore>> {
        for (edit, section) in sections {
            self.apply(*edit, section)?;
        }
        Ok(Arc::new(TestValueStore { context: Some(context), ..self.clone() }))
    }
}

/// A value by its handle.
struct Stored<'a>(&'a TestValueStore, u64);

impl Stored<'_> {
    fn bytes(&self) -> Result<Vec<u8>> {
        let value = self.0.state.lock().unwrap().values.get(&self.1).cloned();
        value.ok_or_else(|| Error::corruption("shelf", None, "a value is not there"))
    }
}

impl StoredValue for Stored<'_> {
    fn len(&self) -> u64 {
        self.0.state.lock().unwrap().values.get(&self.1).map_or(0, |value| value.len() as u64)
    }

    fn read_into(&self, buf: &mut [u8]) -> Result<()> {
        self.0.fuse.pass("read")?;
        self.0.state.lock().unwrap().reads.push(format!("read {}", self.1));
        buf.copy_from_slice(&self.bytes()?);
        Ok(())
    }

    fn prefetch(&self, len: u64) {
        self.0.fuse.pass("prefetch").unwrap();
        assert_eq!(len, self.len());
        self.0.state.lock().unwrap().reads.push(format!("ahead {}", self.1));
    }

    fn verify(&self, _: &[u8], _: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.bytes().map(drop)
    }

    fn is_durable(&self) -> Result<bool> {
        self.0.fuse.pass("is_durable")?;
        Ok(self.0.state.lock().unwrap().values.contains_key(&self.1))
    }
}

impl ValueStore for TestValueStore {
    fn put(&self, _key: &[u8], value: &[u8]) -> Result<PendingHandle> {
        self.fuse.pass("put")?;
        let call = self.in_put.lock().unwrap().take();
        call.into_iter().for_each(|call| call());
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let n = state.next;
        state.values.insert(n, value.to_vec());
        drop(state);
        Ok(self.pending(n))
    }

    fn sync(&self) -> Result<()> {
        self.fuse.pass("sync")?;
        let mut state = self.state.lock().unwrap();
        state.durable = state.values.clone();
        Ok(())
    }

    fn value(&self, handle: &[u8]) -> Result<Box<dyn StoredValue + '_>> {
        self.fuse.pass("value")?;
        Ok(Box::new(Stored(self, number(handle))))
    }

    fn stats(&self, _: StoreFigures) -> ValueStoreStats {
        self.fuse.pass("stats").unwrap();
        let mut stats = ValueStoreStats::default();
        stats.sync_failure_count = self.state.lock().unwrap().sync_failures;
        stats
    }

    fn relocate(&self, entry: Entry<'_>, _: RelocationJob) -> Result<Relocation> {
        self.fuse.pass("relocate")?;
        if !self.moves || entry.kind != EntryKind::Handle {
            return Ok(Relocation::Stay);
        }
        let value = Stored(self, number(entry.value)).bytes()?;
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let n = state.next;
        state.values.insert(n, value);
        drop(state);
        Ok(Relocation::Moved(self.pending(n)))
    }

    fn edit(&self, edit: StoreEdit<'_>) -> Result<Vec<u8>> {
        self.fuse.pass("edit")?;
        let mut state = self.state.lock().unwrap();
        state.added.extend(edit.added.iter().map(|added| number(&added.handle)));
        Ok(match edit.dropped {
            Dropped::Handles(handles) => handles.concat(),
            Dropped::Partition => state.values.keys().flat_map(|n| n.to_le_bytes()).collect(),
            Dropped::Unnamed { .. } => Vec::new(),
        })
    }

    fn apply(&self, edit: u64, section: &[u8]) -> Result<u64> {
        self.fuse.pass("apply")?;
        let mut state = self.state.lock().unwrap();
        let numbers: Vec<u64> = section.chunks(8).map(number).collect();
        state.applied.insert(edit, numbers.clone());
        state.dropped.insert(edit, numbers);
        Ok(0)
    }

    fn snapshot(&self) -> StoreSnapshot {
        self.fuse.pass("snapshot").unwrap();
        let state = self.state.lock().unwrap();
        let section = state.applied.values().flatten().flat_map(|n| n.to_le_bytes()).collect();
        StoreSnapshot { section, chunks: Vec::new() }
    }

    fn reclaim(&self, edit: u64) -> Result<()> {
        self.fuse.pass("reclaim")?;
        let mut state = self.state.lock().unwrap();
        let later = state.dropped.split_off(&(edit + 1));
        for n in std::mem::replace(&mut state.dropped, later).into_values().flatten() {
            state.values.remove(&n);
            state.durable.remove(&n);
        }
        Ok(())
    }

    /// A file with all values: number, length and bytes of each.
    fn named_chunks(&self, _: &[StoreSection]) -> Result<Option<Vec<NamedChunk>>> {
        if !self.names_files {
            return Ok(None);
        }
        let call = self.in_checkpoint.lock().unwrap().take();
        call.into_iter().for_each(|call| call());
        let context = self.context.as_ref().unwrap();
        let id = context.new_chunk();
        let file = context.fs.open_append(&id.path(&context.dir), AppendMode::IfAbsent)?;
        self.fuse.pass("named_chunks")?;
        let values = self.state.lock().unwrap().values.clone();
        for (n, value) in values {
            file.append(&[&n.to_le_bytes()[..], &value.len().to_le_bytes(), &value].concat())?;
        }
        file.sync()?;
        context.fs.sync_dir(&context.dir)?;
        Ok(Some(vec![NamedChunk { id, end: file.len()?, is_open: false }]))
    }
}

/// Provides no hook.
pub struct NoHooks;

impl HookProvider for NoHooks {
    fn compaction_filter(
        &self,
        _name: &str,
        _params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        None
    }
}

/// Provides one value store and no filter.
pub struct ShelfProvider(pub TestValueStore);

impl HookProvider for ShelfProvider {
    fn compaction_filter(
        &self,
        _name: &str,
        _params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        None
    }

    fn value_store(&self, name: &str, _params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        (name == "shelf").then(|| Arc::new(self.0.clone()) as Arc<dyn ValueStoreFactory>)
    }
}

//! [`open_store`]: a value store whose panics fail its calls, as `guarded.rs` says.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::guarded::{Who, catch};
use super::{
    Carry, ChunkId, Entry, KeySpan, PendingHandle, StoreContext, StoreEdit, StoreSection,
    ValueStore, ValueStoreFactory,
};
use crate::error::{Error, Result};
use crate::stats::ValueStoreStats;

/// Opens the value store of a partition.
///
/// # Errors
/// Those of the store.
pub fn open_store(
    factory: &dyn ValueStoreFactory,
    context: StoreContext,
) -> Result<Arc<dyn ValueStore>> {
    let partition = context.partition_name.clone();
    // The name is asked once: a store that panics later must still be named.
    let who = Who { partition, kind: "value store", name: factory.name().into() };
    let store = who.call("open", || factory.open(context))?;
    Ok(Arc::new(GuardedStore { who, store }))
}

/// The value store as its maker knows it.
pub fn store_as_any(store: &dyn ValueStore) -> &dyn Any {
    let any: &dyn Any = store;
    match any.downcast_ref::<GuardedStore>() {
        Some(guarded) => &*guarded.store,
        None => any,
    }
}

struct GuardedStore {
    who: Who,
    store: Arc<dyn ValueStore>,
}

impl GuardedStore {
    /// Makes a call that is advice: if it panics, a sync or a read takes longer.
    fn advise(&self, call: &'static str, advice: impl FnOnce(&dyn ValueStore)) {
        let _ = self.who.call(call, || {
            advice(&*self.store);
            Ok(())
        });
    }
}

impl ValueStore for GuardedStore {
    fn configure(&self, params: &[u8]) -> Result<()> {
        self.who.call("configure", || self.store.configure(params))
    }

    // No guard: nothing is claimed when a writer is asked this, and every write asks it.
    fn wants(&self, len: u64) -> bool {
        self.store.wants(len)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<PendingHandle> {
        self.who.call("put", || self.store.put(key, value))
    }

    fn sync(&self) -> Result<()> {
        self.who.call("sync", || self.store.sync())
    }

    fn begin_sync(&self) {
        self.advise("begin_sync", ValueStore::begin_sync);
    }

    fn prefetch(&self, handle: &[u8], len: u64) {
        self.advise("prefetch", |store| store.prefetch(handle, len));
    }

    fn sync_failures(&self) -> u64 {
        self.who.unwind("sync_failures", || self.store.sync_failures())
    }

    fn is_in_doubt(&self, handle: &[u8]) -> bool {
        self.who.unwind("is_in_doubt", || self.store.is_in_doubt(handle))
    }

    fn probe(&self, handle: &[u8]) -> Result<bool> {
        self.who.call("probe", || self.store.probe(handle))
    }

    fn len(&self, handle: &[u8]) -> Result<u64> {
        self.who.call("len", || self.store.len(handle))
    }

    fn read_into(&self, handle: &[u8], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.who.call("read_into", || self.store.read_into(handle, offset, buf))
    }

    fn carry(&self, entry: Entry<'_>) -> Result<Carry> {
        self.who.call("carry", || self.store.carry(entry))
    }

    fn rescue(&self, entry: Entry<'_>) -> Result<Carry> {
        self.who.call("rescue", || self.store.rescue(entry))
    }

    fn edit(&self, edit: &StoreEdit<'_>) -> Vec<u8> {
        self.who.unwind("edit", || self.store.edit(edit))
    }

    fn apply(&self, number: u64, section: &[u8]) -> Result<()> {
        self.who.call("apply", || self.store.apply(number, section))
    }

    fn snapshot(&self) -> Vec<u8> {
        self.who.unwind("snapshot", || self.store.snapshot())
    }

    fn unnamed(
        &self,
        state: &[u8],
        named: &mut dyn Iterator<Item = Result<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>> {
        self.who.call("unnamed", || self.store.unnamed(state, named))
    }

    fn reclaim(&self, number: u64) -> Result<()> {
        self.who.call("reclaim", || self.store.reclaim(number))
    }

    fn dropped_bytes(&self, number: u64) -> u64 {
        // A figure, for the bound on what secondaries hold. It must not end a removal.
        catch("a value store", || self.store.dropped_bytes(number)).unwrap_or_default()
    }

    fn chunks(&self) -> Vec<ChunkId> {
        self.who.unwind("chunks", || self.store.chunks())
    }

    fn holds_values(&self) -> bool {
        // A store that panics here is asked again later: the space of its values must come back.
        catch("a value store", || self.store.holds_values()).unwrap_or(true)
    }

    fn stats(&self) -> ValueStoreStats {
        // A report that panics must not end the call that asks for all of them.
        catch("a value store", || self.store.stats()).unwrap_or_default()
    }

    fn moving(&self, asked: bool) -> Option<KeySpan> {
        self.who.unwind("moving", || self.store.moving(asked))
    }

    fn reallocating(&self, from: &[u8], to: Option<&[u8]>) -> Result<Option<KeySpan>> {
        self.who.call("reallocating", || self.store.reallocating(from, to))
    }

    fn move_failed(&self, error: &Error) {
        self.advise("move_failed", |store| store.move_failed(error));
    }

    fn unmoved(&self) -> Option<Error> {
        // A panic is a reason as good as others.
        self.who.call("unmoved", || Ok(self.store.unmoved())).unwrap_or_else(Some)
    }

    fn verify(
        &self,
        key: &[u8],
        handle: &[u8],
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        self.who.call("verify", || self.store.verify(key, handle, advance))
    }

    fn checkpoint(
        &self,
        sections: &[StoreSection],
        dir: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<()> {
        self.who.call("checkpoint", || self.store.checkpoint(sections, dir, made))
    }
}

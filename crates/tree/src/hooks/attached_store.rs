//! [`AttachedStore`]: the value store of a partition as the engine holds it.
//!
//! The engine makes each call of a store through [`AttachedStore::call`]. So a panic is an error that names
//! the partition, the store and the call, as `guarded.rs` says.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ValueStoreStats;
use super::catch::HookId;
use super::{StoreContext, StoreFigures, StoreSection, ValueStore, ValueStoreFactory};
use crate::error::{Error, Result};
use crate::limits::FORMAT_VALUE_BYTES_MAX;

/// The value store of a partition, with its name and its threshold.
pub struct AttachedStore {
    hook: HookId,
    store: Arc<dyn ValueStore>,
    /// [`ValueStoreFactory::threshold_bytes`]. Relaxed: it orders nothing, and every write loads it.
    threshold_bytes: AtomicU64,
}

impl AttachedStore {
    /// Opens the value store of a partition; see [`ValueStoreFactory::open`].
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(
        factory: &dyn ValueStoreFactory,
        context: StoreContext,
        sections: &[StoreSection],
    ) -> Result<Arc<AttachedStore>> {
        let partition = context.partition_name.clone();
        // The name is asked once: a store that panics later must still be named.
        let hook = HookId { partition, kind: "value store", name: factory.name().into() };
        let store = hook.call("open", || factory.open(context, sections))?;
        let threshold = hook.call("threshold_bytes", || Ok(factory.threshold_bytes()))?;
        Ok(Arc::new(AttachedStore { hook, store, threshold_bytes: threshold.into() }))
    }

    /// A store by itself, which takes no values.
    #[cfg(any(test, feature = "internals"))]
    pub fn alone(store: Arc<dyn ValueStore>) -> Arc<AttachedStore> {
        let hook = HookId { partition: "p".into(), kind: "value store", name: "alone".into() };
        Arc::new(AttachedStore { hook, store, threshold_bytes: u64::MAX.into() })
    }

    /// Makes the call `what` of the store.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::HookPanicked`](crate::error::ErrorKind::HookPanicked) if it panics.
    pub fn call<T>(
        &self,
        what: &str,
        call: impl FnOnce(&dyn ValueStore) -> Result<T>,
    ) -> Result<T> {
        self.hook.call(what, || call(&*self.store))
    }

    /// The whole value of a handle.
    ///
    /// # Errors
    /// Those of the store; a limit for a value too long to be held in memory.
    pub fn read(&self, handle: &[u8]) -> Result<Vec<u8>> {
        self.call("read", |store| {
            let stored = store.value(handle)?;
            let len = stored.len();
            // The length comes from a stored handle: it is bounded before memory is asked for.
            let bounded = usize::try_from(len).ok().filter(|_| len <= FORMAT_VALUE_BYTES_MAX);
            let Some(bounded) = bounded else {
                let what = "length of a value for get (use open_blob)";
                return Err(Error::limit(what, len, FORMAT_VALUE_BYTES_MAX));
            };
            let mut value = vec![0; bounded];
            // The store verifies the bytes against the handle before any of them is returned.
            stored.read_into(&mut value)?;
            Ok(value)
        })
    }

    /// [`ValueStore::sync`].
    ///
    /// # Errors
    /// Those of the store.
    pub fn sync(&self) -> Result<()> {
        self.call("sync", ValueStore::sync)
    }

    /// Gives the store the parameters of `factory`.
    ///
    /// # Errors
    /// Those of the factory.
    pub fn configure(&self, factory: &dyn ValueStoreFactory) -> Result<()> {
        self.call("configure", |store| factory.configure(store))?;
        let threshold = self.call("threshold_bytes", |_| Ok(factory.threshold_bytes()))?;
        self.threshold_bytes.store(threshold, Ordering::Relaxed);
        Ok(())
    }

    /// Returns `true` if a value of `len` bytes goes to the store.
    #[inline]
    pub fn wants(&self, len: u64) -> bool {
        len >= self.threshold_bytes.load(Ordering::Relaxed)
    }

    /// The store as its maker knows it.
    pub fn downcast_ref<T: ValueStore>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.store;
        any.downcast_ref()
    }

    /// The figures of the store.
    ///
    /// # Errors
    /// A panic of the store.
    pub fn stats(&self) -> Result<ValueStoreStats> {
        self.call("stats", |store| Ok(store.stats(StoreFigures::All)))
    }

    /// The failed syncs since the open.
    ///
    /// # Errors
    /// A panic of the store.
    pub fn sync_failure_count(&self) -> Result<u64> {
        Ok(self.counts()?.sync_failure_count)
    }

    /// [`StoredValue::is_in_doubt`](super::StoredValue::is_in_doubt) of a handle; bytes that are none are not in
    /// doubt. A store that panics is not asked again: its value counts as doubtful.
    pub fn is_in_doubt(&self, handle: &[u8]) -> bool {
        let answer = self.call("is_in_doubt", |store| {
            Ok(store.value(handle).is_ok_and(|value| value.is_in_doubt()))
        });
        answer.unwrap_or(true)
    }

    /// Returns `true` if the store has values, or files of values. One that panics is asked again later: the
    /// space of its values must come back.
    pub fn holds_values(&self) -> bool {
        self.counts().map_or(true, |stats| stats.chunk_count > 0)
    }

    fn counts(&self) -> Result<ValueStoreStats> {
        self.call("stats", |store| Ok(store.stats(StoreFigures::Counts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::hooks::{PendingHandle, StoreEdit, StoreSnapshot, StoredValue};

    /// A store without files. A handle names the result of the calls for its value. The number is that of the
    /// failed syncs: `stats` panics if there is none, and if it is asked for more than counts.
    struct Store(Option<u64>);

    impl ValueStore for Store {
        fn put(&self, _: &[u8], _: &[u8]) -> Result<PendingHandle> {
            unreachable!("nothing is put")
        }

        fn value(&self, handle: &[u8]) -> Result<Box<dyn StoredValue + '_>> {
            match handle {
                b"no handle" => Err(Error::new(ErrorKind::Corruption, "no handle")),
                b"panics" => panic!("a bug"),
                _ => Ok(Box::new(Stored(handle.to_vec()))),
            }
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn edit(&self, _: StoreEdit<'_>) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn apply(&self, _: u64, _: &[u8]) -> Result<u64> {
            Ok(0)
        }

        fn snapshot(&self) -> StoreSnapshot {
            StoreSnapshot::default()
        }

        fn reclaim(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn stats(&self, figures: StoreFigures) -> ValueStoreStats {
            let sync_failure_count = self.0.expect("a bug");
            assert_eq!(figures, StoreFigures::Counts, "all files would be walked");
            ValueStoreStats { sync_failure_count, ..ValueStoreStats::default() }
        }
    }

    struct Stored(Vec<u8>);

    impl StoredValue for Stored {
        fn len(&self) -> u64 {
            0
        }

        fn read_into(&self, _: &mut [u8]) -> Result<()> {
            Ok(())
        }

        fn verify(&self, _: &[u8], _: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
            Ok(())
        }

        fn is_durable(&self) -> Result<bool> {
            Ok(true)
        }

        fn is_in_doubt(&self) -> bool {
            assert_ne!(self.0, b"panics in doubt", "a bug");
            self.0 == b"in doubt"
        }
    }

    /// A value that is taken for durable and is not would be lost by a crash, and end the log for all partitions.
    #[test]
    fn a_store_that_panics_leaves_a_value_in_doubt() {
        let store = AttachedStore::alone(Arc::new(Store(None)));
        for (handle, is_in_doubt) in [
            (&b"in doubt"[..], true),
            (b"panics in doubt", true),
            (b"panics", true),
            (b"durable", false),
            (b"no handle", false),
        ] {
            assert_eq!(store.is_in_doubt(handle), is_in_doubt, "{}", handle.escape_ascii());
        }
        assert!(store.holds_values(), "it is asked again");
        assert_eq!(store.stats().unwrap_err().kind(), ErrorKind::HookPanicked);
    }

    /// Threads ask at each wake-up. All figures of a store cost a walk over its files.
    #[test]
    fn the_questions_of_each_wake_up_and_each_job_need_no_walk() {
        let store = AttachedStore::alone(Arc::new(Store(Some(3))));
        assert!(!store.holds_values());
        assert_eq!(store.sync_failure_count().unwrap(), 3);
        assert!(store.stats().is_err());
    }
}

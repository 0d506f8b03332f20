//! [`StoreLayer`]: a store over another one, which changes some of its calls; [`Layered`] makes it a [`Store`].

use std::ops::{Deref, Range};
use std::sync::Arc;

use remote::{ObjectListing, Store, StoreResult};

/// The calls that a test may change. All others go to the inner store.
pub trait StoreLayer: Send + Sync + 'static {
    fn inner(&self) -> &dyn Store;

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.inner().put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.inner().put(name, bytes)
    }

    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        self.inner().put_parts(name, parts)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.inner().get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.inner().get_range(name, range)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.inner().delete(name)
    }
}

/// A layer as a store.
pub struct Layered<L>(L);

impl<L: StoreLayer> Layered<L> {
    pub fn new(layer: L) -> Arc<Layered<L>> {
        Arc::new(Layered(layer))
    }
}

impl<L> Deref for Layered<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

impl<L: StoreLayer> Store for Layered<L> {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.0.put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.0.put(name, bytes)
    }

    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        self.0.put_parts(name, parts)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.0.get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.0.get_range(name, range)
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.0.inner().list(dir)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.0.delete(name)
    }
}

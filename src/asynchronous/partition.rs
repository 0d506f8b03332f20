//! Writes of a partition, for async code.

use lsm_core::db::{Commit, Swap, Updated};
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;
use lsm_core::read::KeyRange;
use lsm_core::types::Slice;

use super::Async;
use crate::partition::Partition;

impl Async<Partition> {
    /// As [`Partition::put`].
    ///
    /// # Errors
    /// As there.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Slice>) -> Result<Commit> {
        self.put_with(key, value, WriteOptions::default()).await
    }

    /// As [`Partition::put_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Slice>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        let key = Slice::from(key.as_ref());
        let value = value.into();
        let options = options.into();
        self.call(move |partition| partition.put_with(key, value, options)).await
    }

    /// As [`Partition::merge`].
    ///
    /// # Errors
    /// As there.
    pub async fn merge(&self, key: impl AsRef<[u8]>, operand: impl Into<Slice>) -> Result<Commit> {
        self.merge_with(key, operand, WriteOptions::default()).await
    }

    /// As [`Partition::merge_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl Into<Slice>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        let key = Slice::from(key.as_ref());
        let operand = operand.into();
        let options = options.into();
        self.call(move |partition| partition.merge_with(key, operand, options)).await
    }

    /// As [`Partition::delete`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.delete_with(key, WriteOptions::default()).await
    }

    /// As [`Partition::delete_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_with(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        let key = Slice::from(key.as_ref());
        let options = options.into();
        self.call(move |partition| partition.delete_with(key, options)).await
    }

    /// As [`Partition::compare_and_set_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn compare_and_set_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Swap> {
        let key = Slice::from(key.as_ref());
        let [expected, new] = [expected, new].map(|bytes| bytes.map(Slice::from));
        let options = options.into();
        self.call(move |partition| {
            partition.compare_and_set_with(key, expected.as_deref(), new.as_deref(), options)
        })
        .await
    }

    /// As [`Partition::update`]. `change` runs on another thread, and again if another writer changes the key meanwhile.
    ///
    /// # Errors
    /// As there.
    pub async fn update<V: AsRef<[u8]> + Send + 'static>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<V> + Send + 'static,
    ) -> Result<Updated<V>> {
        self.update_with(key, WriteOptions::default(), change).await
    }

    /// As [`Partition::update_with`], and [`Async::update`].
    ///
    /// # Errors
    /// As there.
    pub async fn update_with<V: AsRef<[u8]> + Send + 'static>(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
        change: impl FnMut(Option<&[u8]>) -> Option<V> + Send + 'static,
    ) -> Result<Updated<V>> {
        let key = Slice::from(key.as_ref());
        let options = options.into();
        self.call(move |partition| partition.update_with(key, options, change)).await
    }

    /// As [`Partition::clear`].
    ///
    /// # Errors
    /// As there.
    pub async fn clear(&self) -> Result<Commit> {
        self.call(Partition::clear).await
    }

    /// As [`Partition::delete_range`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_range(&self, range: impl KeyRange) -> Result<Commit> {
        let bounds = range.bounds();
        self.call(move |partition| partition.delete_range(bounds)).await
    }

    /// As [`Partition::delete_prefix`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Commit> {
        let prefix = Slice::from(prefix.as_ref());
        self.call(move |partition| partition.delete_prefix(prefix)).await
    }
}

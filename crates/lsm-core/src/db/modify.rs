//! Read, modify, write on one key: no lock between reading and writing, but a requirement that no
//! other write came in between, and another round if one did.

use super::Partition;
use super::commit::Commit;
use crate::error::{ErrorKind, Result};
use crate::options::WriteOptions;
use crate::types::{SeqNo, Slice};

/// The outcome of a [`Partition::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the value may not have been set"]
pub enum Swap {
    /// The key had the expected value, and has the new one.
    Done(Commit),
    /// The key has another value than expected: nothing was written.
    Differs(Option<Slice>),
}

impl Swap {
    /// Returns whether the new value was set.
    pub fn is_done(&self) -> bool {
        matches!(self, Swap::Done(_))
    }
}

/// The outcome of a [`Partition::update`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated<V> {
    /// The commit of the new value; the newest commit if nothing was there and nothing is written.
    pub commit: Commit,
    /// The value that the key had, from which the new one was computed.
    pub old: Option<Slice>,
    /// The value that the key has since; `None` if it was deleted.
    pub new: Option<V>,
}

impl Partition {
    /// Sets `key` to the result of `change` for its value, or deletes it for `None`. `change` is
    /// called again with the newer value whenever another writer wrote the key meanwhile.
    pub fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Updated<V>> {
        self.update_with(key, WriteOptions::default(), change)
    }

    /// As [`Partition::update`], with options.
    pub fn update_with<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Updated<V>> {
        let options = options.into();
        let key = key.as_ref();
        loop {
            // The number first: the later read sees every operation through it.
            let seq = self.db().commit.visible_seq();
            let old = self.get(key)?;
            let new = change(old.as_deref());
            let bytes = new.as_ref().map(AsRef::as_ref);
            // Optimistic: a lock for each key would cost every caller, and a conflict is rare.
            match self.replace(key, old.is_some(), bytes, seq, options) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                answer => return answer.map(|commit| Updated { commit, old, new }),
            }
        }
    }

    /// Sets `key` to `new` if it has the value `expected`, where `None` is no value: the key does
    /// not exist, or is deleted.
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        self.compare_and_set_with(key, expected, new, WriteOptions::default())
    }

    /// As [`Partition::compare_and_set`], with options.
    pub fn compare_and_set_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Swap> {
        let options = options.into();
        let key = key.as_ref();
        loop {
            // Before the read, as in `update_with`: with a later number, a write in between would
            // not be noticed.
            let seq = self.db().commit.visible_seq();
            let present = self.get(key)?;
            // No write and no requirement: the difference holds at the moment of the read.
            if present.as_deref() != expected {
                return Ok(Swap::Differs(present));
            }
            match self.replace(key, present.is_some(), new, seq, options) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                answer => return answer.map(Swap::Done),
            }
        }
    }

    /// Writes `new` if no one has written `key` after `seq`.
    fn replace(
        &self,
        key: &[u8],
        exists: bool,
        new: Option<&[u8]>,
        seq: SeqNo,
        options: WriteOptions,
    ) -> Result<Commit> {
        let mut batch = self.open_db().batch();
        match new {
            Some(value) => batch.add_put(self, key, value),
            None if exists => batch.add_delete(self, key),
            // The key stays as it is; nothing is written.
            None => return batch.commit(options),
        }
        batch.add_require(self, key, seq);
        batch.commit(options)
    }
}

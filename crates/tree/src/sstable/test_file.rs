//! A file in memory, for the tests of tables and of the block cache.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;
use crate::fs::{File, MappedBytes};

/// A file in memory.
#[derive(Default)]
pub(crate) struct TestFile(pub Mutex<Vec<u8>>);

impl TestFile {
    pub(crate) fn holding(bytes: &[u8]) -> Arc<TestFile> {
        Arc::new(TestFile(Mutex::new(bytes.to_vec())))
    }
}

impl File for TestFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.0.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock();
        let start = usize::try_from(offset).expect("it is in memory").min(bytes.len());
        let len = buf.len().min(bytes.len() - start);
        buf[..len].copy_from_slice(&bytes[start..start + len]);
        Ok(len)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn preallocate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        let start = usize::try_from(offset).ok()?;
        let bytes = self.0.lock().get(start..start + len)?.to_vec();
        Some(Arc::new(bytes))
    }

    fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

//! Macros for the calls that a file system or a file of a test passes on unchanged.

/// The calls of [`lsm_core::fs::Fs`] that neither open nor list, passed on to a field.
macro_rules! forward_fs {
    ($field:tt) => {
        fn caps(&self) -> lsm_core::fs::Caps {
            self.$field.caps()
        }
        fn create_dir(&self, dir: &std::path::Path) -> siltstone::Result<()> {
            self.$field.create_dir(dir)
        }
        fn put_if_absent(&self, path: &std::path::Path, content: &[u8]) -> siltstone::Result<bool> {
            self.$field.put_if_absent(path, content)
        }
        fn list(
            &self,
            dir: &std::path::Path,
            prefix: &str,
        ) -> siltstone::Result<Vec<lsm_core::fs::DirEntry>> {
            self.$field.list(dir, prefix)
        }
        fn delete(&self, path: &std::path::Path) -> siltstone::Result<()> {
            self.$field.delete(path)
        }
        fn link(&self, from: &std::path::Path, to: &std::path::Path) -> siltstone::Result<()> {
            self.$field.link(from, to)
        }
        fn sync_dir(&self, dir: &std::path::Path) -> siltstone::Result<()> {
            self.$field.sync_dir(dir)
        }
        fn try_lock(
            &self,
            path: &std::path::Path,
        ) -> siltstone::Result<Option<Box<dyn lsm_core::fs::LockGuard>>> {
            self.$field.try_lock(path)
        }
        fn try_lock_shared(
            &self,
            path: &std::path::Path,
        ) -> siltstone::Result<Option<Box<dyn lsm_core::fs::LockGuard>>> {
            self.$field.try_lock_shared(path)
        }
        fn free_bytes(&self, dir: &std::path::Path) -> siltstone::Result<u64> {
            self.$field.free_bytes(dir)
        }
    };
}

/// The calls of [`lsm_core::fs::File`], without its syncs and its reads past the cache, passed on
/// to the field `file`.
macro_rules! forward_file {
    () => {
        fn append(&self, bytes: &[u8]) -> siltstone::Result<()> {
            self.file.append(bytes)
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> siltstone::Result<usize> {
            self.file.read_at(offset, buf)
        }
        fn len(&self) -> siltstone::Result<u64> {
            self.file.len()
        }
        fn preallocate(&self, len: u64) -> siltstone::Result<()> {
            self.file.preallocate(len)
        }
        fn punch(&self, offset: u64, len: u64) -> siltstone::Result<()> {
            self.file.punch(offset, len)
        }
    };
}

pub(crate) use {forward_file, forward_fs};

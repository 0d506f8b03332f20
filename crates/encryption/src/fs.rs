//! [`EncryptedFs`]: the file system that encrypts.
//!
//! Invariant: every byte that a caller appends or publishes is encrypted. Only what [`Fs::map_words`] shares, and
//! names, lengths and times of files, are as without encryption.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use storage::Result;
use storage::fs::names::{self, FileKind, FileName};
use storage::fs::{
    AppendMode, Caps, DirEntry, File, FolderLook, FolderState, Fs, HeldDir, LockGuard, MapMode,
    SharedWords,
};

use crate::file::{EncryptedFile, FileFront, seal_whole};
use crate::keys::KeyProvider;
use crate::pages::Pages;
use crate::record::data_between;

/// A file system that encrypts and authenticates each file of another one.
///
/// Give it to everything that opens the database: [`Builder::fs`], [`SecondaryBuilder::fs`], `BackupEngine::fs`. Each
/// file has a random key of its own, which the current key of the [`KeyProvider`] wraps in the header of the file.
/// `docs/encryption.md` states what is hidden, what is not, and which changes of files are found.
///
/// [`Builder::fs`]: https://docs.rs/siltstone
/// [`SecondaryBuilder::fs`]: https://docs.rs/siltstone
///
/// # Errors
/// Calls on files return, in addition to the errors of the inner file system: `InvalidArgument` for a file that is
/// not encrypted, and for one whose key the provider does not have; `Corruption` for a header that its key does not
/// open, and for bytes that were changed. Each names the file.
///
/// # Cost
/// 256 bytes a file, 32 bytes an append, and 32 bytes in 4 KiB of data. A read decrypts the pages of 4 KiB that it
/// needs. Nothing is mapped: `Partition::get_ref` and `Options::tables_mapped` read copies.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
/// use siltstone::Db;
/// use siltstone::fs::{Fs, MemFs};
///
/// # fn main() -> siltstone::Result<()> {
/// let inner = MemFs::new(); // `OsFs` in an application.
/// let keys = KeyRing::new(KeyId::new("2026-11")?, EncryptionKey::random()?);
/// let fs = Arc::new(EncryptedFs::new(Arc::new(inner.clone()), Arc::new(keys)));
/// let db = Db::builder("/db").fs(fs.clone()).open()?;
/// db.partition("users")?.put("alice", "admin")?;
/// db.close()?;
///
/// let again = Db::builder("/db").fs(fs).open()?;
/// assert_eq!(again.partition("users")?.get("alice")?.as_deref(), Some(&b"admin"[..]));
/// # drop(again);
/// assert!(Db::builder("/db").fs(Arc::new(inner)).open().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EncryptedFs {
    inner: Arc<dyn Fs>,
    keys: Arc<dyn KeyProvider>,
}

impl EncryptedFs {
    /// Encrypts the files of `inner` by `keys`.
    pub fn new(inner: Arc<dyn Fs>, keys: Arc<dyn KeyProvider>) -> EncryptedFs {
        EncryptedFs { inner, keys }
    }

    /// The file system below.
    pub fn inner(&self) -> &Arc<dyn Fs> {
        &self.inner
    }

    /// The keys.
    pub fn keys(&self) -> &Arc<dyn KeyProvider> {
        &self.keys
    }

    fn pages(&self, path: &Path, file: Arc<dyn File>) -> Pages {
        Pages::new(file, path, self.keys.clone(), expects_damage(path))
    }
}

/// Returns `true` for a file whose reader goes on after bytes that are not what was written: the log, manifests and
/// leases, which a power cut may leave with any content at their ends.
fn expects_damage(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    matches!(kind_of(name), Some(FileKind::Wal | FileKind::Manifest)) || names::is_lease(name)
}

fn kind_of(name: &str) -> Option<FileKind> {
    FileName::parse(name).map(|name| name.kind)
}

impl Fs for EncryptedFs {
    fn caps(&self) -> Caps {
        Caps { is_encrypted: true, ..self.inner.caps() }
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        let file = match mode {
            AppendMode::IfAbsent => {
                // Before the file is made: without a key there is none.
                let front = FileFront::make(&*self.keys)?;
                let file = self.inner.open_append(path, mode)?;
                EncryptedFile::created(self.pages(path, file), front)?
            }
            AppendMode::Existing => {
                let file = self.inner.open_append(path, mode)?;
                EncryptedFile::continued(self.pages(path, file))?
            }
        };
        Ok(Arc::new(file))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        let pages = self.pages(path, self.inner.open_read(path)?);
        // A missing key is an error of the open, not of a later read.
        pages.header()?;
        Ok(Arc::new(EncryptedFile::reading(pages)))
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        if content.is_empty() {
            return self.inner.put_if_absent(path, content);
        }
        self.inner.put_if_absent(path, &seal_whole(&*self.keys, content)?)
    }

    /// The lengths of chunk files are those of [`File::len`], because a value store records them: each is opened. Those
    /// of other files may be up to 32 bytes larger for each append but the first.
    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let mut entries = self.inner.list(dir, prefix)?;
        for entry in &mut entries {
            let is_chunk = kind_of(&entry.name) == Some(FileKind::Chunk);
            let exact = is_chunk.then(|| self.open_read(&dir.join(&entry.name))?.len());
            // A file that cannot be opened is an error of its reads, and not of a list.
            entry.len = match exact {
                Some(Ok(len)) => len,
                _ => data_between(0, entry.len),
            };
        }
        Ok(entries)
    }

    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        self.inner.list_names(dir, prefix)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.inner.delete(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn sync_names(&self, dir: &Path, names: &[PathBuf]) -> Result<()> {
        self.inner.sync_names(dir, names)
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        self.inner.sync_files(files)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.inner.try_lock(path)
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.inner.try_lock_shared(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.inner.free_bytes(dir)
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        self.inner.map_words(path, mode)
    }

    fn machine_run(&self) -> Option<u64> {
        self.inner.machine_run()
    }

    fn folder_state(&self, dir: &Path, wanted: FolderState) -> Result<FolderLook> {
        self.inner.folder_state(dir, wanted)
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        let HeldDir { path, fs } = self.inner.hold_dir(dir)?;
        let fs =
            fs.map(|inner| Arc::new(EncryptedFs { inner, keys: self.keys.clone() }) as Arc<dyn Fs>);
        Ok(HeldDir { path, fs })
    }
}

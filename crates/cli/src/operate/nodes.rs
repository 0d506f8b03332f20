//! [`NodesFile`]: the list of nodes that routers read, and the lock of the operator that writes it.
//!
//! Invariants:
//! 1. One operator writes a file: the lock lies next to it, and ends with the process.
//! 2. Readers of the file see an old list or a new one, never a part.

use std::io::Write;
use std::path::{Path, PathBuf};

use siltstone::fs::{Fs, LockGuard, OsFs};

use crate::output::Failure;

/// The list of nodes that routers read.
pub(super) struct NodesFile {
    path: PathBuf,
    /// Nodes that are always there, first of all the primary.
    fixed: Vec<String>,
    written: Option<Vec<String>>,
    _lock: Box<dyn LockGuard>,
}

/// Returns the path with `ending` after its name.
pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Replaces a file by a rename.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new();
    #[cfg(unix)]
    {
        // Routers may run as another user.
        use std::os::unix::fs::PermissionsExt;
        file.permissions(std::fs::Permissions::from_mode(0o644));
    }
    let mut file = file.tempfile_in(folder).map_err(|e| Failure::io("write", path, &e))?;
    file.write_all(text.as_bytes()).map_err(|e| Failure::io("write", path, &e))?;
    file.persist(path).map_err(|e| Failure::io("write", path, &e.error))?;
    Ok(())
}

impl NodesFile {
    /// Takes the lock, and refuses if another operator has it.
    pub(super) fn lock(path: &Path, fixed: Vec<String>) -> Result<NodesFile, Failure> {
        let Some(lock) = OsFs.try_lock(&with_ending(path, ".lock"))? else {
            let text = format!("another operator writes {}; end it first", path.display());
            return Err(Failure::Io(text));
        };
        Ok(NodesFile { path: path.to_owned(), fixed, written: None, _lock: lock })
    }

    /// Sets the readers, if they are others than before.
    pub(super) fn set(&mut self, readers: &[String]) -> Result<(), Failure> {
        if self.written.as_deref() == Some(readers) {
            return Ok(());
        }
        let mut text = "# written by siltstone operate\n".to_owned();
        for address in self.fixed.iter().chain(readers) {
            text.push_str(address);
            text.push('\n');
        }
        replace(&self.path, &text)?;
        self.written = Some(readers.to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operator_is_refused_until_the_first_one_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes");
        let mut first = NodesFile::lock(&path, vec!["a:1".to_owned()]).unwrap();
        let Err(Failure::Io(text)) = NodesFile::lock(&path, Vec::new()) else {
            panic!("two operators write one file")
        };
        assert!(text.contains("another operator") && text.contains("nodes"), "{text}");
        first.set(&["b:2".to_owned()]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "# written by siltstone operate\na:1\nb:2\n");
        first.set(&[]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "# written by siltstone operate\na:1\n");
        drop(first);
        NodesFile::lock(&path, Vec::new()).unwrap();
    }
}

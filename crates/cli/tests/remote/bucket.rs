//! A bucket in a folder, and the command with its URL.

use std::path::{Path, PathBuf};

use crate::runner::ended;

/// A folder, with the URL of a bucket in it.
pub struct Place {
    folder: tempfile::TempDir,
    pub url: String,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().expect("there is a place for it");
        let url = url_in(folder.path(), "bucket");
        Place { folder, url }
    }

    pub fn at(&self) -> &Path {
        self.folder.path()
    }

    pub fn bucket(&self) -> PathBuf {
        self.at().join("bucket")
    }

    /// Ends with success and without a note; returns standard output.
    #[track_caller]
    pub fn said(&self, args: &[&str]) -> String {
        let output = ended(self.at(), args, 0);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// Ends with `code`; returns standard error.
    #[track_caller]
    pub fn refused(&self, args: &[&str], code: i32) -> String {
        let output = ended(self.at(), args, code);
        String::from_utf8(output.stderr).expect("it prints text")
    }

    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        assert_eq!(self.said(&["put", "db", key, value, "--remote", &self.url]), "");
    }

    pub fn objects(&self, dir: &str) -> Vec<PathBuf> {
        files_below(&self.bucket().join(dir))
    }
}

pub fn url_in(folder: &Path, name: &str) -> String {
    format!("file://{}/{name}", folder.display())
}

/// The files below `dir`, in order.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("the folder is listed").path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

#[track_caller]
pub fn assert_narrow(text: &str) {
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

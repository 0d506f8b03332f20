//! Tests in a process of their own: for limits, streams and forks, which concern the whole process.
//!
//! A test binary starts itself again, for one test. That test reads a folder from its environment,
//! and works in it. Without the variable, as under the test runner, it starts the child.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable with the folder of a child.
const FOLDER: &str = "SILTSTONE_TEST_CHILD_FOLDER";

/// Runs `test` of this binary as a child that works in `folder`.
///
/// # Panics
/// The child fails; the message has what it printed.
pub fn run_child(test: &str, folder: &Path) {
    let binary = std::env::current_exe().expect("a test binary has a path");
    let done = Command::new(binary)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .output()
        .expect("a test binary can be started again");
    let said = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).join("\n");
    assert!(done.status.success(), "{}\n{said}", done.status);
}

/// Returns the folder of this child; `None` in the test that starts it.
pub fn child_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

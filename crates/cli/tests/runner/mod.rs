//! Runs the command.

use std::path::Path;
use std::process::{Command, Output};

/// The command in `folder`, to its end.
pub fn siltstone(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    command.current_dir(folder).args(args).output().expect("the command can be started")
}

/// As [`siltstone`], with this exit code.
#[track_caller]
pub fn ended(folder: &Path, args: &[&str], code: i32) -> Output {
    let output = siltstone(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    output
}

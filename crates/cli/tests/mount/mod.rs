//! File systems of their own for tests, where the process may mount them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount that is removed when the test ends.
pub struct Mount(pub PathBuf);

impl Mount {
    /// Mounts a file system of this kind, `tmpfs` or `ext4`, of so many bytes; `None` if this
    /// process may not, or if the tools are missing.
    pub fn new(at: &Path, kind: &str, bytes: u64) -> Option<Mount> {
        std::fs::create_dir(at).expect("the name is free");
        let size = format!("size={bytes}");
        let image = at.with_extension("image");
        let mut mount = Command::new("mount");
        if kind == "tmpfs" {
            mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]);
        } else {
            let file = std::fs::File::create(&image).expect("the name is free");
            file.set_len(bytes).expect("a sparse file can have any length");
            let mut make = Command::new(format!("mkfs.{kind}"));
            make.arg("-q").args((kind == "ext4").then_some(["-m", "0"]).into_iter().flatten());
            if !succeeds(make.arg(&image)) {
                return None;
            }
            mount.args(["-o", "loop"]).arg(&image);
        }
        succeeds(mount.arg(at)).then(|| Mount(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

/// Runs a command; `false` if it cannot be run, or fails.
pub fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Prints the reason why a test cannot run.
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
pub fn skipped(why: &str) {
    println!("skipped: {why}");
}

//! Ctrl-C, for a command that waits for it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Starts the command, waits until it waits for Ctrl-C and has read most of `input`, sends Ctrl-C, and returns its end.
/// Standard input stays open.
pub fn interrupted(at: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let command = command.current_dir(at).args(args).stdin(Stdio::piped());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be started");
    let pipe = child.stdin.as_mut().expect("it is a pipe");
    pipe.write_all(input).expect("the command reads it");
    let status = format!("/proc/{}/status", child.id());
    loop {
        let status = std::fs::read_to_string(&status).expect("it is not waited for yet");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let mask = mask.expect("the system names the signals that a process waits for");
        assert!(!status.contains("State:\tZ"), "{args:?} ended before");
        // The second signal is the interrupt.
        if mask & 2 != 0 {
            break;
        }
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("the command runs");
    child.wait_with_output().expect("the command ends")
}

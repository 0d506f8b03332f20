//! The real file system does sync: this process counts the system calls of a child process.
//!
//! Every other test would pass on an `OsFs` whose `sync` does nothing: a process reads back what it
//! has written, and simulated power cuts happen to simulated file systems. So a child writes with
//! `Durability::Sync`, and this process sees its system calls through `ptrace`.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(
    clippy::disallowed_methods,
    reason = "the threads of a process are no files of a database"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use siltstone::{Db, Durability};

/// The environment variable with the folder of the child.
const FOLDER: &str = "SILTSTONE_TEST_SYNCS";
const READY: &str = "the child is ready";
const PUTS: u32 = 50;

#[cfg(target_arch = "x86_64")]
const FSYNC: u64 = 74;
#[cfg(target_arch = "x86_64")]
const FDATASYNC: u64 = 75;
#[cfg(target_arch = "x86_64")]
const PWRITE: u64 = 18;
/// The call that gives a file its name.
#[cfg(target_arch = "x86_64")]
const LINKAT: u64 = 265;
#[cfg(target_arch = "aarch64")]
const FSYNC: u64 = 82;
#[cfg(target_arch = "aarch64")]
const FDATASYNC: u64 = 83;
#[cfg(target_arch = "aarch64")]
const PWRITE: u64 = 68;
/// The call that gives a file its name.
#[cfg(target_arch = "aarch64")]
const LINKAT: u64 = 37;

/// The number of the system call that a thread is entering or leaving.
#[cfg(target_arch = "x86_64")]
fn call_number(thread: Pid) -> nix::Result<u64> {
    Ok(ptrace::getregs(thread)?.orig_rax)
}

#[cfg(target_arch = "aarch64")]
fn call_number(thread: Pid) -> nix::Result<u64> {
    Ok(ptrace::getregs(thread)?.regs[8])
}

/// Does nothing unless it is the child.
#[test]
fn child_that_writes_with_syncs() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    writeln!(std::io::stdout(), "\n{READY}").unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let db = Db::open(Path::new(&folder)).unwrap();
    let p = db.partition("p").unwrap();
    for number in 0..PUTS {
        p.put_with(number.to_be_bytes(), "value", Durability::Sync).unwrap();
    }
    p.flush().unwrap();
    db.close().unwrap();
}

/// Number of stops seen for each call: one when it begins, and one when it ends.
#[derive(Debug, Default)]
struct Stops {
    fdatasync: u32,
    fsync: u32,
    linkat: u32,
    /// Of `linkat`, those after bytes that the same thread has not synced.
    linkat_unsynced: u32,
    /// The threads with such bytes.
    unsynced: BTreeSet<Pid>,
}

impl Stops {
    fn count(&mut self, thread: Pid, call: u64) {
        match call {
            FDATASYNC => self.fdatasync += 1,
            FSYNC => self.fsync += 1,
            LINKAT => {
                self.linkat += 1;
                self.linkat_unsynced += u32::from(self.unsynced.contains(&thread));
            }
            _ => {}
        }
        if call == PWRITE {
            self.unsynced.insert(thread);
        } else if matches!(call, FDATASYNC | FSYNC) {
            self.unsynced.remove(&thread);
        }
    }
}

/// Attaches to all threads of a child that waits for its input.
fn attach(child: &Child) {
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    for task in std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap() {
        let thread = task.unwrap().file_name().into_string().unwrap().parse().unwrap();
        ptrace::seize(Pid::from_raw(thread), options).unwrap();
        ptrace::interrupt(Pid::from_raw(thread)).unwrap();
    }
}

/// Continues a stopped thread to its next system call. A killed thread is gone.
fn resume(thread: Pid, signal: Option<Signal>) {
    match ptrace::syscall(thread, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("thread {thread}: {error}"),
    }
}

/// Counts until the child exits. Returns its status.
fn count_calls(child: Pid) -> (Stops, i32) {
    let mut stops = Stops::default();
    loop {
        match waitpid(None, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceSyscall(thread) => {
                if let Ok(call) = call_number(thread) {
                    stops.count(thread, call);
                }
                resume(thread, None);
            }
            WaitStatus::PtraceEvent(thread, ..) => resume(thread, None),
            WaitStatus::Stopped(thread, signal) => resume(thread, Some(signal)),
            WaitStatus::Exited(process, status) if process == child => return (stops, status),
            WaitStatus::Signaled(process, signal, _) if process == child => {
                panic!("the child was ended by {signal}")
            }
            _ => {}
        }
    }
}

#[test]
fn each_synced_put_is_a_sync_that_the_kernel_sees() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes_with_syncs", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(READY) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended");
    }
    attach(&child);
    writeln!(child.stdin.take().unwrap(), "go on").unwrap();
    let (stops, status) = count_calls(Pid::from_raw(child.id().try_into().unwrap()));
    // The put waited for it.
    let _ = child.wait();
    assert_eq!(status, 0);
    println!("{stops:?}");
    assert!(stops.fdatasync / 2 >= PUTS, "{stops:?}: {PUTS} puts were to be synced");
    assert!(stops.fsync / 2 >= 3, "{stops:?}: names of files were to be synced");
    assert!(stops.linkat > 0, "{stops:?}: files were to be published");
    assert_eq!(stops.linkat_unsynced, 0, "{stops:?}: a file got its name before its bytes");
}

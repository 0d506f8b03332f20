//! A process that forks while it has databases open: its children change nothing, never hang, and
//! get an error from every call.
//!
//! The test binary starts itself again as the owner of a database, because a fork copies only one
//! thread, and other tests have theirs. The owner forks children during its work. A child that
//! hangs is ended by a signal, which the owner sees.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(unsafe_code, reason = "the call that copies a process")]

mod handles;

use std::io::{Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, alarm, fork};
use siltstone::{Db, Durability, ErrorKind, ResourceOptions, ResourceUsage, Resources};
use testkit::child::child_folder;

use handles::{Handles, check, key};

/// A child that needs longer hangs. It needs milliseconds.
const SECONDS_MAX: u32 = 60;

/// Runs a test of this binary as the owner of a database in a folder of its own.
fn run_owner(test: &str) {
    testkit::child::run_child(test, tempfile::tempdir().unwrap().path());
}

/// Starts a child that does `work` and exits.
fn start_child(work: impl FnOnce()) -> Pid {
    // SAFETY: the child uses nothing that the threads of the owner had under way: the C library and Rust's
    // standard library keep the allocator and the standard streams usable, and that everything else is
    // refused before it takes a lock is the subject of this test.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            alarm::set(SECONDS_MAX);
            let is_done = catch_unwind(AssertUnwindSafe(work)).is_ok();
            std::process::exit(i32::from(!is_done));
        }
    }
}

/// Does `work` in a child, and waits for its end.
fn in_child(work: impl FnOnce()) {
    wait(start_child(work));
}

fn wait(child: Pid) {
    let ended = waitpid(child, None).unwrap();
    assert!(matches!(ended, WaitStatus::Exited(_, 0)), "{ended:?}");
}

/// Does nothing unless it is the owner.
#[test]
fn owner_whose_child_drops_everything() {
    let Some(dir) = child_folder() else { return };
    let handles = Handles::open(&dir);
    let mut handles = Some(handles);
    in_child(|| drop(handles.take()));
    handles.unwrap().finish();
}

#[test]
fn a_child_that_drops_its_handles_changes_nothing() {
    run_owner("owner_whose_child_drops_everything");
}

/// Does nothing unless it is the owner.
#[test]
fn owner_whose_child_calls_everything() {
    let Some(dir) = child_folder() else { return };
    let mut handles = Some(Handles::open(&dir));
    in_child(|| handles.take().unwrap().call_all());
    handles.unwrap().finish();
}

#[test]
fn every_call_of_a_child_is_refused() {
    run_owner("owner_whose_child_calls_everything");
}

/// Does nothing unless it is the owner.
#[test]
fn owner_that_forks_in_the_midst_of_work() {
    let Some(dir) = child_folder() else { return };
    let mut handles = Some(Handles::open(&dir));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for thread in 0..3_u32 {
        let db = handles.as_ref().unwrap().db.clone();
        let words = handles.as_ref().unwrap().words.clone();
        let media = handles.as_ref().unwrap().media.clone();
        let is_over = is_over.clone();
        threads.push(std::thread::spawn(move || {
            let mut number = thread;
            while !is_over.load(Ordering::Relaxed) {
                number = number.wrapping_add(3) % 2000;
                let durability = if number % 50 == 0 { Durability::Sync } else { Durability::Os };
                // Not the key that the transaction has read.
                words.put_with(key(number.max(2)), "first", durability).unwrap();
                words.get(key(number * 7 % 2000)).unwrap().unwrap();
                // Most of the time of a lock passes in the table of all locks.
                let mut locking = db.transaction();
                for n in 0..8 {
                    locking.get_for_update(&words, [thread as u8, n]).unwrap();
                }
                if number % 100 == 0 {
                    media.put(format!("temporary{thread}"), vec![1; 100_000]).unwrap();
                    media.get("film").unwrap().unwrap();
                }
            }
        }));
    }
    for _ in 0..25 {
        in_child(|| handles.take().unwrap().call_all());
    }
    is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    handles.unwrap().finish();
}

/// The fork may happen while any lock is held.
#[test]
fn no_child_hangs() {
    run_owner("owner_that_forks_in_the_midst_of_work");
}

/// Does nothing unless it is the owner.
#[test]
fn owner_whose_child_has_its_resources() {
    let Some(dir) = child_folder() else { return };
    let path = dir.join("db");
    let resources = Resources::new(ResourceOptions::new()).unwrap();
    in_child(|| {
        let refused = Db::builder(&path).resources(&resources).open().map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed);
        let refused = resources.set_background_bytes_per_second(0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed);
        assert_eq!(resources.usage(), ResourceUsage::default());
    });
    assert!(!path.exists(), "a refused open writes nothing");
    Db::builder(&path).resources(&resources).open().unwrap();
}

#[test]
fn a_child_opens_nothing_with_the_resources_of_its_parent() {
    run_owner("owner_whose_child_has_its_resources");
}

/// Does nothing unless it is the owner.
#[test]
fn owner_that_closes_before_its_child_ends() {
    let Some(dir) = child_folder() else { return };
    let path = dir.join("db");
    let db = Db::open(&path).unwrap();
    db.partition("words").unwrap().put("a", "1").unwrap();
    let mut ends = Some(std::io::pipe().unwrap());
    // The child has copies of everything, including the locks.
    let child = start_child(|| {
        let (mut end, other) = ends.take().unwrap();
        drop(other);
        // A wait for a lock here uses the table of the threads of the owner.
        let refused = Db::open(dir.join("other")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(Db::secondary(&path).is_err_and(|e| e.kind() == ErrorKind::Unsupported));
        assert!(Db::builder(&path).read_only(true).open().is_err());
        std::io::copy(&mut end, &mut std::io::sink()).unwrap();
    });
    db.close().unwrap();
    let db = Db::open(&path).unwrap();
    let words = db.partition("words").unwrap();
    assert_eq!(words.get("a").unwrap().unwrap(), b"1");
    words.put_with("b", "1", Durability::Sync).unwrap();
    drop(words);
    // A child of the parent of this child, with a file that no handle has closed there.
    db.close().unwrap();
    drop(ends);
    wait(child);
    // Nothing is open now: a child may open any database.
    in_child(|| {
        let db = Db::open(&path).unwrap();
        let words = db.partition("words").unwrap();
        assert_eq!(words.get("b").unwrap().unwrap(), b"1");
        words.put_with("c", "1", Durability::Sync).unwrap();
        drop(words);
        db.close().unwrap();
    });
    let db = Db::open(&path).unwrap();
    let words = db.partition("words").unwrap();
    assert_eq!(words.get("c").unwrap().unwrap(), b"1");
    drop(words);
    db.close().unwrap();
}

#[test]
fn a_child_keeps_no_lock_and_opens_what_its_parent_has_closed() {
    run_owner("owner_that_closes_before_its_child_ends");
}

/// Does nothing unless it is the owner.
#[test]
fn owner_whose_child_goes_on_alone() {
    let Some(dir) = child_folder() else { return };
    // The first process of a daemon: it opens, forks, and ends without a close.
    let mut pipe = Some(std::io::pipe().unwrap());
    let mut over = Some(std::io::pipe().unwrap());
    let first = start_child(|| {
        let db = Db::open(&dir).unwrap();
        let words = db.partition("words").unwrap();
        words.put_with("a", "1", Durability::Sync).unwrap();
        let mut handles = Some((db, words));
        let mut alive = Some(std::io::pipe().unwrap());
        start_child(|| {
            let (db, words) = handles.take().unwrap();
            let (mut gone, own) = alive.take().unwrap();
            drop(own);
            std::io::copy(&mut gone, &mut std::io::sink()).unwrap();
            check("put", words.put("b", "1"));
            check("flush", db.flush());
            drop((db, words));
            // The lock is free now, and this process may not take it.
            let (_, mut tell) = pipe.take().unwrap();
            tell.write_all(b"refused").unwrap();
            // Lives on, so that a lock that it kept would be found.
            let (mut over, own) = over.take().unwrap();
            drop(own);
            std::io::copy(&mut over, &mut std::io::sink()).unwrap();
        });
        std::process::exit(0);
    });
    wait(first);
    let (mut pipe, tell) = pipe.take().unwrap();
    drop(tell);
    let mut said = [0; 7];
    pipe.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"refused");
    let db = Db::open(&dir).unwrap();
    let words = db.partition("words").unwrap();
    assert_eq!(words.get("a").unwrap().unwrap(), b"1");
    assert!(words.get("b").unwrap().is_none());
    drop(words);
    db.close().unwrap();
    drop(over);
}

#[test]
fn a_child_that_goes_on_alone_is_refused_and_keeps_no_lock() {
    run_owner("owner_whose_child_goes_on_alone");
}

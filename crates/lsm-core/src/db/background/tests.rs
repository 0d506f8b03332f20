//! Threads and steps over work that is a number which falls.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::clock::SystemClock;

/// Work to do: flushes and compactions, as numbers that fall.
struct Heap {
    background: Background,
    flushes: AtomicU64,
    compactions: AtomicU64,
    /// Flushes fail while it is set.
    is_broken: AtomicBool,
    /// The same for compactions.
    are_compactions_broken: AtomicBool,
    /// With 1 the next flush sets it to 2, waits until all threads are woken, sets it to 3 and fails. The
    /// flush after it waits until it is 0.
    held: AtomicU64,
    /// The log is checked all the time, and tables from time to time.
    is_restless: AtomicBool,
    /// Looks at the log, and for compactions.
    log_looks: AtomicU64,
    compaction_looks: AtomicU64,
    /// A compaction was requested while a thread for it was idle.
    was_idle_at_work: AtomicBool,
    log: Mutex<Vec<&'static str>>,
}

fn take(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

impl Heap {
    fn new(mode: BackgroundMode, flushes: u64, compactions: u64) -> Arc<Heap> {
        let clock = Arc::new(SystemClock::new());
        Arc::new(Heap {
            background: Background::new(mode, clock, Arc::new(Events::default())),
            flushes: AtomicU64::new(flushes),
            compactions: AtomicU64::new(compactions),
            is_broken: AtomicBool::new(false),
            held: AtomicU64::new(0),
            are_compactions_broken: AtomicBool::new(false),
            is_restless: AtomicBool::new(false),
            log_looks: AtomicU64::new(0),
            compaction_looks: AtomicU64::new(0),
            was_idle_at_work: AtomicBool::new(false),
            log: Mutex::default(),
        })
    }

    fn note(&self, what: &'static str) {
        self.log.lock().push(what);
    }
}

impl Worker for Heap {
    fn give_up_memory(&self) -> Option<Duration> {
        None
    }

    fn background(&self) -> &Background {
        &self.background
    }

    fn check_working(&self) -> Result<()> {
        Ok(())
    }

    fn flush_one(&self) -> Result<bool> {
        let wakes = self.background.wakes();
        if self.held.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            wait_until(|| self.background.wakes() > wakes);
            self.held.store(3, Ordering::SeqCst);
            return Err(Error::new(ErrorKind::Io, "the disk was away"));
        }
        wait_until(|| self.held.load(Ordering::SeqCst) == 0);
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "the disk is away"));
        }
        let some = take(&self.flushes);
        if some {
            self.note("flush");
        }
        Ok(some)
    }

    fn compact_one(&self) -> Result<bool> {
        self.compaction_looks.fetch_add(1, Ordering::SeqCst);
        if self.background.has_idle_compactor() {
            self.was_idle_at_work.store(true, Ordering::SeqCst);
        }
        if self.are_compactions_broken.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "no compaction works"));
        }
        let some = take(&self.compactions);
        if some {
            self.note("compaction");
        }
        Ok(some)
    }

    fn tend_log(&self) -> Result<Option<Duration>> {
        self.log_looks.fetch_add(1, Ordering::SeqCst);
        let is_restless = self.is_restless.load(Ordering::SeqCst);
        Ok(is_restless.then_some(Duration::from_millis(10)))
    }

    fn tend_log_now(&self) -> Result<bool> {
        self.note("log");
        Ok(false)
    }

    fn remove_obsolete(&self) -> Result<()> {
        self.note("obsolete");
        Ok(())
    }

    fn finish_removing(&self) -> Result<()> {
        self.note("removed");
        Ok(())
    }

    fn holds_obsolete(&self) -> bool {
        false
    }

    fn waits_for_release(&self) -> bool {
        self.is_restless.load(Ordering::SeqCst)
    }

    fn has_work(&self) -> bool {
        self.flushes.load(Ordering::SeqCst) + self.compactions.load(Ordering::SeqCst) > 0
    }

    fn ease(&self) {}
}

#[test]
fn a_step_flushes_first_and_looks_after_the_log_last() {
    let heap = Heap::new(BackgroundMode::Stepped, 1, 1);
    assert!(heap.background.step(&*heap).unwrap());
    assert!(heap.background.step(&*heap).unwrap());
    assert!(!heap.background.step(&*heap).unwrap());
    assert_eq!(*heap.log.lock(), ["flush", "compaction", "log", "obsolete"]);
}

/// As threads do: the kinds of work are independent.
#[test]
fn a_step_goes_on_after_work_that_fails() {
    let heap = Heap::new(BackgroundMode::Stepped, 1, 1);
    heap.is_broken.store(true, Ordering::SeqCst);
    let error = heap.background.step(&*heap).unwrap_err();
    assert!(error.to_string().contains("the disk is away"), "{error}");
    assert_eq!(*heap.log.lock(), ["compaction"], "a step is one piece of work");
    heap.are_compactions_broken.store(true, Ordering::SeqCst);
    let error = heap.background.step(&*heap).unwrap_err();
    assert!(error.to_string().contains("the disk is away"), "{error}");
    assert_eq!(heap.log.lock()[1..], ["log", "obsolete"]);
    heap.is_broken.store(false, Ordering::SeqCst);
    assert!(heap.background.step(&*heap).unwrap());
    let error = heap.background.step(&*heap).unwrap_err();
    assert!(error.to_string().contains("no compaction works"), "{error}");
    assert_eq!(heap.log.lock()[3..], ["flush", "log", "obsolete"]);
    assert_eq!(heap.background.failures().len(), 1);
}

#[test]
fn threads_work_until_nothing_is_left_and_end_when_they_are_stopped() {
    let heap = Heap::new(BackgroundMode::Threads, 30, 30);
    heap.background.start(&heap, 2, None).unwrap();
    heap.background.wait_idle(&*heap).unwrap();
    assert!(!heap.has_work() && heap.log.lock().last() == Some(&"removed"));
    heap.background.stop();
    assert!(heap.background.is_stopping() && heap.background.threads.lock().is_empty());
    assert_eq!(Arc::strong_count(&heap), 1, "every thread has ended");
}

#[test]
fn a_compaction_thread_is_idle_while_it_waits() {
    let heap = Heap::new(BackgroundMode::Threads, 0, 30);
    assert!(!heap.background.has_idle_compactor());
    heap.background.start(&heap, 1, None).unwrap();
    heap.background.wait_idle(&*heap).unwrap();
    // It counts as idle only when it waits again, after the notice that nothing is left.
    while !heap.background.has_idle_compactor() {
        std::thread::yield_now();
    }
    assert!(!heap.was_idle_at_work.load(Ordering::SeqCst));
    heap.background.stop();
    assert!(!heap.background.has_idle_compactor());
}

#[test]
fn who_waits_for_idleness_hears_why_it_does_not_come() {
    let heap = Heap::new(BackgroundMode::Threads, 1, 0);
    heap.is_broken.store(true, Ordering::SeqCst);
    heap.background.start(&heap, 1, None).unwrap();
    let error = heap.background.wait_idle(&*heap).unwrap_err();
    assert!(error.to_string().contains("the disk is away"));
    assert_eq!(heap.background.failures().len(), 1);
    heap.is_broken.store(false, Ordering::SeqCst);
    heap.background.wait_idle(&*heap).unwrap();
    assert!(heap.background.failures().is_empty());
    heap.background.stop();
}

/// The disk may have been missing when the attempt began, and be present when the caller begins to
/// wait.
#[test]
fn who_waits_for_idleness_hears_of_no_attempt_that_was_under_way_before() {
    let heap = Heap::new(BackgroundMode::Threads, 1, 0);
    heap.held.store(1, Ordering::SeqCst);
    let background = &heap.background;
    background.start(&heap, 1, None).unwrap();
    wait_until(|| heap.held.load(Ordering::SeqCst) == 2);
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| background.wait_idle(&*heap));
        wait_until(|| background.failures().len() == 1);
        // Woken twice, so it has looked in between.
        for _ in 0..2 {
            wait_until(|| background.changed.notify_all() > 0 || waiter.is_finished());
        }
        heap.held.store(0, Ordering::SeqCst);
        waiter.join().unwrap().unwrap();
    });
    assert!(!heap.has_work() && background.failures().is_empty());
    background.stop();
}

/// Each look at the log used to restart the wait of the compaction thread, so that it never looked
/// for tables that became due by time.
#[test]
fn a_thread_that_looks_often_keeps_no_other_from_looking() {
    let heap = Heap::new(BackgroundMode::Threads, 0, 0);
    heap.is_restless.store(true, Ordering::SeqCst);
    heap.background.start(&heap, 1, None).unwrap();
    while heap.compaction_looks.load(Ordering::SeqCst) < 2 {
        let looks = heap.log_looks.load(Ordering::SeqCst);
        assert!(looks < 2000, "the log was looked at {looks} times, and no table");
        std::thread::yield_now();
    }
    heap.background.stop();
}

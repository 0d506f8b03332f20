//! Databases that come and go over one pool. Their work is a number that falls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::background::{Background, BackgroundMode};
use super::super::events::Events;
use super::*;
use crate::error::Result;

/// A database with flushes and compactions to do.
struct Tenant {
    background: Background,
    flushes: AtomicU64,
    compactions: AtomicU64,
    running: AtomicU64,
    /// The most compactions that ran at once.
    running_max: AtomicU64,
    /// Flushes wait while it is set.
    is_held: AtomicBool,
    /// Each flush panics while it is set.
    panics: AtomicBool,
    /// The next flush stops its own work, as a listener that closes the database does.
    stops_itself: AtomicBool,
    order: Option<Arc<Mutex<Vec<u64>>>>,
    number: u64,
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

fn take(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn tenant(flushes: u64, compactions: u64) -> Tenant {
    let clock = Arc::new(SystemClock::new());
    let events = Arc::new(Events::default());
    Tenant {
        background: Background::new(BackgroundMode::Threads, clock, events),
        flushes: AtomicU64::new(flushes),
        compactions: AtomicU64::new(compactions),
        running: AtomicU64::new(0),
        running_max: AtomicU64::new(0),
        is_held: AtomicBool::new(false),
        panics: AtomicBool::new(false),
        stops_itself: AtomicBool::new(false),
        order: None,
        number: 0,
    }
}

impl Tenant {
    fn is_done(&self) -> bool {
        self.flushes.load(Ordering::SeqCst) + self.compactions.load(Ordering::SeqCst) == 0
    }

    fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }
}

impl Worker for Tenant {
    fn background(&self) -> &Background {
        &self.background
    }

    fn check_working(&self) -> Result<()> {
        Ok(())
    }

    fn flush_one(&self) -> Result<bool> {
        assert!(!self.panics.load(Ordering::SeqCst), "a hook panics");
        if self.stops_itself.swap(false, Ordering::SeqCst) {
            self.background.stop();
        }
        wait_until(|| !self.is_held.load(Ordering::SeqCst));
        if let Some(order) = self.order.as_ref().filter(|_| take(&self.flushes)) {
            order.lock().push(self.number);
            return Ok(true);
        }
        Ok(take(&self.flushes))
    }

    fn compact_one(&self) -> Result<bool> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.running_max.fetch_max(running, Ordering::SeqCst);
        std::thread::yield_now();
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(take(&self.compactions))
    }

    fn tend_log(&self) -> Result<Option<Duration>> {
        Ok(None)
    }

    fn tend_log_now(&self) -> Result<bool> {
        Ok(false)
    }

    fn remove_obsolete(&self) -> Result<()> {
        Ok(())
    }

    fn finish_removing(&self) -> Result<()> {
        Ok(())
    }

    fn holds_obsolete(&self) -> bool {
        false
    }

    fn waits_for_release(&self) -> bool {
        false
    }

    fn give_up_memory(&self) -> Option<Duration> {
        None
    }

    fn has_work(&self) -> bool {
        !self.is_done()
    }

    fn ease(&self) {}
}

fn start(pool: &Arc<ThreadPool>, tenant: Tenant) -> Arc<Tenant> {
    let tenant = Arc::new(tenant);
    tenant.background.start(&tenant, 2, Some(pool)).unwrap();
    tenant
}

fn pool(flush_threads: usize, compaction_threads: usize) -> Arc<ThreadPool> {
    Arc::new(ThreadPool::new(flush_threads, compaction_threads))
}

#[test]
fn a_few_threads_do_the_work_of_many_databases() {
    let pool = pool(1, 2);
    assert_eq!(pool.thread_count(), 0);
    let tenants: Vec<_> = (0..100).map(|_| start(&pool, tenant(3, 5))).collect();
    assert_eq!((pool.thread_count(), pool.member_count()), (4, 100));
    tenants.iter().for_each(|tenant| tenant.background.wait_idle(&**tenant).unwrap());
    assert!(tenants.iter().all(|tenant| tenant.is_done()));
    // Work that comes later is done after a notice.
    tenants[7].flushes.store(2, Ordering::SeqCst);
    tenants[7].background.wake_all();
    wait_until(|| tenants[7].is_done());
    tenants.iter().for_each(|tenant| tenant.background.stop());
    assert_eq!(pool.member_count(), 0);
    let weak = Arc::downgrade(&tenants[0]);
    drop(tenants);
    assert!(weak.upgrade().is_none(), "the pool keeps no database that has left");
}

#[test]
fn no_more_compactions_of_a_database_run_than_it_may() {
    let pool = pool(1, 4);
    let tenant = start(&pool, tenant(0, 500));
    tenant.background.wait_idle(&*tenant).unwrap();
    assert!(tenant.running_max.load(Ordering::SeqCst) <= 2);
    tenant.background.stop();
}

#[test]
fn databases_with_work_take_turns() {
    let pool = pool(1, 1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = tenant(0, 0);
    first.hold(true);
    let first = start(&pool, first);
    let others = [1, 2].map(|number| {
        let order = Some(order.clone());
        start(&pool, Tenant { order, number, ..tenant(4, 0) })
    });
    // The thread is held until both wait for it.
    first.hold(false);
    wait_until(|| others.iter().all(|other| other.is_done()));
    assert_eq!(*order.lock(), [1, 2, 1, 2, 1, 2, 1, 2]);
    others.iter().chain([&first]).for_each(|tenant| tenant.background.stop());
}

#[test]
fn a_database_leaves_when_its_work_has_ended_and_waits_for_no_other() {
    let pool = pool(2, 1);
    let held = tenant(1, 0);
    held.hold(true);
    let held = start(&pool, held);
    let other = start(&pool, tenant(100, 0));
    wait_until(|| other.is_done());
    other.background.stop();
    let stopping = std::thread::spawn({
        let held = held.clone();
        move || held.background.stop()
    });
    wait_until(|| held.background.is_stopping());
    assert!(!stopping.is_finished() && pool.member_count() == 1);
    held.hold(false);
    stopping.join().unwrap();
    assert_eq!(pool.member_count(), 0);
}

#[test]
fn a_panic_of_one_database_ends_no_thread() {
    let pool = pool(1, 1);
    let panicking = tenant(1, 0);
    panicking.panics.store(true, Ordering::SeqCst);
    let panicking = start(&pool, panicking);
    wait_until(|| panicking.background.error().is_some());
    let other = start(&pool, tenant(10, 10));
    other.background.wait_idle(&*other).unwrap();
    assert!(other.is_done());
    // It is tried again, as on threads of its own.
    panicking.panics.store(false, Ordering::SeqCst);
    panicking.background.wait_idle(&*panicking).unwrap();
    [panicking, other].iter().for_each(|tenant| tenant.background.stop());
}

#[test]
fn a_database_may_leave_on_a_thread_of_the_pool() {
    let pool = pool(1, 1);
    let closing = tenant(5, 0);
    closing.stops_itself.store(true, Ordering::SeqCst);
    let closing = start(&pool, closing);
    wait_until(|| pool.member_count() == 0);
    let other = start(&pool, tenant(3, 3));
    other.background.wait_idle(&*other).unwrap();
    other.background.stop();
    closing.background.stop();
}

#[test]
fn the_pool_may_go_before_its_last_database() {
    let pool = pool(1, 1);
    let weak = Arc::downgrade(&pool);
    let tenant = start(&pool, tenant(1, 1));
    drop(pool);
    tenant.background.wait_idle(&*tenant).unwrap();
    assert!(weak.upgrade().is_some(), "the database keeps it");
    tenant.background.stop();
    drop(tenant);
    assert!(weak.upgrade().is_none());
}

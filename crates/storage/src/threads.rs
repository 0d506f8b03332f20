//! [`for_each`]: several threads for the items of one call.

use std::thread;

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};

/// Calls `call` for each of the items, in their order, with at most so many threads at a time; the calling thread is
/// one of them, and the only one if `threads` is 1. After an error no further item is begun. Threads that cannot be
/// started leave their work to the others.
///
/// # Errors
/// That of the calling thread, or else of another one; [`ErrorKind::Internal`] if a call panics in a thread of its own.
pub fn for_each<T: Send>(
    name: &str,
    threads: usize,
    items: Vec<T>,
    call: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.into_iter().try_for_each(call);
    }
    let work = Work { items: Mutex::new(Some(items.into_iter())), call };
    thread::scope(|scope| {
        let others = (1..threads).map(|_| {
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn_scoped(scope, || work.run())
        });
        let others: Vec<_> = others.map_while(std::io::Result::ok).collect();
        let mut result = work.run();
        for other in others {
            let joined = other.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, format!("a thread {name} panicked")))
            });
            result = result.and(joined);
        }
        result
    })
}

/// The items that are left; `None` after an error.
struct Work<I, C> {
    items: Mutex<Option<I>>,
    call: C,
}

impl<I: Iterator, C: Fn(I::Item) -> Result<()>> Work<I, C> {
    fn run(&self) -> Result<()> {
        // A statement of its own in each round: the lock is not held during a call.
        loop {
            let next = self.items.lock().as_mut().and_then(Iterator::next);
            let Some(item) = next else { return Ok(()) };
            if let Err(error) = (self.call)(item) {
                *self.items.lock() = None;
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_item_is_called_once_and_threads_work_at_the_same_time() {
        for threads in [0, 1, 3, 9] {
            let called = Mutex::new(Vec::new());
            for_each("test", threads, (0..7).collect(), |item| {
                called.lock().push(item);
                Ok(())
            })
            .unwrap();
            let mut called = called.into_inner();
            called.sort_unstable();
            assert_eq!(called, [0, 1, 2, 3, 4, 5, 6], "{threads}");
        }
        let all = Barrier::new(3);
        for_each("test", 3, vec![(); 3], |()| {
            all.wait();
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn nothing_is_begun_after_an_error_or_a_panic_is_one() {
        for threads in [1, 4] {
            let calls = AtomicUsize::new(0);
            let failed = for_each("test", threads, vec![(); 1000], |()| {
                calls.fetch_add(1, Ordering::Relaxed);
                Err(Error::new(ErrorKind::NoSpace, "full"))
            });
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::NoSpace);
            assert!(calls.into_inner() <= threads);
        }
        let caller = thread::current().id();
        let other = Barrier::new(2);
        let failed = for_each("test", 2, vec![(); 2], |()| {
            other.wait();
            assert_eq!(thread::current().id(), caller, "the other thread panics");
            Ok(())
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Internal);
    }
}

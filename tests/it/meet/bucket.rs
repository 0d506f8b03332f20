//! An object store in memory that can be copied, as a power cut of one machine finds it, and some of whose calls fail.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use remote::{ObjectEntry, ObjectListing, Store, StoreError, StoreResult, Timer};
use testkit::rng::mix64;

type Objects = BTreeMap<String, Vec<u8>>;

/// The objects by name. Clones share them.
#[derive(Clone, Default)]
pub struct Bucket {
    objects: Arc<Mutex<Objects>>,
    failure: Arc<Mutex<Failure>>,
}

/// The calls that fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failure {
    /// So many calls go well before.
    pub after: u64,
    /// So many calls fail one after the other.
    pub calls: u64,
    /// They have their effect, and only the answer is lost.
    pub takes_effect: bool,
    /// So many have failed.
    pub failed: u64,
}

impl Bucket {
    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().expect("no holder panics")
    }

    fn failure(&self) -> MutexGuard<'_, Failure> {
        self.failure.lock().expect("no holder panics")
    }

    /// Another bucket with these objects, whose calls go well.
    pub fn copied(&self) -> Bucket {
        Bucket { objects: Arc::new(Mutex::new(self.lock().clone())), failure: Arc::default() }
    }

    /// Lets calls fail from now on.
    pub fn fail(&self, failure: Failure) {
        *self.failure() = failure;
    }

    /// The number of calls that have failed.
    pub fn failed(&self) -> u64 {
        self.failure().failed
    }

    /// A call that changes the objects, or reads them.
    fn call<T>(&self, call: impl FnOnce(&mut Objects) -> T) -> StoreResult<T> {
        let mut failure = self.failure();
        if failure.after > 0 || failure.calls == 0 {
            failure.after = failure.after.saturating_sub(1);
            drop(failure);
            return Ok(call(&mut self.lock()));
        }
        failure.calls -= 1;
        failure.failed += 1;
        if failure.takes_effect {
            call(&mut self.lock());
        }
        Err(StoreError::transient("the bucket does not answer"))
    }
}

impl Store for Bucket {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.call(|objects| {
            let is_free = !objects.contains_key(name);
            if is_free {
                objects.insert(name.to_owned(), bytes.to_vec());
            }
            is_free
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.call(|objects| drop(objects.insert(name.to_owned(), bytes.to_vec())))
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.call(|objects| objects.get(name).cloned())
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.call(|objects| {
            let object = objects.get(name)?;
            let end = object.len().min(range.end as usize);
            Some(object[end.min(range.start as usize)..end].to_vec())
        })
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.call(|objects| {
            let front = format!("{dir}/");
            let mut listing = ObjectListing::default();
            for (name, object) in objects.range(front.clone()..) {
                let Some(rest) = name.strip_prefix(&front) else { break };
                if let Some((folder, _)) = rest.split_once('/') {
                    let folder = format!("{front}{folder}");
                    if listing.folders.last() != Some(&folder) {
                        listing.folders.push(folder);
                    }
                    continue;
                }
                let len = object.len() as u64;
                let modified = Duration::ZERO;
                listing.objects.push(ObjectEntry { name: name.clone(), len, modified });
            }
            listing
        })
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.call(|objects| drop(objects.remove(name)))
    }
}

/// Time that passes only for those who wait. No two claimants have one number.
pub struct StillTimer {
    waited_us: AtomicU64,
    numbers: AtomicU64,
}

impl StillTimer {
    pub fn new(seed: u64) -> StillTimer {
        StillTimer { waited_us: AtomicU64::new(0), numbers: AtomicU64::new(mix64(seed)) }
    }
}

impl Timer for StillTimer {
    fn now(&self) -> Duration {
        Duration::from_micros(self.waited_us.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.waited_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn random(&self) -> u64 {
        mix64(self.numbers.fetch_add(1, Ordering::Relaxed))
    }
}

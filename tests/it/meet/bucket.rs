//! An object store in memory that can be copied, as a power cut of one machine finds it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use remote::{ObjectEntry, ObjectListing, Store, StoreResult, Timer};
use testkit::rng::mix64;

/// The objects by name. Clones share them.
#[derive(Clone, Default)]
pub struct Bucket(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Bucket {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().expect("no holder panics")
    }

    /// Another bucket with these objects.
    pub fn copied(&self) -> Bucket {
        Bucket(Arc::new(Mutex::new(self.lock().clone())))
    }
}

impl Store for Bucket {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        let mut objects = self.lock();
        let is_free = !objects.contains_key(name);
        if is_free {
            objects.insert(name.to_owned(), bytes.to_vec());
        }
        Ok(is_free)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.lock().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.lock().get(name).cloned())
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        let objects = self.lock();
        let Some(object) = objects.get(name) else { return Ok(None) };
        let end = object.len().min(range.end as usize);
        Ok(Some(object[end.min(range.start as usize)..end].to_vec()))
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        let front = format!("{dir}/");
        let mut listing = ObjectListing::default();
        for (name, object) in self.lock().range(front.clone()..) {
            let Some(rest) = name.strip_prefix(&front) else { break };
            if let Some((folder, _)) = rest.split_once('/') {
                let folder = format!("{front}{folder}");
                if listing.folders.last() != Some(&folder) {
                    listing.folders.push(folder);
                }
                continue;
            }
            let entry = ObjectEntry {
                name: name.clone(),
                len: object.len() as u64,
                modified: Duration::ZERO,
            };
            listing.objects.push(entry);
        }
        Ok(listing)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.lock().remove(name);
        Ok(())
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

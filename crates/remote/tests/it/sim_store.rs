//! [`SimStore`]: an object store in memory under one seed, as one machine reaches it: throttled calls, lost
//! answers, the death of the machine at a call, and a pause at a call during which others go on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use remote::{Remote, Store, StoreError, StoreResult, Timer};
use siltstone::fs::MemFs;
use testkit::Rng;

/// The objects, which all machines share.
pub type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Called at a call of the store, before its effect.
type Pause = Box<dyn FnOnce() + Send>;

/// The connection of a machine to the store.
pub struct SimStore {
    pub objects: Objects,
    rng: Mutex<Rng>,
    /// One of so many calls fails, before or after its effect; 0 for none.
    pub fails_one_of: AtomicU64,
    /// Calls until the machine dies; 0 for never.
    dies_in: AtomicU64,
    is_dead: AtomicBool,
    pause: Mutex<Option<(u64, Pause)>>,
    /// Puts are not conditional: as of a store that ignores conditions.
    pub ignores_conditions: AtomicBool,
    pub puts: AtomicU64,
    pub gets: AtomicU64,
}

impl SimStore {
    pub fn new(objects: Objects, rng: Rng) -> Arc<SimStore> {
        Arc::new(SimStore {
            objects,
            rng: Mutex::new(rng),
            fails_one_of: AtomicU64::new(0),
            dies_in: AtomicU64::new(0),
            is_dead: AtomicBool::new(false),
            pause: Mutex::new(None),
            ignores_conditions: AtomicBool::new(false),
            puts: AtomicU64::new(0),
            gets: AtomicU64::new(0),
        })
    }

    /// The machine dies at the call after so many others.
    pub fn die_in(&self, calls: u64) {
        self.dies_in.store(calls + 1, Ordering::Relaxed);
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// The machine stops at the call after so many others, and goes on after `pause`.
    pub fn pause_in(&self, calls: u64, pause: impl FnOnce() + Send + 'static) {
        *self.pause.lock() = Some((calls, Box::new(pause)));
    }

    /// Makes a call with the effect `call`.
    fn call<T>(&self, call: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> StoreResult<T> {
        let due = match &mut *self.pause.lock() {
            Some((0, _)) => true,
            Some((calls, _)) => {
                *calls -= 1;
                false
            }
            None => false,
        };
        if due {
            let pause = self.pause.lock().take();
            pause.into_iter().for_each(|(_, pause)| pause());
        }
        if self.is_dead() {
            return Err(StoreError::transient("the machine is dead"));
        }
        let one_of = self.fails_one_of.load(Ordering::Relaxed);
        let mut rng = self.rng.lock();
        let fails = one_of > 0 && rng.chance(1, one_of);
        let has_effect = rng.chance(1, 2);
        drop(rng);
        let left = self.dies_in.load(Ordering::Relaxed);
        if left > 0 {
            self.dies_in.store(left - 1, Ordering::Relaxed);
        }
        let dies = left == 1;
        if dies {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        if fails || dies {
            if has_effect {
                call(&mut self.objects.lock());
            }
            return Err(StoreError::transient("503, or an answer that was lost"));
        }
        Ok(call(&mut self.objects.lock()))
    }
}

impl Store for SimStore {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        let ignores = self.ignores_conditions.load(Ordering::Relaxed);
        self.call(|objects| {
            let is_free = ignores || !objects.contains_key(name);
            if is_free {
                objects.insert(name.to_owned(), bytes.to_vec());
            }
            is_free
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.call(|objects| drop(objects.insert(name.to_owned(), bytes.to_vec())))
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.call(|objects| objects.get(name).cloned())
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.call(|objects| {
            let object = objects.get(name)?;
            let end = object.len().min(range.end as usize);
            Some(object[(range.start as usize).min(end)..end].to_vec())
        })
    }

    fn list(&self, dir: &str) -> StoreResult<Vec<String>> {
        let front = format!("{dir}/");
        self.call(|objects| {
            objects.keys().filter(|name| name.starts_with(&front)).cloned().collect()
        })
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.call(|objects| drop(objects.remove(name)))
    }
}

/// A timer whose waits take no time, and whose random numbers are of a seed.
pub struct SimTimer {
    now_us: AtomicU64,
    rng: Mutex<Rng>,
}

impl Timer for SimTimer {
    fn now(&self) -> Duration {
        Duration::from_micros(self.now_us.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.now_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn random(&self) -> u64 {
        self.rng.lock().next_u64()
    }
}

/// A remote for a simulation: without threads, with the local disk `fs`.
pub fn remote_of(store: &Arc<impl Store>, fs: &MemFs, rng: &mut Rng) -> Remote {
    let timer = SimTimer { now_us: AtomicU64::new(0), rng: Mutex::new(rng.fork()) };
    Remote::with_store(store.clone())
        .fs(Arc::new(fs.clone()))
        .timer(Arc::new(timer))
        .patience(Duration::from_secs(2))
        .stepped()
}

//! [`SimStore`]: an object store in memory under one seed, as one machine reaches it: throttled calls, lost
//! answers, the death of the machine at a call, and a pause at a call during which others go on.

use std::collections::BTreeMap;
use std::ops::{Bound, Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use remote::{ObjectEntry, ObjectListing, Remote, Store, StoreError, StoreResult, Timer};
use siltstone::clock::Clock;
use siltstone::fs::MemFs;
use testkit::Rng;

/// An object, with the time of its put by the clock of the store.
#[derive(Clone, Debug)]
pub struct SimObject {
    bytes: Vec<u8>,
    modified: Duration,
}

impl From<Vec<u8>> for SimObject {
    fn from(bytes: Vec<u8>) -> SimObject {
        SimObject { bytes, modified: Duration::ZERO }
    }
}

impl Deref for SimObject {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for SimObject {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

pub type ObjectMap = BTreeMap<String, SimObject>;

/// A call that changes an object.
enum LateCall {
    /// Its name and bytes; `true` if the name must be free.
    Put(String, Vec<u8>, bool),
    Delete(String),
}

impl LateCall {
    fn put(name: &str, bytes: &[u8], is_conditional: bool) -> impl FnOnce() -> Option<LateCall> {
        move || Some(LateCall::Put(name.to_owned(), bytes.to_vec(), is_conditional))
    }
}

/// The number of a claim, by its name and its length; `None` for other objects.
fn number_of_claim(name: &str, bytes: &[u8]) -> Option<u64> {
    let claim_bytes = if bytes.starts_with(b"SILP") { 73 + 40 } else { 73 };
    let (_, number) = name.strip_prefix("journal/")?.split_once('/')?;
    number.parse().ok().filter(|_| bytes.len() <= claim_bytes)
}

/// The calendar of machines when a world begins. It is later than that of the machine which runs the test: a restore
/// opens a database by the clock of the system, and finds nothing expired there.
const CALENDAR: Duration = Duration::from_secs(4_000_000_000);

/// The objects, and the clock of the store.
#[derive(Default)]
pub struct SimBucket {
    objects: Mutex<ObjectMap>,
    /// The true time, and the error of the store's clock.
    now_ms: AtomicU64,
    ahead_ms: AtomicI64,
    /// Calls that have failed, and whose effect may still come.
    late: Mutex<Vec<LateCall>>,
    /// Late calls take effect during other calls, too.
    is_late_in_calls: AtomicBool,
    /// The number of the last claim that has ended the journal: it has fenced the writer before it.
    last_claim: AtomicU64,
    /// Claims that have ended the journal by a late call.
    late_claims: AtomicU64,
    /// Machines use it with keys.
    is_encrypted: AtomicBool,
}

impl SimBucket {
    pub fn lock(&self) -> MutexGuard<'_, ObjectMap> {
        self.objects.lock()
    }

    /// Time passes, for the store and for the machines whose clock is right.
    pub fn advance(&self, time: Duration) {
        self.now_ms.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// The clock of the store jumps forward.
    pub fn jump(&self, time: Duration) {
        self.ahead_ms.fetch_add(time.as_millis() as i64, Ordering::Relaxed);
    }

    /// The clock of the store jumps backward.
    pub fn jump_back(&self, time: Duration) {
        self.ahead_ms.fetch_sub(time.as_millis() as i64, Ordering::Relaxed);
    }

    /// The time by a clock that does not jump.
    pub fn true_time(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(Ordering::Relaxed))
    }

    /// The calendar of the machines.
    pub fn calendar(&self) -> Duration {
        CALENDAR + self.true_time()
    }

    /// Some of the calls that have failed take effect.
    pub fn take_effect_late(&self, rng: &mut Rng) {
        let mut late = self.late.lock();
        while !late.is_empty() && rng.chance(1, 3) {
            let at = rng.index(late.len());
            match late.swap_remove(at) {
                LateCall::Put(name, bytes, is_conditional) => {
                    let before = self.last_claim();
                    self.put_if(&name, &bytes, is_conditional);
                    if self.last_claim() > before {
                        self.late_claims.fetch_add(1, Ordering::Relaxed);
                    }
                }
                LateCall::Delete(name) => drop(self.lock().remove(&name)),
            }
        }
    }

    /// The number of the last claim that has ended the journal.
    pub fn last_claim(&self) -> u64 {
        self.last_claim.load(Ordering::Relaxed)
    }

    /// The number of claims that have ended the journal late.
    pub fn late_claims(&self) -> u64 {
        self.late_claims.load(Ordering::Relaxed)
    }

    pub fn now(&self) -> Duration {
        let now = self.now_ms.load(Ordering::Relaxed).cast_signed();
        let now = now + self.ahead_ms.load(Ordering::Relaxed);
        Duration::from_millis(u64::try_from(now).unwrap_or(0))
    }

    /// Puts an object, if the name is free or the put is not conditional. Look and put are one step: machines of some
    /// tests run on threads of their own.
    fn put_if(&self, name: &str, bytes: &[u8], is_conditional: bool) -> bool {
        let modified = self.now();
        let mut objects = self.lock();
        if is_conditional && objects.contains_key(name) {
            return false;
        }
        objects.insert(name.to_owned(), SimObject { bytes: bytes.to_vec(), modified });
        // Under a name that deletion has freed it fences no one.
        let later = (Bound::Excluded(name), Bound::Excluded("journal0"));
        if let Some(number) = number_of_claim(name, bytes)
            && objects.range::<str, _>(later).next().is_none()
        {
            self.last_claim.fetch_max(number, Ordering::Relaxed);
        }
        true
    }
}

/// Shared by all machines.
pub type Objects = Arc<SimBucket>;

/// An empty bucket; one of three is used with keys.
pub fn new_bucket(rng: &mut Rng) -> Objects {
    let objects = Objects::default();
    objects.is_encrypted.store(rng.chance(1, 3), Ordering::Relaxed);
    objects
}

/// The same, whose failed calls take effect at any time, and whose clock can jump backward.
pub fn new_late_bucket(rng: &mut Rng) -> Objects {
    let objects = new_bucket(rng);
    objects.is_late_in_calls.store(true, Ordering::Relaxed);
    objects.jump(CALENDAR);
    objects
}

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
    /// All calls have failed for a time: what that has stopped goes on later.
    was_away: AtomicBool,
    pause: Mutex<Option<(u64, Pause)>>,
    /// Called before the next put of this name.
    put_pause: Mutex<Option<(String, Pause)>>,
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
            was_away: AtomicBool::new(false),
            pause: Mutex::new(None),
            put_pause: Mutex::new(None),
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

    /// The machine neither stops nor dies any more.
    pub fn spare(&self) {
        self.pause.lock().take();
        self.dies_in.store(0, Ordering::Relaxed);
    }

    /// All calls fail during `work`.
    pub fn be_away(&self, work: impl FnOnce()) {
        self.was_away.store(true, Ordering::Relaxed);
        let one_of = self.fails_one_of.swap(1, Ordering::Relaxed);
        work();
        self.fails_one_of.store(one_of, Ordering::Relaxed);
    }

    /// Returns whether calls fail or have failed: an error of the store is to be expected then.
    pub fn may_fail(&self) -> bool {
        let was_away = self.was_away.load(Ordering::Relaxed);
        was_away || self.is_dead() || self.fails_one_of.load(Ordering::Relaxed) > 0
    }

    /// The machine stops before it puts the new object `name`, and goes on after `pause`.
    pub fn pause_before_put(&self, name: &str, pause: impl FnOnce() + Send + 'static) {
        *self.put_pause.lock() = Some((name.to_owned(), Box::new(pause)));
    }

    /// Makes a call with the effect `call`.
    fn call<T>(
        &self,
        late: impl FnOnce() -> Option<LateCall>,
        call: impl FnOnce(&SimBucket) -> T,
    ) -> StoreResult<T> {
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
        let objects = &self.objects;
        if objects.is_late_in_calls.load(Ordering::Relaxed) && rng.chance(1, 64) {
            objects.take_effect_late(&mut rng);
        }
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
                call(&self.objects);
            } else {
                self.objects.late.lock().extend(late());
            }
            return Err(StoreError::transient("503, or an answer that was lost"));
        }
        self.objects.advance(Duration::from_millis(1));
        Ok(call(&self.objects))
    }
}

impl Store for SimStore {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        let pause = self.put_pause.lock().take_if(|(paused, _)| paused == name);
        pause.into_iter().for_each(|(_, pause)| pause());
        let ignores = self.ignores_conditions.load(Ordering::Relaxed);
        let one_of = self.fails_one_of.load(Ordering::Relaxed);
        if one_of > 1 && !self.is_dead() && self.rng.lock().chance(1, 4 * one_of) {
            // A conflict with a call that has no effect yet.
            return Ok(false);
        }
        self.call(LateCall::put(name, bytes, true), |objects| objects.put_if(name, bytes, !ignores))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.call(LateCall::put(name, bytes, false), |objects| {
            objects.put_if(name, bytes, false);
        })
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.call(|| None, |objects| objects.lock().get(name).map(|object| object.bytes.clone()))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.call(
            || None,
            |objects| {
                let objects = objects.lock();
                let object = objects.get(name)?;
                let end = object.len().min(range.end as usize);
                Some(object[(range.start as usize).min(end)..end].to_vec())
            },
        )
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.call(|| None, |objects| listing(&objects.lock(), dir))
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.call(
            || Some(LateCall::Delete(name.to_owned())),
            |objects| drop(objects.lock().remove(name)),
        )
    }
}

fn listing(objects: &ObjectMap, dir: &str) -> ObjectListing {
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
        let len = object.bytes.len() as u64;
        let entry = ObjectEntry { name: name.clone(), len, modified: object.modified };
        listing.objects.push(entry);
    }
    listing
}

/// The name of a journal object.
pub fn journal_name(number: u64) -> String {
    format!("journal/{:017}/{number:020}", number / 1000)
}

/// The clock of the databases of a simulation.
pub struct SimClock(pub Objects);

impl Clock for SimClock {
    fn now(&self) -> Duration {
        self.0.true_time()
    }

    fn unix_time(&self) -> Duration {
        self.0.calendar()
    }
}

/// A timer whose waits let the time pass for all, and whose random numbers are of a seed.
pub struct SimTimer {
    /// The time that passes for all.
    objects: Objects,
    /// The rate of this clock, in thousandths.
    rate: u32,
    rng: Mutex<Rng>,
}

impl Timer for SimTimer {
    fn now(&self) -> Duration {
        self.objects.true_time() * self.rate / 1000
    }

    fn wait(&self, time: Duration) {
        self.objects.advance(time * 1000 / self.rate + Duration::from_millis(1));
    }

    fn random(&self) -> u64 {
        self.rng.lock().next_u64()
    }
}

/// A remote for a simulation: without threads, with the local disk `fs`.
pub fn remote_of(store: &Arc<impl Store>, fs: &MemFs, rng: &mut Rng) -> Remote {
    remote_with(store.clone(), Objects::default(), fs, rng)
}

/// The same, with the true time of the store, and with keys if its objects are encrypted.
pub fn with_clock(store: &Arc<SimStore>, fs: &MemFs, rng: &mut Rng) -> Remote {
    with_keys_of(store, remote_with(store.clone(), store.objects.clone(), fs, rng))
}

fn with_keys_of(store: &SimStore, remote: Remote) -> Remote {
    match store.objects.is_encrypted.load(Ordering::Relaxed) {
        true => with_keys(remote),
        false => remote,
    }
}

#[cfg(feature = "encryption")]
fn with_keys(remote: Remote) -> Remote {
    use encryption::{EncryptionKey, KeyId, KeyRing};
    let id = KeyId::new("k1").expect("it is an identifier");
    remote.keys(Arc::new(KeyRing::new(id, EncryptionKey::new([7; 32]))))
}

#[cfg(not(feature = "encryption"))]
fn with_keys(remote: Remote) -> Remote {
    remote
}

/// The same, with a clock that runs up to 2 % too fast or too slow.
pub fn with_poor_clock(store: &Arc<SimStore>, fs: &MemFs, rng: &mut Rng) -> Remote {
    let mut rng = rng.fork();
    let rate = rng.range(980..1020) as u32;
    let timer = SimTimer { objects: store.objects.clone(), rate, rng: Mutex::new(rng) };
    with_keys_of(store, with_timer(store.clone(), timer, fs))
}

/// The same, with the true time of `objects`.
pub fn remote_with(store: Arc<impl Store>, objects: Objects, fs: &MemFs, rng: &mut Rng) -> Remote {
    with_timer(store, SimTimer { objects, rate: 1000, rng: Mutex::new(rng.fork()) }, fs)
}

/// A remote with the time of the store, whose calls are made at once where they are so in a program.
pub fn with_threads(store: &Arc<SimStore>, fs: &MemFs, rng: &mut Rng) -> Remote {
    let objects = store.objects.clone();
    let timer = SimTimer { objects, rate: 1000, rng: Mutex::new(rng.fork()) };
    Remote::with_store(store.clone()).fs(Arc::new(fs.clone())).timer(Arc::new(timer))
}

fn with_timer(store: Arc<impl Store>, timer: SimTimer, fs: &MemFs) -> Remote {
    Remote::with_store(store)
        .fs(Arc::new(fs.clone()))
        .timer(Arc::new(timer))
        .patience(Duration::from_secs(2))
        .stepped()
}

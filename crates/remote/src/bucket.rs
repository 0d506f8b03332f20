//! [`Bucket`]: a store whose calls are tried again, and whose lost answers are found out.
//!
//! Invariants:
//! 1. A put of a new object that returns [`Put::Stored`] has stored exactly the given bytes.
//! 2. A call returns within the patience and the time of one attempt. The patience of a primary ends soon after its drop.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use siltstone::{Error, ErrorKind, Result};

use crate::sealed::ObjectSeal;
use crate::store::{
    ObjectListing, Store, StoreError, StoreErrorKind, StoreResult, Timer, error_of,
};

/// The pauses between attempts: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A longer object is put in parts: S3 takes no whole one above 5 GiB, and memory has a whole one twice.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// The bytes of a part. S3 takes no shorter ones than 5 MiB, and no more than `PARTS_MAX`.
const PART_BYTES: u64 = 8 << 20;
const PARTS_MAX: u64 = 10_000;
/// Puts that race at a probe.
const PROBERS: usize = 8;

/// The outcome of a put of a new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The object is there.
    Stored,
    /// The name has an object of another writer.
    Taken,
}

/// Calls of a store fail, each time since a moment.
#[derive(Clone)]
pub(crate) struct StoreTrouble {
    /// By the timer.
    pub(crate) since: Duration,
    /// The last error.
    pub(crate) error: String,
    /// It refuses the credentials.
    pub(crate) is_refusal: bool,
}

/// The failures of the calls of a store.
#[derive(Default)]
struct StoreFailures {
    trouble: Option<StoreTrouble>,
    /// The error of the last call that was given up, also if later calls succeed.
    given_up: Option<String>,
}

/// A store, and the patience with it.
#[derive(Clone)]
pub(crate) struct Bucket {
    // Fixed.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) patience: Duration,
    /// Encrypts what goes to the store, if there are keys.
    pub(crate) seal: Option<Arc<dyn ObjectSeal>>,
    /// Calls are made one after the other, by the thread of the caller.
    pub(crate) is_stepped: bool,
    /// A leaf. Shared by the clones.
    failures: Arc<Mutex<StoreFailures>>,
    /// All patience ends at this time, in nanoseconds of the timer. No other value depends on it.
    ends_at: Arc<AtomicU64>,
    /// Refused credentials are waited for, as a store that is away. No other value depends on it.
    awaits_credentials: Arc<AtomicBool>,
}

impl Bucket {
    pub(crate) fn new(store: Arc<dyn Store>, timer: Arc<dyn Timer>, patience: Duration) -> Bucket {
        let ends_at = Arc::new(AtomicU64::new(u64::MAX));
        Bucket {
            store,
            timer,
            patience,
            seal: None,
            is_stepped: false,
            failures: Arc::default(),
            ends_at,
            awaits_credentials: Arc::default(),
        }
    }

    /// An identity that nothing else has.
    pub(crate) fn random_id(&self) -> u128 {
        u128::from(self.timer.random()) << 64 | u128::from(self.timer.random())
    }

    /// The same bucket, for calls whose failures are not those of the others.
    pub(crate) fn sibling(&self) -> Bucket {
        Bucket { failures: Arc::default(), ..self.clone() }
    }

    /// The same bucket, for calls that may take at most this time.
    pub(crate) fn with_patience(&self, patience: Duration) -> Bucket {
        Bucket { patience: patience.min(self.patience), ..self.clone() }
    }

    /// The present trouble, for the clones of this.
    pub(crate) fn trouble(&self) -> Option<StoreTrouble> {
        self.failures.lock().trouble.clone()
    }

    /// The error of the last call that was given up, of this and its clones; also if later calls have succeeded.
    pub(crate) fn given_up(&self) -> Option<String> {
        self.failures.lock().given_up.clone()
    }

    /// Ends an open: from now on refused credentials are waited for, by this, its clones and its siblings. They were
    /// taken before, so they have expired, or are being replaced.
    pub(crate) fn await_credentials(&self) {
        self.awaits_credentials.store(true, Ordering::Relaxed);
    }

    /// Ends all patience after `time`, also of the calls that wait, of the clones and of the siblings.
    pub(crate) fn end_patience_after(&self, time: Duration) {
        let nanos = self.timer.now().saturating_add(time).as_nanos();
        self.ends_at.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn note_trouble(&self, error: &StoreError) {
        let since = self.timer.now();
        let mut failures = self.failures.lock();
        let trouble = failures.trouble.get_or_insert_with(|| StoreTrouble {
            since,
            error: String::new(),
            is_refusal: false,
        });
        trouble.error.clone_from(&error.message);
        trouble.is_refusal = error.kind == StoreErrorKind::Refused;
    }

    /// Makes a call until it succeeds.
    ///
    /// # Errors
    /// The last error of the store, once the patience has ended.
    pub(crate) fn attempt<T>(
        &self,
        verb: &str,
        name: &str,
        mut call: impl FnMut() -> StoreResult<T>,
    ) -> Result<T> {
        let until = self.timer.now().saturating_add(self.patience);
        let mut pause = PAUSE_MIN;
        loop {
            let error = match call() {
                Ok(value) => {
                    self.failures.lock().trouble = None;
                    return Ok(value);
                }
                Err(error) => error,
            };
            self.note_trouble(&error);
            let ends_at = Duration::from_nanos(self.ends_at.load(Ordering::Relaxed));
            let is_final = match error.kind {
                StoreErrorKind::Transient => false,
                StoreErrorKind::Refused => !self.awaits_credentials.load(Ordering::Relaxed),
                StoreErrorKind::Final => true,
            };
            if is_final || self.timer.now() >= until.min(ends_at) {
                self.failures.lock().given_up = Some(error.message.clone());
                return Err(self.given_up_error(verb, name, &error));
            }
            // Half of the pause is random: clients that failed together come back one after the other.
            let half = pause / 2;
            let jitter = half.mul_f64(self.timer.random() as f64 / u64::MAX as f64);
            self.timer.wait(half + jitter);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn given_up_error(&self, verb: &str, name: &str, error: &StoreError) -> Error {
        let kind = match error.kind {
            StoreErrorKind::Transient => ErrorKind::Io,
            StoreErrorKind::Final => ErrorKind::Unsupported,
            StoreErrorKind::Refused => {
                let what = format!(
                    "the store {} refuses the credentials\n  \
                     check the key, its rights and the clock of this machine; \
                     docs/remote.md (Credentials) has the rights that each call needs\n  {error}",
                    self.store.name()
                );
                let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, what);
                return Error::io(verb, Path::new(name), source);
            }
        };
        error_of(kind, name, format!("cannot {verb}: {error}"))
    }

    /// Puts a new object. `bytes` differ from those of every other writer, by a put id.
    ///
    /// # Errors
    /// Those of the store: then it is unknown whether the object is there.
    pub(crate) fn put_new(&self, name: &str, bytes: &[u8]) -> Result<Put> {
        let sealed = self.sealed(name, 0, bytes, true)?;
        let taken = self.attempt("put", name, || {
            if self.store.put_if_absent(name, &sealed)? {
                return Ok(None);
            }
            match self.store.get(name)? {
                Some(found) => Ok(Some(found)),
                // A conflict with a call that has no effect yet, perhaps an own attempt. It proves no other writer.
                None => Err(StoreError::transient("a conflict, but the name has no object")),
            }
        })?;
        let Some(found) = taken else { return Ok(Put::Stored) };
        // The name may be taken by an earlier attempt whose answer was lost, also by one that the client of the store
        // repeated by itself, or of an earlier call. That one was encrypted otherwise: the plain bytes decide.
        Ok(if self.unsealed(name, found)? == bytes { Put::Stored } else { Put::Taken })
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.put_raw(name, &self.sealed(name, 0, bytes, true)?)
    }

    /// Puts bytes as they are.
    pub(crate) fn put_raw(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.attempt("put", name, || self.store.put(name, bytes))
    }

    /// Puts an object of `len` bytes that `read` returns by ranges: a long one in parts, so that only a few of them are in
    /// memory. Each attempt begins again.
    ///
    /// No part of a long object is put by a condition. All puts under one name have the same bytes, so it does not matter
    /// when one of them takes effect (`shipper/ranges.rs`); and the journal names the object only after this.
    ///
    /// # Errors
    /// Those of the store, and of `read`.
    pub(crate) fn put_long(
        &self,
        name: &str,
        len: u64,
        read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>>,
    ) -> Result<()> {
        if len <= WHOLE_BYTES_MAX {
            return self.put(name, &read(0..len)?);
        }
        let page_bytes = self.seal.as_ref().map_or(1, |seal| seal.page_bytes());
        let part_bytes = PART_BYTES.max(len.div_ceil(PARTS_MAX)).next_multiple_of(page_bytes);
        let mut failed = None;
        let put = self.attempt("put", name, || {
            let begins = (0..len).step_by(part_bytes as usize);
            let mut parts = begins.map(|begin| {
                let end = len.min(begin + part_bytes);
                let part = read(begin..end)
                    .and_then(|part| Ok(self.sealed(name, begin, &part, end == len)?.into_owned()));
                part.map_err(|error| {
                    let message = error.to_string();
                    failed = Some(error);
                    // Another attempt would read the same.
                    StoreError::new(StoreErrorKind::Final, message)
                })
            });
            self.store.put_parts(name, &mut parts)
        });
        put.map_err(|error| failed.unwrap_or(error))
    }

    pub(crate) fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.raw(name)?.map(|found| self.unsealed(name, found)).transpose()
    }

    /// The bytes of an object as the store has them.
    pub(crate) fn raw(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.attempt("get", name, || self.store.get(name))
    }

    /// Gets objects, all at once. What follows the first missing one, or the first error, is left out.
    pub(crate) fn get_each(&self, names: &[String]) -> Vec<Result<Option<Vec<u8>>>> {
        if self.is_stepped || names.len() == 1 {
            return names.iter().map(|name| self.get(name)).collect();
        }
        std::thread::scope(|scope| {
            // One attempt: no one needs what follows a missing object, so its errors cost no patience.
            let once = self.sibling().with_patience(Duration::ZERO);
            let later = names.iter().skip(1).map(|name| {
                let thread = std::thread::Builder::new().name("siltstone-get".to_owned());
                let once = once.clone();
                // Without a thread this one makes the call.
                (name, thread.spawn_scoped(scope, move || once.get(name)).ok())
            });
            let later: Vec<_> = later.collect();
            let mut got: Vec<_> = names.iter().take(1).map(|name| self.get(name)).collect();
            for (name, get) in later {
                if !matches!(got.last(), Some(Ok(Some(_)))) {
                    break;
                }
                let early = get.and_then(|get| get.join().ok()?.ok());
                got.push(early.map_or_else(|| self.get(name), Ok));
            }
            got
        })
    }

    pub(crate) fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        let stored = self.sealed_range(range.clone());
        let found =
            self.attempt("get a range of", name, || self.store.get_range(name, stored.clone()))?;
        found.map(|found| self.unsealed_range(name, range, found)).transpose()
    }

    /// Lists the objects in `dir`, without those of puts that were not finished.
    pub(crate) fn list(&self, dir: &str) -> Result<ObjectListing> {
        let mut listed = self.list_all(dir)?;
        listed.objects.retain(|entry| unfinished_target(&entry.name).is_none());
        Ok(listed)
    }

    /// Lists everything in `dir`.
    pub(crate) fn list_all(&self, dir: &str) -> Result<ObjectListing> {
        let listing = self.attempt("list", dir, || self.store.list(dir))?;
        Ok(self.unsealed_lengths(listing))
    }

    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.attempt("delete", name, || self.store.delete(name))
    }

    /// Checks that the store enforces put-if-absent: of puts that race for one name, one wins.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it does not; [`ErrorKind::InvalidArgument`] if the bucket is encrypted and there are
    /// no keys, or the other way round; those of the store.
    pub(crate) fn probe(&self, is_stepped: bool) -> Result<()> {
        self.check_keys()?;
        let name = format!("probe/{:016x}", self.timer.random());
        let racers = 0..PROBERS as u64;
        let outcomes: Vec<Result<Put>> = if is_stepped {
            racers.map(|racer| self.put_new(&name, &racer.to_le_bytes())).collect()
        } else {
            std::thread::scope(|scope| {
                let name = &name;
                let racers =
                    racers.map(|n| scope.spawn(move || self.put_new(name, &n.to_le_bytes())));
                let racers: Vec<_> = racers.collect();
                racers
                    .into_iter()
                    .map(|racer| racer.join().unwrap_or_else(|_| Err(panicked())))
                    .collect()
            })
        };
        let outcomes: Vec<Put> = outcomes.into_iter().collect::<Result<_>>()?;
        let winners = outcomes.iter().filter(|put| **put == Put::Stored).count();
        self.delete(&name)?;
        if winners == 1 {
            return Ok(());
        }
        let what = format!(
            "{winners} of {PROBERS} conditional puts of one name succeeded\n  \
             this store does not enforce put-if-absent, so it cannot fence a writer"
        );
        Err(error_of(ErrorKind::Unsupported, &name, what))
    }
}

/// The name that a put would have given to the object `name`; `None` for a whole object. On HDFS a put writes the
/// file `.NAME.tmp.NUMBER`, and renames it. That of a dead process stays.
pub(crate) fn unfinished_target(name: &str) -> Option<String> {
    let (dir, file) = name.rsplit_once('/')?;
    let (target, number) = file.strip_prefix('.')?.rsplit_once(".tmp.")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{dir}/{target}"))
}

fn panicked() -> Error {
    Error::new(ErrorKind::Internal, "a call of the store panicked")
}

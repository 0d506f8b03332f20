//! [`Bench`]: the place of the measurements, and what they share: records, percentiles, loops of writers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig};
use remote::Remote;
use siltstone::{Compression, Db, Options, Partition, PartitionOptions};

use crate::store::Meter;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Of both engines.
pub(crate) const KEY_BYTES: usize = 16;
pub(crate) const VALUE_BYTES: usize = 100;
pub(crate) const BLOCK_BYTES: u32 = 4096;
pub(crate) const BLOOM_BITS: u32 = 10;
pub(crate) const MEMTABLE_BYTES: u64 = 64 << 20;

/// The place of the measurements.
pub(crate) struct Bench {
    pub(crate) meter: Meter,
    pub(crate) url: String,
    pub(crate) dir: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) delays: Vec<u64>,
    pub(crate) seconds: f64,
    pub(crate) records: u64,
    pub(crate) runtime: tokio::runtime::Runtime,
    /// In the names of prefixes and folders.
    pub(crate) run: u32,
}

/// Latencies of calls, and the time that all took.
pub(crate) struct Timed {
    micros: Vec<u64>,
    pub(crate) elapsed: Duration,
}

impl Timed {
    pub(crate) fn of(micros: Vec<u64>, elapsed: Duration) -> Timed {
        let mut micros = micros;
        micros.sort_unstable();
        Timed { micros, elapsed }
    }

    pub(crate) fn count(&self) -> u64 {
        self.micros.len() as u64
    }

    /// In milliseconds.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let at = (self.micros.len() as f64 * percent / 100.0) as usize;
        let at = at.min(self.micros.len().saturating_sub(1));
        self.micros.get(at).copied().unwrap_or(0) as f64 / 1000.0
    }

    pub(crate) fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64()
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The same in all processes.
pub(crate) fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

pub(crate) fn key(number: u64) -> [u8; KEY_BYTES] {
    // Random order, no number twice.
    let text = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    text.as_bytes().try_into().expect("16 digits")
}

pub(crate) fn sorted_key(number: u64) -> [u8; KEY_BYTES] {
    format!("{number:016x}").as_bytes().try_into().expect("16 digits")
}

pub(crate) fn value_of(number: u64, len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64)
        .flat_map(|at| mix(number ^ (at << 40)).to_le_bytes())
        .take(len)
        .collect()
}

pub(crate) fn value(number: u64) -> Vec<u8> {
    value_of(number, VALUE_BYTES)
}

pub(crate) fn partition_options() -> PartitionOptions {
    PartitionOptions::new()
        .compression(Compression::None)
        .block_bytes(BLOCK_BYTES)
        .bloom_bits_per_key(BLOOM_BITS)
}

pub(crate) fn options(cache_bytes: u64) -> Options {
    Options::new().cache_bytes(cache_bytes).write_buffer_bytes(MEMTABLE_BYTES)
}

pub(crate) fn data(db: &Db) -> siltstone::Result<Partition> {
    db.partition_with("data", partition_options())
}

/// The resident memory of the process, in MiB.
pub(crate) fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

impl Bench {
    pub(crate) fn store(url: &str) -> Outcome<Arc<dyn ObjectStore>> {
        if let Some(path) = url.strip_prefix("file://") {
            return Ok(Arc::new(object_store::local::LocalFileSystem::new_with_prefix(path)?));
        }
        // It installs the provider of cryptography that the client asks for.
        drop(Remote::url(url)?);
        // As siltstone's own clients.
        let retry_timeout = Duration::from_secs(10);
        let retry = RetryConfig { max_retries: 2, retry_timeout, ..Default::default() };
        Ok(Arc::new(AmazonS3Builder::from_env().with_url(url).with_retry(retry).build()?))
    }

    /// With a client of its own: the connections of a client end with the runtime that has opened them.
    pub(crate) fn remote(&self, prefix: &str) -> Outcome<Remote> {
        let client = Bench::store(&self.url)?;
        Ok(Remote::new(Arc::new(self.meter.with(client)), prefix)?)
    }

    pub(crate) fn object_store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.meter.clone())
    }

    /// A name that no other measurement of this run uses.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("run{}-{what}", self.run)
    }

    pub(crate) fn folder(&self, what: &str) -> PathBuf {
        let path = self.dir.join(self.name(what));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    pub(crate) fn remove(path: &std::path::Path) {
        let _ = std::fs::remove_dir_all(path);
    }

    /// Puts of so many bytes under new names, one after the other.
    pub(crate) fn puts(&self, what: &str, count: u64, bytes: usize) -> Outcome<Timed> {
        let store = self.object_store();
        let name = self.name(what);
        self.runtime.block_on(async move {
            let mut micros = Vec::new();
            let start = Instant::now();
            for number in 0..count {
                let begin = Instant::now();
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let path = Path::from(format!("{name}/{number}-{}", start.elapsed().as_nanos()));
                store.put_opts(&path, value_of(number, bytes).into(), options).await?;
                micros.push(begin.elapsed().as_micros() as u64);
            }
            let _ = store.head(&Path::from("none")).await;
            Ok(Timed::of(micros, start.elapsed()))
        })
    }

    /// The bytes of all objects below a prefix, and their number.
    pub(crate) fn stored(&self, prefix: &str) -> Outcome<(u64, u64)> {
        use futures::TryStreamExt;
        let store = self.object_store();
        let prefix = Path::from(prefix);
        let listed: Vec<_> =
            self.runtime.block_on(async move { store.list(Some(&prefix)).try_collect().await })?;
        Ok((listed.iter().map(|it| it.size).sum(), listed.len() as u64))
    }
}

/// Runs `put` in so many threads for a time: it gets a number that no other call gets.
pub(crate) fn in_threads(
    threads: u64,
    seconds: f64,
    put: impl Fn(u64) -> siltstone::Result<()> + Sync,
) -> siltstone::Result<Timed> {
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let done: Vec<siltstone::Result<Vec<u64>>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let put = &put;
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut micros = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let begin = Instant::now();
                        put((thread << 32) | micros.len() as u64)?;
                        micros.push(begin.elapsed().as_micros() as u64);
                    }
                    Ok(micros)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        is_over.store(true, Ordering::Relaxed);
        handles.into_iter().map(|it| it.join().expect("a writer panicked")).collect()
    });
    let elapsed = start.elapsed();
    let all: siltstone::Result<Vec<Vec<u64>>> = done.into_iter().collect();
    Ok(Timed::of(all?.concat(), elapsed))
}

//! SlateDB with the settings of the comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use slatedb::config::{DbReaderOptions, ScanOptions};
use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
use slatedb::db_cache::{DEFAULT_META_CACHE_CAPACITY, DbCache, SplitCache};
use slatedb::{Db, DbReader, DbReaderMode, Settings, SstBlockSize};

use crate::bench::{MEMTABLE_BYTES, Outcome, Timed, key, value};

/// Its default flush interval.
pub(crate) const INTERVAL: u64 = 100;

fn cache(bytes: u64) -> Arc<dyn DbCache> {
    let split = SplitCache::new().with_block_cache(Some(part(bytes)));
    Arc::new(split.with_meta_cache(Some(part(DEFAULT_META_CACHE_CAPACITY))).build())
}

fn part(max_capacity: u64) -> Arc<dyn DbCache> {
    Arc::new(FoyerCache::new_with_opts(FoyerCacheOptions { max_capacity, ..Default::default() }))
}

pub(crate) async fn open(
    store: Arc<dyn ObjectStore>,
    path: &str,
    cache_bytes: u64,
    interval: u64,
) -> Outcome<Db> {
    let settings = Settings {
        flush_interval: Some(Duration::from_millis(interval)),
        l0_sst_size_bytes: MEMTABLE_BYTES as usize,
        compression_codec: None,
        ..Settings::default()
    };
    let builder = Db::builder(path.to_owned(), store).with_settings(settings);
    let builder = builder.with_sst_block_size(SstBlockSize::Block4Kib);
    Ok(builder.with_db_cache(cache(cache_bytes), 1).build().await?)
}

pub(crate) async fn open_reader(
    store: Arc<dyn ObjectStore>,
    path: &str,
    cache_bytes: u64,
) -> Outcome<DbReader> {
    let builder =
        DbReader::builder(path.to_owned(), store).with_options(DbReaderOptions::default());
    let builder = builder.with_reader_mode(DbReaderMode::ManagedCheckpoint);
    Ok(builder.with_db_cache(cache(cache_bytes), 1).build().await?)
}

/// Scans as its documentation advises for throughput.
pub(crate) fn scan_options() -> ScanOptions {
    ScanOptions::default().with_read_ahead_bytes(4 << 20).with_max_fetch_tasks(4)
}

/// Durable puts of so many tasks for a time.
pub(crate) async fn durable(db: &Db, writers: u64, seconds: f64) -> Outcome<Timed> {
    let is_over = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let db = db.clone();
            let is_over = is_over.clone();
            tokio::spawn(async move {
                let mut micros = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    let number = (writer << 32) | micros.len() as u64;
                    db.put(key(number), value(number)).await?.await_durable().await?;
                    micros.push(begin.elapsed().as_micros() as u64);
                }
                Ok::<_, slatedb::Error>(micros)
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    is_over.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(Timed::of(all, start.elapsed()))
}

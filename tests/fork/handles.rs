//! One of each kind of handle, in use while a process forks.

use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lsm_core::fs::{Fs as _, OsFs};
use siltstone::asynchronous::Async;
use siltstone::large_values::{BlobReader, BlobRef, BlobWriter, Parallelism, PendingBlob};
use siltstone::secondary::{Follow, Level, Reading, Secondary, SecondaryPartition, Target};
use siltstone::stream::{StreamExport, StreamImport};
use siltstone::{
    Cursor, Db, Durability, Durable, Error, ErrorKind, LargeValueOptions, Options, Partition,
    PartitionOptions, Range, SeqNo, Snapshot, Transaction, VerifyOptions,
};
use tokio::runtime::{Builder, Runtime};

fn options() -> Options {
    // Small, so that segments, flushes and compactions occur often.
    Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(64 << 10).cache_bytes(1 << 20)
}

fn large_values() -> PartitionOptions {
    PartitionOptions::new().large_values(LargeValueOptions::default())
}

pub(super) fn key(number: u32) -> String {
    format!("key{number:08}")
}

/// One of each kind of handle, all in use.
pub(super) struct Handles {
    dir: PathBuf,
    pub(super) db: Db,
    pub(super) words: Partition,
    pub(super) media: Partition,
    snapshot: Snapshot,
    cursor: Cursor,
    range: Range,
    transaction: Transaction,
    writer: BlobWriter,
    finished: PendingBlob,
    reader: BlobReader,
    lent: BlobRef,
    durable: Durable,
    secondary: Secondary,
    followed: SecondaryPartition,
    reading: Reading,
    /// Never dropped: it waits for its threads, which a child does not have.
    runtime: ManuallyDrop<Runtime>,
    asynchronous: Async<Partition>,
}

impl Handles {
    pub(super) fn open(dir: &Path) -> Handles {
        let db = Db::builder(dir).options(options()).open().unwrap();
        let words = db.partition("words").unwrap();
        let media = db.partition_with("media", large_values()).unwrap();
        for number in 0..2000 {
            words.put(key(number), "first").unwrap();
        }
        media.put("film", vec![7; 300_000]).unwrap();
        media.put_with("song", vec![8; 100_000], Durability::Sync).unwrap();
        words.flush().unwrap();
        let snapshot = db.snapshot();
        let mut cursor = words.cursor();
        cursor.seek_to_first().unwrap();
        let mut range = words.iter();
        range.next().unwrap().unwrap();
        let mut transaction = db.transaction();
        transaction.get(&words, key(1)).unwrap();
        transaction.get_for_update(&words, "own").unwrap();
        transaction.put(&words, "own", "write");
        let mut writer = media.put_stream("stream", None).unwrap();
        writer.write_all(&vec![9; 700_000]).unwrap();
        let mut finished = media.put_stream("finished", None).unwrap();
        finished.write_all(&vec![5; 90_000]).unwrap();
        let finished = finished.finish().unwrap();
        let reader = media.open_blob("film").unwrap().unwrap();
        let lent = media.get_ref("film").unwrap().unwrap();
        let durable = db.durable(db.visible_seq());
        let secondary = Db::secondary(dir).unwrap();
        let followed = secondary.partition("words").unwrap();
        followed.follow(Follow::Eager).unwrap();
        followed.sync(Target::Latest).unwrap();
        let reading = followed.at(Level::Eventual).unwrap();
        // One of its threads is idle at this point, and does not exist in a child.
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let asynchronous = Async::from(words.clone());
        runtime.block_on(asynchronous.get(key(3))).unwrap().unwrap();
        Handles {
            dir: dir.to_owned(),
            db,
            words,
            media,
            snapshot,
            cursor,
            range,
            transaction,
            writer,
            finished,
            reader,
            lent,
            durable,
            secondary,
            followed,
            reading,
            runtime: ManuallyDrop::new(runtime),
            asynchronous,
        }
    }

    /// Makes each call. Reads of handles that were in use may return what is in memory.
    pub(super) fn call_all(self) {
        let Handles { db, words, media, snapshot, .. } = &self;
        check("put", words.put("a", "b"));
        check("try_put", words.try_put("a", "b"));
        check("put synced", words.put_with("a", "b", Durability::Sync));
        check("delete", words.delete(key(1)));
        check("clear", words.clear());
        check("update", words.update(key(1), |_| Some("x")));
        check("compare_and_set", words.compare_and_set(key(1), None, Some(b"x")));
        check("put a large value", media.put("large", vec![1; 200_000]));
        check("put_stream", media.put_stream("other", None));
        check("get", words.get(key(1)));
        check("get from memory", words.get("a"));
        check("contains", words.contains(key(1)));
        check("first", words.first());
        check("last", words.last());
        check("len_approx", words.len_approx());
        check("a range", words.iter().next().unwrap());
        check("a range backwards", words.keys().next_back().unwrap());
        check("a cursor", words.cursor().seek_to_first());
        check("get_into", media.get_into("film", &mut vec![0; 300_000], Parallelism::default()));
        check("get_ref", media.get_ref("film"));
        check("get_range", media.get_range("film", 0..10));
        check("open_blob", media.open_blob("film"));
        check("stat_blob", media.stat_blob("film"));
        check("reclaim", media.reclaim());
        check("reallocate", media.reallocate(..));
        check("wait_reclaimed", media.wait_reclaimed(Duration::MAX));
        check("repair", words.repair(..));
        check("accept_loss", words.accept_loss(..));
        check("scrub", words.scrub(Default::default()));
        check("explain", words.explain(key(1)));
        check("walk", words.walk());
        check("versions", words.versions(key(1)));
        check("verified_get", words.verified_get(key(1)));
        check("flush", words.flush());
        check("compact", words.compact(..));
        check("export", words.export(.., self.dir.join("export")));
        check("ingest", words.ingest(self.dir.join("export")));
        check("bulk_load", words.bulk_load([("k", "v")]));
        check("get at a snapshot", snapshot.get(words, key(1)));
        check("a range at a snapshot", snapshot.iter(words).next().unwrap());
        check("partition", db.partition("words"));
        check("open_partition", db.open_partition("words"));
        check("a new partition", db.partition("new"));
        check("partition_with", db.partition_with("media", PartitionOptions::new()));
        check("drop_partition", db.drop_partition("media"));
        check("commit", db.batch().put(words, "a", "b").commit(Durability::Sync));
        check("try_commit", db.batch().put(words, "a", "b").try_commit(Durability::Os));
        check("an empty batch", db.batch().commit(Durability::Os));
        check("wait_durable", db.wait_durable(SeqNo::ZERO));
        check("on_durable", db.on_durable(SeqNo::ZERO, |_| {}));
        check("durable", self.runtime.block_on(db.durable(SeqNo::ZERO)));
        check("db.flush", db.flush());
        check("wait_idle", db.wait_idle());
        check("checkpoint", db.checkpoint(self.dir.join("checkpoint")));
        check("verify", db.verify(VerifyOptions::default()));
        check("lease_holders", db.lease_holders());
        check("export_stream", db.export_stream(Vec::new(), &StreamExport::new()));
        check("import_stream", db.import_stream(&b"VERSION=3\n"[..], &StreamImport::new()));
        let mut begun = db.transaction();
        check("get in a transaction", begun.get(words, key(1)));
        check("lock in a transaction", begun.get_for_update(words, key(1)));
        begun.put(words, "a", "b");
        check("commit a transaction", begun.commit(Durability::Os));
        check("a new snapshot", db.snapshot().get(words, key(1)));
        // These have no error to return. They take no lock.
        assert!(!db.health().is_healthy());
        assert!(db.health().read_only.unwrap().contains("forked"));
        db.stats();
        words.stats();
        media.space();
        media.chunks();
        words.gaps();
        assert!(!format!("{:?}", words.options()).is_empty());
        assert_eq!((db.partition_names().len(), db.has_partition("words")), (0, false));
        db.durable_seq();
        db.visible_seq();
        self.call_secondary();
        self.use_open_handles();
    }

    fn call_secondary(&self) {
        let Handles { secondary, followed, reading, .. } = self;
        check("secondary.sync", secondary.sync(Target::Latest));
        check("followed.sync", followed.sync(Target::Latest));
        check("sync_group", secondary.sync_group(&[followed], Target::Latest));
        check("promote", Db::promote(secondary));
        check("secondary.verify", secondary.verify(VerifyOptions::default()));
        check("secondary.partition", secondary.partition("media"));
        check("secondary.partition, known", secondary.partition("words"));
        check("followed.get", followed.get(key(1)));
        check("strong", followed.at(Level::Strong));
        check("prefix", followed.at(Level::Prefix));
        check("follow", followed.follow(Follow::Eager));
        let seen = reading.as_of();
        check("wait_for_news", followed.wait_for_news(seen, Duration::MAX));
        check("wait_for", secondary.wait_for(seen, Duration::MAX));
        check("reading.get", reading.get(key(1)));
        check("reading.iter", reading.iter().next().unwrap());
        check("reading.cursor", reading.cursor().seek_to_first());
        followed.followed();
        followed.lag();
        secondary.partition_names();
        secondary.has_live_primary();
        secondary.memtable_bytes();
        assert_eq!(followed.follow_failure().unwrap().kind(), ErrorKind::Closed);
    }

    /// Continues the work in progress, and drops all handles.
    fn use_open_handles(self) {
        let Handles { mut cursor, mut range, mut writer, reader, runtime, .. } = self;
        // Up to an error: earlier entries may be returned.
        let mut moved = cursor.next();
        while moved.is_ok() && cursor.valid() {
            moved = cursor.next();
        }
        check("the rest of a cursor", moved);
        check("the rest of a range", range.find_map(Result::err).map_or(Ok(()), Err));
        check("a transaction", self.transaction.commit(Durability::Os));
        // It holds its file, and takes no lock.
        let mut bytes = [0; 10];
        reader.read_exact_at(0, &mut bytes).unwrap();
        assert_eq!((bytes, self.lent[299_999]), ([7; 10], 7));
        writer.write_all(&vec![1; 1 << 20]).unwrap_err();
        check("finish", writer.finish());
        let batch = self.db.batch().put_blob(self.finished);
        check("a finished stream", batch.commit(Durability::Os));
        check("durable", runtime.block_on(self.durable));
        check("async", runtime.block_on(self.asynchronous.get(key(1))));
        drop((self.secondary, self.followed, self.reading, self.lent));
        drop((cursor, range, self.snapshot, self.words, self.media, reader));
        check("close", self.db.close());
    }

    /// Continues to write, closes, and finds everything.
    pub(super) fn finish(self) {
        let lock = OsFs.try_lock(&self.dir.join("LOCK")).unwrap();
        assert!(lock.is_none(), "the child has kept and freed the lock of the folder");
        let Handles { dir, db, words, media, writer, finished, durable, runtime, .. } = self;
        runtime.block_on(durable).unwrap();
        for number in 2000..4000 {
            words.put(key(number), "second").unwrap();
        }
        writer.commit(Durability::Sync).unwrap();
        db.batch().put_blob(finished).commit(Durability::Sync).unwrap();
        words.put_with(key(4000), "last", Durability::Sync).unwrap();
        assert_eq!(db.lease_holders().unwrap().len(), 1, "the secondary has its lease");
        self.followed.sync(Target::Latest).unwrap();
        assert_eq!(self.followed.get(key(4000)).unwrap().unwrap(), b"last");
        self.transaction.commit(Durability::Os).unwrap();
        drop((self.cursor, self.range, self.snapshot, self.reader, self.lent));
        drop((self.secondary, self.followed, self.reading, self.asynchronous, words, media));
        db.close().unwrap();
        check_content(&dir);
    }
}

fn check_content(dir: &Path) {
    let db = Db::open(dir).unwrap();
    let words = db.partition("words").unwrap();
    let media = db.partition_with("media", large_values()).unwrap();
    for number in 0..4000 {
        let value = if number < 2000 { "first" } else { "second" };
        assert_eq!(words.get(key(number)).unwrap().unwrap(), value.as_bytes(), "{number}");
    }
    assert_eq!(words.get("own").unwrap().unwrap(), b"write");
    assert_eq!(words.iter().count(), 4002);
    assert_eq!(media.get("film").unwrap().unwrap(), vec![7; 300_000]);
    assert_eq!(media.get("stream").unwrap().unwrap(), vec![9; 700_000]);
    assert_eq!(media.get("finished").unwrap().unwrap(), vec![5; 90_000]);
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "{:?}", report.damage());
    db.close().unwrap();
}

/// Checks that a call was refused because of the process.
pub(super) fn check<T>(call: &str, said: Result<T, Error>) {
    let error = said.err().unwrap_or_else(|| panic!("{call} was done"));
    // A handle is closed here, and nothing can be opened.
    let is_kind = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unsupported);
    let is_reported = is_kind && error.to_string().contains("was forked");
    assert!(is_reported, "{call}: {error}");
}

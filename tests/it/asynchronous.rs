//! Handles for async code: nothing blocks the thread of the runtime, and waits occupy no thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use lsm_core::fs::{FaultFs, FsOp, MemFs};
use siltstone::asynchronous::{Async, ChangeStream};
use siltstone::changes::FeedItem;
use siltstone::secondary::{Level, OnUnmet, ReadOptions, Secondary, SecondaryPartition, Target};
use siltstone::{
    Builder, Commit, Db, Durability, Error, ErrorKind, Partition, PartitionOptions, SeqNo, Swap,
};

use crate::store::{settle, stepped};

/// Runs a future on a runtime with one worker thread and at most `blocking` threads that may block.
fn on_runtime<T>(blocking_threads: usize, future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().max_blocking_threads(blocking_threads).build().unwrap();
    runtime.block_on(future)
}

fn primary(fs: &FaultFs) -> Builder {
    stepped(Arc::new(fs.clone()), "/db", 1)
}

async fn secondary(fs: &FaultFs) -> Async<Secondary> {
    let builder = Db::secondary_builder("/db").fs(Arc::new(fs.clone()));
    Async::<Secondary>::open_with(builder).await.unwrap()
}

/// A primary whose partition has one commit, and a secondary that follows it.
struct Pair {
    /// Held so that the primary stays open.
    _db: Async<Db>,
    p: Async<Partition>,
    first: Commit,
    follower: Async<Secondary>,
    followed: Async<SecondaryPartition>,
}

async fn pair() -> Pair {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = Async::<Db>::open_with(primary(&fs)).await.unwrap();
    let p = db.partition("p").await.unwrap();
    let first = p.put("k", "1").await.unwrap();
    let follower = secondary(&fs).await;
    let followed = follower.partition("p").await.unwrap();
    Pair { _db: db, p, first, follower, followed }
}

fn strong() -> ReadOptions {
    ReadOptions::new(Level::Strong)
}

/// Fails the test if the calling thread, which is the thread of the runtime, touches a file.
fn refuse_this_thread(fs: &FaultFs) {
    let runtime = thread::current().id();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let path = op.path.display();
        assert_ne!(thread::current().id(), runtime, "{:?} of {path}", op.kind);
    }));
}

#[test]
fn no_file_is_touched_on_the_thread_of_the_runtime() {
    let fs = FaultFs::over_mem(MemFs::new());
    refuse_this_thread(&fs);
    on_runtime(2, async {
        let db = Async::<Db>::open_with(primary(&fs)).await.unwrap();
        let p = db.partition("p").await.unwrap();
        p.put("a", "1").await.unwrap();
        let batch = db.blocking().batch().put(p.blocking(), "b", "2");
        let commit = db.commit(batch, Durability::Sync).await.unwrap();
        p.put("c", "3").await.unwrap();
        db.flush().await.unwrap();
        p.delete("c").await.unwrap();
        for key in ["r1", "r2", "s1", "s2"] {
            p.put(key, "goes").await.unwrap();
        }
        p.delete_range("r1".."s").await.unwrap();
        p.delete_prefix("s").await.unwrap();
        let durable = [
            p.put_with("t", "1", Durability::Sync).await.unwrap(),
            p.update_with("t", Durability::Sync, |_| Some("2")).await.unwrap().commit,
            p.delete_with("t", Durability::Sync).await.unwrap(),
        ];
        assert!(db.blocking().durable_seq() >= durable[2].seq);
        for expected in [None, Some(&b"3"[..])] {
            let new = if expected.is_none() { Some(&b"3"[..]) } else { None };
            let swap = p.compare_and_set_with("u", expected, new, Durability::Os).await.unwrap();
            assert!(matches!(swap, Swap::Done(_)));
        }
        db.partition_with("o", PartitionOptions::new()).await.unwrap().release().await;
        db.open_partition("o").await.unwrap().release().await;
        assert!(db.open_partition("none").await.is_err());
        assert_eq!(p.get("b").await.unwrap().as_deref(), Some(&b"2"[..]));
        assert!(!p.contains("c").await.unwrap());
        let mut rows = p.rows(..);
        assert_eq!(rows.next().await.unwrap().unwrap().0, *b"a");
        assert_eq!(rows.next().await.unwrap().unwrap().0, *b"b");
        assert_eq!(rows.next().await.unwrap(), None);
        assert_eq!(rows.next().await.unwrap(), None);
        db.checkpoint("/copy").await.unwrap();

        let follower = secondary(&fs).await;
        let followed = follower.partition("p").await.unwrap();
        follower.sync(Target::Latest).await.unwrap();
        follower.wait_for(commit, Duration::ZERO).await.unwrap();
        followed.sync(Target::Durable).await.unwrap();
        let cut = follower.sync_group(&[&followed], Target::Latest).await.unwrap();
        assert!(cut.partition(followed.blocking()).is_some());
        drop(cut);
        assert!(followed.get("b").await.unwrap().is_some());
        assert!(followed.get_with("c", &strong()).await.unwrap().is_none());
        let reading = followed.read(&strong()).await.unwrap();
        assert_eq!(reading.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
        let mut rows = reading.rows("b"..);
        assert_eq!(rows.next().await.unwrap().unwrap().1, *b"2");
        drop(rows);
        let as_of = reading.blocking().as_of();
        assert_eq!(followed.wait_for_news(as_of, Duration::ZERO).await.unwrap(), None);
        reading.release().await;
        followed.release().await;
        follower.release().await;
        p.release().await;
        db.close().await.unwrap();
    });
    fs.clear_observer();
}

#[test]
fn transactions_and_updates_run_on_another_thread_and_again_after_conflicts() {
    let fs = FaultFs::over_mem(MemFs::new());
    refuse_this_thread(&fs);
    on_runtime(2, async {
        let db = Async::<Db>::open_with(primary(&fs)).await.unwrap();
        let p = db.partition("p").await.unwrap();
        p.put("n", "1").await.unwrap();
        let counter = p.blocking().clone();
        let mut attempts = 0;
        let transacted = db.transact_with(Durability::Sync, move |transaction| {
            attempts += 1;
            let old = transaction.get(&counter, "n")?.unwrap_or_default();
            if attempts == 1 {
                // Another writer.
                counter.put("n", "2")?;
            }
            transaction.put(&counter, "n", [&old[..], b"x"].concat());
            Ok::<_, Error>(attempts)
        });
        let (attempts, commit) = transacted.await.unwrap();
        assert!(attempts == 2 && db.blocking().durable_seq() >= commit.seq);
        let updated = p.update("n", |old| old.map(|old| [old, b"y"].concat())).await.unwrap();
        assert_eq!(updated.old.as_deref(), Some(&b"2x"[..]));
        assert_eq!(updated.new.as_deref(), Some(&b"2xy"[..]));
        let other = p.blocking().clone();
        let failed = db.transact(move |transaction| {
            transaction.put(&other, "m", "1");
            Err::<(), _>(Error::new(ErrorKind::InvalidArgument, "it is refused"))
        });
        assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(!p.contains("m").await.unwrap());
        p.clear().await.unwrap();
        assert!(!p.contains("n").await.unwrap());
        p.release().await;
        db.close().await.unwrap();
    });
    fs.clear_observer();
}

#[test]
fn a_promotion_touches_no_file_on_the_thread_of_the_runtime() {
    let fs = FaultFs::over_mem(MemFs::new());
    refuse_this_thread(&fs);
    on_runtime(2, async {
        let old = Async::<Db>::open_with(primary(&fs)).await.unwrap();
        let p = old.partition("p").await.unwrap();
        let first = p.put("k", "1").await.unwrap();
        let follower = secondary(&fs).await;
        let new = follower.promote().await.unwrap();
        assert_eq!(p.put("k", "2").await.unwrap_err().kind(), ErrorKind::Fenced);
        let q = new.partition("p").await.unwrap();
        assert_eq!(q.get("k").await.unwrap().as_deref(), Some(&b"1"[..]));
        let commit = q.put("k", "3").await.unwrap();
        assert!(commit.epoch > first.epoch);
        follower.wait_for(commit, Duration::from_secs(60)).await.unwrap();
        follower.release().await;
        p.release().await;
        q.release().await;
        new.close().await.unwrap();
        assert_eq!(old.close().await.unwrap_err().kind(), ErrorKind::Fenced);
    });
    fs.clear_observer();
}

/// One thread may block: the first of the waits would occupy it.
#[test]
fn waits_occupy_no_thread() {
    on_runtime(1, async {
        let Pair { _db, p, first, follower, followed } = pair().await;
        let next = Commit { seq: first.seq.plus(1), ..first };
        let at_next = ReadOptions::new(Level::Session(next)).wait(Duration::MAX);
        let seen = followed.read(&strong()).await.unwrap().blocking().as_of();
        let (news, waited, value, put) = tokio::join!(
            followed.wait_for_news(seen, Duration::MAX),
            follower.wait_for(next, Duration::MAX),
            followed.get_with("k", &at_next),
            p.put("k", "2"),
        );
        assert_eq!(put.unwrap(), next);
        assert_eq!(news.unwrap(), Some(next));
        waited.unwrap();
        assert_eq!(value.unwrap().as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn a_wait_ends_after_its_time_and_with_the_weaker_level_that_was_accepted() {
    on_runtime(1, async {
        let Pair { _db, first, follower, followed, .. } = pair().await;
        let never = Commit { seq: first.seq.plus(9), ..first };
        let short = Duration::from_millis(3);
        let kind = follower.wait_for(never, short).await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Behind);
        let at_never = ReadOptions::new(Level::Session(never)).wait(short);
        let kind = followed.get_with("k", &at_never).await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Behind);
        let weaker = at_never.on_unmet(OnUnmet::Weaker);
        let reading = followed.read(&weaker).await.unwrap();
        assert_eq!(reading.blocking().served(), Level::Eventual);
        assert_eq!(reading.get("k").await.unwrap().as_deref(), Some(&b"1"[..]));
        let seen = reading.blocking().as_of();
        assert_eq!(followed.wait_for_news(seen, short).await.unwrap(), None);
    });
}

fn filled(fs: &FaultFs) -> (Db, Partition) {
    let db = primary(fs).cache_bytes(0).open().unwrap();
    let p = db.partition("p").unwrap();
    for n in 0..1000_u32 {
        p.put(n.to_be_bytes(), [7; 100]).unwrap();
    }
    p.flush().unwrap();
    (db, p)
}

#[test]
fn a_dropped_future_loses_no_row() {
    let fs = FaultFs::over_mem(MemFs::new());
    let (_db, p) = filled(&fs);
    let expected: Vec<_> = p.iter().map(Result::unwrap).collect();
    on_runtime(1, async {
        let mut rows = Async::from(p).rows(..);
        let mut read = Vec::new();
        loop {
            // The read begins, and the future is dropped unless rows are ready.
            let started = pin!(rows.next()).as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let row = match started {
                Poll::Ready(row) => row.unwrap(),
                Poll::Pending => rows.next().await.unwrap(),
            };
            match row {
                Some(row) => read.push(row),
                None => break,
            }
        }
        assert_eq!(read, expected);
    });
}

#[test]
fn rows_before_an_error_are_returned_first() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let (_db, p) = filled(&fs);
    let walk = p.walk().unwrap();
    let table = walk.tables().next().unwrap();
    let middle = table.properties().unwrap().data_bytes / 2;
    mem.corrupt(&table.path(), middle, 0x55).unwrap();
    let whole = p.iter().take_while(Result::is_ok).count();
    assert!((300..700).contains(&whole), "{whole} rows stand before the damage");
    on_runtime(1, async {
        let mut rows = Async::from(p).rows(..);
        let mut read = 0;
        let error = loop {
            match rows.next().await {
                Ok(row) => read += usize::from(row.is_some()),
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.kind()), (whole, ErrorKind::Corruption));
        assert_eq!(rows.next().await.unwrap(), None);
    });
}

/// Waits of streams leave the one thread that may block to the writer.
#[test]
fn a_stream_of_changes_waits_without_a_thread_and_loses_nothing() {
    let fs = FaultFs::over_mem(MemFs::new());
    refuse_this_thread(&fs);
    on_runtime(1, async {
        let db = Async::<Db>::open_with(primary(&fs)).await.unwrap();
        let p = db.partition("p").await.unwrap();
        let follower = secondary(&fs).await;
        let mut own = db.changes(SeqNo::ZERO).unwrap();
        let only_q = db.blocking().changes(SeqNo::ZERO).unwrap().in_partition("q");
        let mut filtered = ChangeStream::from(only_q);
        let mut followed = follower.changes(SeqNo::ZERO).unwrap();
        for round in 1..4 {
            for stream in [&mut own, &mut filtered, &mut followed] {
                // What a look finds whose future is dropped stays.
                let mut context = Context::from_waker(Waker::noop());
                assert!(pin!(stream.next()).poll(&mut context).is_pending());
            }
            let batch = db.blocking().batch().put(p.blocking(), "k", "v");
            let write = async {
                db.commit(batch, Durability::Sync).await.unwrap();
                let settled = db.call(|db| {
                    settle(db);
                    Ok::<(), Error>(())
                });
                settled.await.unwrap();
            };
            let (own, followed, ()) = tokio::join!(own.next(), followed.next(), write);
            for found in [own, followed] {
                let FeedItem::Commit(batch) = found.unwrap() else { panic!("no commit") };
                assert_eq!((batch.seq.get(), batch.changes.len()), (round, 1));
            }
        }
        assert_eq!([own.position(), followed.position()].map(|it| it.seq.get()), [3, 3]);
        let (end, closed) = tokio::join!(filtered.next(), db.close());
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Closed);
        closed.unwrap();
        assert_eq!(own.next().await.unwrap_err().kind(), ErrorKind::Closed);
        // The last handles give the lease back.
        fs.clear_observer();
    });
}

#[test]
fn a_panic_is_resumed_in_the_caller() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = primary(&fs).open().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let db = Async::from(db);
        on_runtime(1, async {
            db.call(|_| -> siltstone::Result<()> { panic!("of the work") }).await
        })
    }));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"of the work"));
}

#[test]
fn work_after_the_end_of_the_runtime_is_an_error() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = Async::from(primary(&fs).open().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let handle = runtime.handle().clone();
    runtime.shutdown_background();
    let _inside = handle.enter();
    let mut call = pin!(db.call(|_| Ok::<(), siltstone::Error>(())));
    let Poll::Ready(refused) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("nothing will end it");
    };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
}

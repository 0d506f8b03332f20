//! Threads that run while a store ends: a close, a power cut, a reopening with full queues.

use super::*;
use crate::store::stepped;

/// Checks the result of a call: a close may refuse it, and no other error may occur.
fn closed_or<T>(result: siltstone::Result<T>) -> Option<T> {
    result.inspect_err(|error| assert_eq!(error.kind(), ErrorKind::Closed, "{error}")).ok()
}

#[test]
fn what_was_acknowledged_before_a_close_is_there_after_reopening() {
    let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
    let board = Board::new(KEYS);
    let mut random = Rng::from_env_or(11);
    for round in 1..=25 {
        let store = open(fs.clone(), "/db".as_ref(), small);
        for (n, seen) in store.read_all() {
            let newest = board.acknowledged(n);
            assert_eq!(seen, value(n, newest).map(|_| newest), "key {n} in round {round}");
        }
        let enough = board.total_acknowledged() + random.range(1..1500);
        std::thread::scope(|scope| {
            let store = &store;
            let board = &board;
            for writer in 0..WRITERS {
                let mut random = random.fork();
                scope.spawn(move || {
                    loop {
                        let n = writer * KEYS_PER_WRITER + random.index(KEYS_PER_WRITER);
                        if closed_or(store.write(board, n, random.chance(1, 20))).is_none() {
                            break;
                        }
                    }
                });
            }
            scope.spawn(|| while closed_or(store.db.flush()).is_some() {});
            scope.spawn(|| while closed_or(store.a.compact(..)).is_some() {});
            scope.spawn(|| while closed_or(store.db.wait_idle()).is_some() {});
            scope.spawn(|| while closed_or(store.b.get("p00000")).is_some() {});
            while board.total_acknowledged() < enough {
                std::thread::yield_now();
            }
            store.db.clone().close().unwrap();
        });
    }
}

/// The power is cut while threads write, flush and compact. The recovered state is one point in the
/// order of all logged writes, and has what was synced before the cut.
#[test]
fn a_power_cut_under_concurrency_leaves_a_prefix_of_the_writes() {
    let fs = MemFs::new();
    let store = open(Arc::new(fs.clone()), "/db".as_ref(), small);
    let board = Board::new(KEYS);
    let done = AtomicBool::new(false);
    let mut random = Rng::from_env_or(3);
    let mut writes_done = Vec::new();
    let mut recovered = Vec::new();
    std::thread::scope(|scope| {
        let store = &store;
        let board = &board;
        let done = &done;
        let ending = DoneOnDrop(done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| (writer, random.fork()))
            .map(|(writer, random)| scope.spawn(move || write(store, board, writer, 8_000, random)))
            .collect();
        let work = random.fork();
        scope.spawn(move || work_until(done, store, work));
        while writers.iter().any(|writer| !writer.is_finished()) {
            let floors: Vec<_> = (0..KEYS).map(|n| board.synced(n)).collect();
            let outcome = *random.pick(&CrashOutcome::ALL);
            let left = fs.crash_clone(outcome, &mut || random.next_u64());
            let ceilings: Vec<_> = (0..KEYS).map(|n| board.begun(n)).collect();
            let db = stepped(Arc::new(left), "/db", 1).open().unwrap();
            let [a, b, bare] = ["a", "b", "bare"].map(|name| db.partition(name).unwrap());
            let mut state = Store { db, a, b, bare }.read_all();
            state.retain(|n, _| key(*n).0 != Place::Bare);
            for (n, seen) in &state {
                let seen = seen.unwrap_or_else(|| floors[*n].next_multiple_of(5));
                assert!((floors[*n]..=ceilings[*n]).contains(&seen), "key {n}, {outcome:?}");
            }
            recovered.push(state);
        }
        drop(ending);
        writers.into_iter().for_each(|writer| writes_done.extend(writer.join().unwrap()));
    });
    let history = History::new(KEYS, writes_done);
    assert!(!recovered.is_empty());
    for state in &recovered {
        history.check_cut(state.iter().map(|(n, seen)| (*n, *seen)));
    }
}

/// A store that opens with more level-0 tables than stop writes, and a log full of memtables,
/// reduces them without any writes.
#[test]
fn a_recovered_store_with_full_queues_drains_without_a_writer() {
    for outcome in [CrashOutcome::Nothing, CrashOutcome::Everything] {
        let fs = MemFs::new();
        let options = Options::new().wal_segment_bytes(16 << 10).write_buffer_bytes(16 << 10);
        let builder = || Db::builder("/db").options(options.clone());
        let db = builder().fs(Arc::new(fs.clone())).background(BackgroundMode::Stepped);
        let db = db.open().unwrap();
        let p = db.partition_with("p", small().level0_tables(1000)).unwrap();
        let mut expected = BTreeMap::new();
        let mut put = |n: u32, len: usize| {
            let key = (n.wrapping_mul(7919) % 500).to_be_bytes().to_vec();
            let value = vec![n as u8; len];
            p.put(&key, &value).unwrap();
            expected.insert(key, value);
        };
        for n in 0..60 {
            (0..20).for_each(|m| put(n * 20 + m, 100));
            db.flush().unwrap();
        }
        (0..100).for_each(|n| put(n, 300));
        db.partition_with("p", small()).unwrap();
        db.wait_durable(db.visible_seq()).unwrap();
        let before = &db.stats().partitions[1];
        assert!(
            before.levels[0].table_count >= 60 && before.sealed_memtable_count >= 2,
            "{before:?}"
        );

        let mut random = Rng::new(1);
        let left = fs.crash_clone(outcome, &mut || random.next_u64());
        let db = builder().fs(Arc::new(left.clone())).open().unwrap();
        let [a, b, bare] = ["p", "p", "p"].map(|name| db.partition(name).unwrap());
        let store = Store { db, a, b, bare };
        store.db.wait_idle().unwrap();
        assert!(store.db.stats().partitions[1].levels[0].table_count < 2);
        let found = store.a.iter().map(|entry| entry.unwrap());
        let found: BTreeMap<_, _> = found.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(found, expected);
        check_and_close(store, &(Arc::new(left) as Arc<dyn Fs>), "/db".as_ref());
    }
}

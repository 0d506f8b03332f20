//! Runs of a scrub: stopped and continued, limited to a rate, in a partition that is in use.

use super::*;

#[test]
fn a_run_that_is_stopped_and_goes_on_covers_every_table_once() {
    let it = Faulty::metadata(|key, found| match key.ends_with(b"3") {
        true => vec![],
        false => vec![(key.to_vec(), found.to_vec())],
    });
    let whole = scrubbed(&it.p);
    assert!(whole.tables.len() > 5 && whole.faults().count() == 30, "{whole}");
    for patience in [1, 2, 5, 17, 60] {
        let mut tables = Vec::new();
        let mut mark = None;
        let mut extra = 0;
        for round in 0.. {
            assert!(round < 10_000, "it comes to an end");
            // A budget smaller than one table would make no progress.
            let mut left = patience + extra;
            let options = ScrubOptions::new().resume_after(mark).on_progress(|progress| {
                assert!(progress.files_done <= progress.files);
                assert!(progress.bytes_done <= progress.bytes, "{progress:?}");
                left -= 1;
                left > 0
            });
            let report = it.p.scrub(options).unwrap();
            extra = if report.tables.is_empty() { extra + 5 } else { 0 };
            tables.extend(report.tables);
            mark = report.mark.map(|mark| mark.to_string().parse::<ScrubMark>().unwrap());
            if mark.is_none() {
                break;
            }
        }
        assert_eq!(tables, whole.tables);
    }
    let stopped = it.p.scrub(ScrubOptions::new().on_progress(|_| false)).unwrap().mark;
    let other = it.db.partition("other").unwrap();
    for wrong in [stopped, format!("{:032x}-{:08x}-{:016x}", 7, 1, 1).parse().ok()] {
        let refused = other.scrub(ScrubOptions::new().resume_after(wrong)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_limit_holds_by_the_clock_of_the_database() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let it = filled(&fs, &provider);
    drop(it.p);
    it.db.close().unwrap();
    let clock = Arc::new(Ticking::default());
    let open = builder(Arc::new(fs), 27).hooks(Arc::new(provider));
    let db = open.clock(clock.clone()).open().unwrap();
    let p = db.partition("p").unwrap();
    let free = scrubbed(&p);
    let begun = clock.now();
    // So slow that nearly all of the time is spent waiting.
    let mut calls = 0;
    let options = ScrubOptions::new().bytes_per_second(free.bytes / 10).on_progress(|_| {
        calls += 1;
        true
    });
    let report = p.scrub(options).unwrap();
    let took = clock.now().saturating_sub(begun).as_millis();
    assert_eq!(report, free);
    assert!((9500..14_000).contains(&took), "{took} ms instead of 10,000");
    assert!(calls > 200, "a caller may stop the wait: {calls}");
    // A closed database reports nothing more about its files.
    let mut db = Some(db);
    let options = ScrubOptions::new().on_progress(|_| {
        db.take().into_iter().for_each(|db| db.close().unwrap());
        true
    });
    assert_eq!(p.scrub(options).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn tables_are_held_until_they_were_read_and_no_longer() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let it = filled(&fs, &provider);
    let before: BTreeSet<_> = damage::tables(&fs).into_iter().collect();
    let left = || damage::tables(&fs).iter().filter(|path| before.contains(*path)).count();
    let mut was_left = Vec::new();
    let options = ScrubOptions::new().on_progress(|progress| {
        if progress.files_done == 0 {
            it.p.put("key 100", "new").unwrap();
            it.p.compact(..).unwrap();
        }
        it.db.wait_idle().unwrap();
        was_left.push(left() as u64 + progress.files_done);
        true
    });
    let report = it.p.scrub(options).unwrap();
    assert!(report.is_sound() && report.tables.len() > 3, "{report}");
    // The one that is being read is held as well; at the end none is.
    let tables = report.tables.len() as u64;
    assert_eq!(was_left, vec![tables; was_left.len()]);
    assert_eq!(left(), 0);
}

#[test]
fn an_intact_partition_in_use_is_never_reported() {
    let provider = Provider::new(MetaHive::default());
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(64 << 10);
    let db = Db::builder(DIR).fs(Arc::new(MemFs::new())).options(options).open().unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 1..3 {
            let db = &db;
            let p = &p;
            let stop = &stop;
            let written = &written;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let key = key_of((rng.next_u64() % 2000) as u32);
                    match rng.next_u64() % 2000 {
                        0 => db.flush().unwrap(),
                        1 => p.compact(..).unwrap(),
                        n if n % 5 == 0 => drop(p.delete(&key).unwrap()),
                        n => drop(p.put(&key, "v".repeat(n as usize % 200)).unwrap()),
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut rounds = 0;
        while rounds < 50 || written.load(Ordering::Relaxed) < 20_000 {
            let report = p.scrub(ScrubOptions::new());
            let is_sound = report.as_ref().is_ok_and(|r| r.is_sound() && r.is_sealed());
            // Before the assertion: the writers are joined when it fails, too.
            stop.fetch_or(!is_sound, Ordering::Relaxed);
            assert!(is_sound, "round {rounds}: {report:?}");
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(db.stats().compaction_count > 0);
}

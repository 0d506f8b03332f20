//! Runs that are stopped and continued, and that are limited to a rate.

use super::*;

#[test]
fn a_run_that_is_stopped_and_goes_on_covers_every_file_once() {
    let fs = MemFs::new();
    let db = build(&fs);
    let tables = files(&fs, FileKind::Sst);
    for path in &tables[..3] {
        fs.corrupt(path, 5, 1).unwrap();
    }
    let whole = db.verify(VerifyOptions::new()).unwrap();
    assert_eq!((whole.mark, whole.is_sound()), (None, false));
    for patience in [1, 2, 5, 17, 60] {
        let mut files = 0;
        let mut bytes = 0;
        let mut entries = 0;
        let mut mark = None;
        let mut damage = Vec::new();
        // A budget smaller than one file would make no progress.
        let mut extra = 0;
        for round in 0.. {
            assert!(round < 10_000, "it comes to an end");
            let mut left = patience + extra;
            let options = VerifyOptions::new().resume_after(mark).on_progress(|progress| {
                assert!(progress.files_done <= progress.files);
                assert!(progress.bytes_done <= progress.bytes, "{progress:?}");
                left -= 1;
                left > 0
            });
            let report = db.verify(options).unwrap();
            extra = if report.files == 0 { extra + 5 } else { 0 };
            files += report.files;
            bytes += report.bytes;
            entries += report.entries;
            damage.extend_from_slice(report.damage());
            mark = report.mark.map(|mark| mark.to_string().parse::<VerifyMark>().unwrap());
            if mark.is_none() {
                break;
            }
        }
        assert_eq!((files, bytes, entries), (whole.files, whole.bytes, whole.entries));
        assert_eq!(damage, whole.damage());
    }
    let foreign = format!("{:032x}-{:016x}", 7, 1).parse().unwrap();
    let refused = db.verify(VerifyOptions::new().resume_after(Some(foreign)));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_limit_holds_by_the_clock_of_the_database() {
    let clock = Arc::new(Ticking::default());
    let builder = stepped(Arc::new(MemFs::new()), DIR, 1).options(options());
    let db = builder.clock(clock.clone()).open().unwrap();
    db.partition("default").unwrap().put("key", "value".repeat(1000)).unwrap();
    db.flush().unwrap();
    let free = db.verify(VerifyOptions::new()).unwrap();
    let begun = clock.now();
    // So slow that nearly all of the time is spent waiting.
    let mut calls = 0;
    let options = VerifyOptions::new().bytes_per_second(free.bytes).on_progress(|_| {
        calls += 1;
        true
    });
    let report = db.verify(options).unwrap();
    let took = clock.now().saturating_sub(begun).as_millis();
    assert_eq!(report, free);
    assert!((900..1500).contains(&took), "{took} ms instead of 1000");
    assert!(calls > 20, "a caller may stop the wait: {calls}");
}

/// A process without a free file handle reports nothing about the files. First an open file is
/// closed for a new one.
#[test]
fn a_file_that_no_handle_is_left_for_is_not_damaged() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = build_on(Arc::new(fs.clone()));
    for kind in [FileKind::Wal, FileKind::Manifest, FileKind::Sst] {
        for path in files(&mem, kind) {
            for sticky in [false, true] {
                let suffix = path.file_name().unwrap().to_str().unwrap().to_owned();
                let at = FaultAt::Nth { kind: OpKind::OpenRead, suffix, nth: 0 };
                fs.add_rule(FaultRule { at, action: FaultAction::Emfile, sticky });
                match db.verify(VerifyOptions::new()) {
                    Ok(report) => assert!(report.is_sound(), "{path:?}, sticky {sticky}: {report}"),
                    Err(error) => assert!(is_out_of_handles(&error), "{path:?}: {error}"),
                }
                fs.heal();
            }
        }
    }
    assert!(fs.fault_count() > 5, "{}", fs.fault_count());
    assert!(db.verify(VerifyOptions::new()).unwrap().is_sound());
}

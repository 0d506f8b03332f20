//! Single bit flips in the log: every reader reports what an open for writing reports, and shows
//! nothing less.
//!
//! A reader that takes damage for the end of the log silently shows an older state as the present
//! one.

use lsm_core::db::{VerifyOptions, VerifyReport};
use lsm_core::error::Result;
use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use secondary::{Level, ReadOptions, Target};

use super::*;

const PARTITIONS: [&str; 2] = ["p", "q"];
/// Bytes between two flips. No multiple of 8, so that all fields of frames are hit.
const STEP: usize = 101;

/// The content of both partitions.
type Whole = [Content; 2];

fn small() -> Options {
    Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(4 << 10).cache_bytes(0)
}

/// A database with a part in tables and a log of several segments. Everything is durable.
fn written(fs: &Arc<dyn Fs>) -> (Db, Whole) {
    let builder = Db::builder(DIR).fs(fs.clone()).options(small());
    let db = builder.background(BackgroundMode::Stepped).open().unwrap();
    let [p, q] = PARTITIONS.map(|name| db.partition(name).unwrap());
    for number in 0..70 {
        let value = format!("{number} {}", "x".repeat(80));
        let key = format!("{:02}", number % 40);
        match number % 3 {
            0 => drop(p.put(&key, &value).unwrap()),
            1 => drop(q.put(&key, &value).unwrap()),
            _ => {
                let batch = db.batch().put(&p, &key, &value).put(&q, &key, &value);
                batch.commit(lsm_core::options::Durability::Os).unwrap();
            }
        }
        if number == 20 {
            p.flush().unwrap();
        }
        if number % 7 == 0 {
            db.wait_durable(db.visible_seq()).unwrap();
        }
    }
    settle(&db);
    let whole = [content_of(&p), content_of(&q)];
    (db, whole)
}

/// Syncs the log, and makes two later frames prove it: a flip may destroy one of them.
fn settle(db: &Db) {
    for value in ["1", "2"] {
        db.wait_durable(db.visible_seq()).unwrap();
        db.wait_idle().unwrap();
        db.partition("of no interest").unwrap().put("k", value).unwrap();
    }
    db.wait_durable(db.visible_seq()).unwrap();
}

fn whole_of(db: &Db) -> Result<Whole> {
    let mut whole = Whole::default();
    for (name, content) in PARTITIONS.iter().zip(&mut whole) {
        for entry in db.partition(name)?.iter() {
            let (key, value) = entry?;
            content.insert(key.to_vec(), value.to_vec());
        }
    }
    Ok(whole)
}

fn opened(fs: &Arc<dyn Fs>) -> Result<Whole> {
    let builder = Db::builder(DIR).fs(fs.clone()).options(small());
    whole_of(&builder.background(BackgroundMode::Stepped).open()?)
}

fn open_while_written(fs: &Arc<dyn Fs>) -> Result<Whole> {
    whole_of(&Db::builder(DIR).fs(fs.clone()).options(small()).beside_writer(true).open()?)
}

/// A secondary that was opened just now, or the error.
fn follower(fs: &Arc<dyn Fs>) -> Result<Secondary> {
    Secondary::builder(DIR).fs(fs.clone()).options(small()).open()
}

/// The content after a sync of all, through cuts of level 4.
fn synced(follower: &Secondary, to: Target) -> Result<Whole> {
    follower.sync(to)?;
    read_at(follower, Level::Prefix)
}

fn read_at(follower: &Secondary, level: Level) -> Result<Whole> {
    let mut whole = Whole::default();
    for (name, content) in PARTITIONS.iter().zip(&mut whole) {
        let options = ReadOptions::new(level);
        for entry in follower.partition(name)?.read(&options)?.iter() {
            let (key, value) = entry?;
            content.insert(key.to_vec(), value.to_vec());
        }
    }
    Ok(whole)
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|it| it == ending)
}

/// The first file with this ending.
fn file_of(mem: &MemFs, ending: &str) -> std::path::PathBuf {
    mem.paths().into_iter().find(|path| has_ending(path, ending)).unwrap()
}

fn report_of(follower: &Secondary) -> VerifyReport {
    follower.verify(VerifyOptions::default()).unwrap()
}

/// Checks that the report has the damage, and that the tables are read, too: an open secondary
/// always has a report.
fn verified(fs: &Arc<dyn Fs>) -> Result<bool> {
    let report = report_of(&follower(fs)?);
    let damage = report.damage();
    assert!(damage.iter().all(|damage| has_ending(&damage.file, "wal")), "{damage:?}");
    let tables = fs.list_names(DIR.as_ref(), "").unwrap();
    let tables = tables.iter().filter(|name| name.ends_with(".sst")).count() as u64;
    assert!(tables > 0 && report.files >= tables, "{report}");
    Ok(report.is_sound())
}

/// Each segment with the number of bytes to flip.
fn places(mem: &MemFs) -> Vec<(std::path::PathBuf, usize)> {
    let mut places = Vec::new();
    let mut logs: Vec<_> =
        mem.paths().into_iter().filter(|it| it.extension().is_some_and(|it| it == "wal")).collect();
    logs.sort();
    let mut at = 3;
    for path in logs {
        let bytes = mem.read_raw(&path).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        while at < used {
            places.push((path.clone(), at));
            at += STEP;
        }
        at -= used;
    }
    assert!(places.len() > 50, "{}", places.len());
    places
}

/// The primary's cursor and log before the flip.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Primary {
    Closed,
    /// No cursor is left, as after a restart of the machine.
    Killed,
    Live,
    /// As for a secondary on another machine.
    LiveAndFar,
}

/// A flip, and the content that an open for writing finds after it.
struct Flip<'a> {
    what: &'a str,
    open: &'a Result<Whole>,
    whole: &'a Whole,
}

impl Flip<'_> {
    /// Compares the findings of a reader with those of the open.
    fn check(&self, reader: &str, found: Result<Whole>) {
        let Flip { what, open, whole } = self;
        match (open, found) {
            // Everything is there: the damaged bytes are not needed.
            (_, Ok(found)) if found == **whole => {}
            (Err(_), Err(error)) if error.is_corruption() => {}
            (_, Ok(found)) => {
                let lens = found.map(|content| content.len());
                panic!("{what}: {reader} shows less, {lens:?}; the open: {:?}", open.as_ref().err())
            }
            (open, Err(error)) => panic!("{what}: {reader}: {error}; the open: {open:?}"),
        }
    }
}

/// Flips bits one at a time, and compares all readers.
fn run(primary: Primary) {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let (db, whole) = written(&fs);
    let mut db = Some(db);
    let mem = match primary {
        Primary::Closed => {
            db.take().unwrap().close().unwrap();
            mem
        }
        Primary::Killed => mem.crash_clone(CrashOutcome::Everything, &mut || 7),
        Primary::LiveAndFar => {
            delete_cursor(&fs);
            mem
        }
        Primary::Live => mem,
    };
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut refused = 0;
    for (number, (path, offset)) in places(&mem).into_iter().enumerate() {
        let mask = 1 << (number % 8);
        mem.corrupt(&path, offset as u64, mask).unwrap();
        // In a copy: an open for writing changes the folder.
        let copy = mem.crash_clone(CrashOutcome::Everything, &mut || 7);
        let open = opened(&(Arc::new(copy) as Arc<dyn Fs>));
        let what = format!("{primary:?}, bit {} of {offset} in {}", number % 8, path.display());
        let flip = Flip { what: &what, open: &open, whole: &whole };
        assert!(
            open.as_ref().map_or_else(lsm_core::Error::is_corruption, |it| *it == whole),
            "{what}"
        );
        flip.check("read-only open", open_while_written(&fs));
        // Without a cursor it looks at the log when it is opened.
        match follower(&fs) {
            Err(error) => flip.check("a secondary", Err(error)),
            Ok(follower) => {
                flip.check("durable", synced(&follower, Target::Durable));
                flip.check("latest", synced(&follower, Target::Latest));
                if matches!(primary, Primary::Closed | Primary::Live) {
                    flip.check("strong", read_at(&follower, Level::Strong));
                }
            }
        }
        if number % 3 == 0 {
            let is_sound = verified(&fs);
            assert!(open.is_ok() || !matches!(is_sound, Ok(true)), "{what}: verify finds nothing");
        }
        refused += u32::from(open.is_err());
        mem.corrupt(&path, offset as u64, mask).unwrap();
        // No part of the damage is left.
        if number % 16 == 0 {
            assert!(
                open_while_written(&fs).unwrap() == whole && verified(&fs).unwrap(),
                "{what}: undone"
            );
        }
    }
    assert!(refused > 25, "{refused}");
}

#[test]
fn a_flip_in_a_closed_log_is_damage_for_every_reader() {
    run(Primary::Closed);
}

#[test]
fn a_flip_in_the_log_of_a_killed_primary_is_damage_for_every_reader() {
    run(Primary::Killed);
}

#[test]
fn a_flip_in_the_log_of_a_live_primary_is_damage_for_every_reader() {
    run(Primary::Live);
}

#[test]
fn a_flip_in_the_log_of_a_primary_elsewhere_is_damage_for_every_reader() {
    run(Primary::LiveAndFar);
}

/// A state that was read before the damage hides no later damage.
#[test]
fn a_flip_in_what_a_secondary_has_yet_to_read_is_damage() {
    for has_cursor in [true, false] {
        let mem = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        let (db, _) = written(&fs);
        if !has_cursor {
            delete_cursor(&fs);
        }
        let follower = follower(&fs).unwrap();
        let before = synced(&follower, Target::Latest).unwrap();
        let old: Vec<_> = places(&mem);
        let p = db.partition("p").unwrap();
        for number in 0..60 {
            p.put(format!("new {number}"), "x".repeat(100)).unwrap();
        }
        settle(&db);
        let whole = [content_of(&p), before[1].clone()];
        let (last, end) = old.last().unwrap();
        let new = places(&mem).into_iter().filter(|(path, at)| (path, at) > (last, end));
        let mut refused = 0;
        for (path, offset) in new.step_by(3) {
            mem.corrupt(&path, offset as u64, 1).unwrap();
            for to in [Target::Durable, Target::Latest] {
                match synced(&follower, to) {
                    Ok(found) => assert!(found == whole, "{to:?}, {offset} of {}", path.display()),
                    Err(error) => {
                        assert!(error.is_corruption(), "{error}");
                        refused += 1;
                    }
                }
            }
            mem.corrupt(&path, offset as u64, 1).unwrap();
        }
        assert!(refused > 4, "{refused}");
        assert!(synced(&follower, Target::Durable).unwrap() == whole);
    }
}

/// The call used to return the error of the first damaged frame, and nothing was known of the rest.
#[test]
fn damage_of_log_manifest_and_table_are_findings_of_one_report() {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let (_db, _) = written(&fs);
    let follower = follower(&fs).unwrap();
    assert!(report_of(&follower).is_sound());
    let (segment, offset) = places(&mem).swap_remove(10);
    mem.corrupt(&segment, offset as u64, 1).unwrap();
    let table = file_of(&mem, "sst");
    mem.corrupt(&table, 20, 1).unwrap();
    let report = report_of(&follower);
    let files: Vec<_> = report.damage().iter().map(|damage| damage.file.clone()).collect();
    assert!(files.contains(&segment) && files.contains(&table), "{files:?}");
    // Without a manifest no table is known.
    let manifest = file_of(&mem, "manifest");
    mem.corrupt(&manifest, 70, 1).unwrap();
    let report = report_of(&follower);
    assert!(report.damage().iter().any(|damage| damage.file == manifest), "{report}");
    mem.corrupt(&manifest, 70, 1).unwrap();
    mem.corrupt(&segment, offset as u64, 1).unwrap();
    mem.corrupt(&table, 20, 1).unwrap();
    assert!(report_of(&follower).is_sound());
}

/// As damage: what cannot be read is a finding, as in `Db::verify`.
#[test]
fn a_log_that_cannot_be_read_is_a_finding() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let (_db, _) = written(&plain);
    let fault = FaultFs::over_mem(mem);
    let follower = follower(&(Arc::new(fault.clone()) as Arc<dyn Fs>)).unwrap();
    for kind in [OpKind::OpenRead, OpKind::Read] {
        let at = FaultAt::Nth { kind, suffix: ".wal".to_owned(), nth: 0 };
        fault.add_rule(FaultRule::sticky(at, FaultAction::Eio));
        let report = follower.verify(VerifyOptions::default()).unwrap();
        assert!(!report.is_sound() && report.files > 0, "{kind:?}: {report}");
        fault.heal();
    }
    assert!(follower.verify(VerifyOptions::default()).unwrap().is_sound());
}

//! Checks a store after a power cut: its content, and its files.
//!
//! Invariant: everything here reads the store from outside: its public calls, the names in its
//! folder, and `version::recover`, which reads the manifest independently.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind::NotFound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{FaultFs, Fs, MemFs};
use lsm_core::internals::names::{self, FileKind, FileName, LOCK};
use lsm_core::internals::version::recover;
use siltstone::ErrorKind::TooOld;
use siltstone::changes::FeedItem;
use siltstone::{Db, Durability, SeqNo, VerifyOptions};
use testkit::model::{Contents, Model, State, Step};

use super::features;
use super::script::{UNLOGGED, Variant};
use super::{DIR, RecordPosition, WriteRecord, context, open, open_read_only, over};
use crate::store::{Content, follow_change};

/// The contents of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All partitions; the unlogged one as empty.
    pub logged: State,
    /// The unlogged one.
    pub unlogged: Contents,
}

/// Reads everything, and each key once more by a get, and all in one call.
pub fn observe(db: &Db) -> Result<Seen, String> {
    let mut seen = Seen::default();
    for name in db.partition_names() {
        let partition = db.partition(&name).map_err(context("partition"))?;
        let mut contents = Contents::new();
        for entry in partition.iter() {
            let (key, value) = entry.map_err(context("scan"))?;
            let got = partition.get(&key).map_err(context("get"))?;
            if got.as_deref() != Some(&*value) {
                return Err(format!("get and scan differ in {name} at {key:?}"));
            }
            contents.insert(key.to_vec(), Arc::from(&*value));
        }
        let keys: Vec<_> = contents.keys().rev().collect();
        let got = partition.multi_get(&keys).map_err(context("multi_get"))?;
        if !got.iter().map(Option::as_deref).eq(contents.values().rev().map(|value| Some(&**value)))
        {
            return Err(format!("multi_get and scan differ in {name}"));
        }
        if name == UNLOGGED {
            seen.unlogged = contents;
            contents = Contents::new();
        }
        seen.logged.insert(name, contents);
    }
    Ok(seen)
}

/// Checks that `seen` is a state that a power cut at `position` may leave.
pub fn check_prefix(
    record: &WriteRecord,
    position: &RecordPosition,
    seen: &Seen,
) -> Result<(), String> {
    check_unlogged(record, position, &seen.unlogged)?;
    let clock = record.clock.as_ref();
    let model = features::as_seen(&record.model, &seen.logged, clock);
    let checked = check_logged(&model, position, seen);
    if checked.is_err()
        && let Some((at, step)) = &record.in_doubt
    {
        let mut log = record.model.log().to_vec();
        log.insert(*at, step.clone());
        let mut model = Model::new();
        log.into_iter().for_each(|step| model.step(step));
        let steps = position.steps + 1;
        let durable = position.durable + usize::from(position.durable > *at);
        let position = RecordPosition { steps, durable, ..position.clone() };
        let model = features::as_seen(&model, &seen.logged, clock);
        return check_logged(&model, &position, seen);
    }
    checked
}

/// Checks the logged partitions alone.
pub fn check_logged(model: &Model, position: &RecordPosition, seen: &Seen) -> Result<(), String> {
    let base = model.after(position.steps);
    let mut candidates = vec![base];
    if let Some(step) = &position.in_flight {
        let mut with = candidates[0].clone();
        let mut step = step.clone();
        if let Step::Commit(ops) = &mut step {
            // Of a refused commit after which a partition may have been dropped.
            ops.retain(|op| with.partition_names().any(|name| name == op.partition));
        }
        with.step(step);
        candidates.push(with);
    }
    for name in &position.doubtful {
        let more = candidates.iter().map(|model| toggled(model, name));
        let more: Vec<Model> = more.collect();
        candidates.extend(more);
    }
    let names: Vec<&str> = seen.logged.keys().map(String::as_str).collect();
    if candidates.iter().any(|model: &Model| {
        model.partition_names().eq(names.iter().copied())
            && model.prefix_equal_to(&seen.logged, position.durable).is_some()
    }) {
        return Ok(());
    }
    let old = candidates.iter().any(|model| model.prefix_equal_to(&seen.logged, 0).is_some());
    let what = if old { "a durable commit is lost, or a partition" } else { "no prefix" };
    Err(format!("{what}: {}", differences(&candidates[0], position, seen)))
}

/// The model with one of its partitions dropped, or with a partition created that it lacks.
fn toggled(model: &Model, name: &str) -> Model {
    let mut model = model.clone();
    let step = if model.partition_names().any(|other| other == name) {
        Step::Drop(name.to_owned())
    } else {
        Step::Create(name.to_owned())
    };
    model.step(step);
    model
}

fn differences(model: &Model, position: &RecordPosition, seen: &Seen) -> String {
    let wanted = model.state(model.seq());
    let mut text = format!(
        "partitions {:?}, expected {:?}; {} steps, durable {}, in flight {:?};",
        seen.logged.keys().collect::<Vec<_>>(),
        wanted.keys().collect::<Vec<_>>(),
        position.steps,
        position.durable,
        position.in_flight.as_ref().map(brief)
    );
    for (name, contents) in &wanted {
        let empty = Contents::new();
        let got = seen.logged.get(name).unwrap_or(&empty);
        let keys: BTreeSet<_> = contents.keys().chain(got.keys()).collect();
        for key in keys.into_iter().filter(|key| contents.get(*key) != got.get(*key)) {
            let want = short(contents.get(key));
            let got = short(got.get(key));
            text += &format!(" {name}/{}: {got:?} for {want:?}", key.escape_ascii());
        }
    }
    if std::env::var("VERBOSE").is_ok() {
        for (at, step) in model.log().iter().enumerate() {
            text += &match step {
                Step::Commit(ops) => {
                    let ops: Vec<_> = ops
                        .iter()
                        .map(|op| {
                            format!(
                                "{}/{}={:?}",
                                op.partition,
                                op.key.escape_ascii(),
                                short(op.value.as_ref())
                            )
                        })
                        .collect();
                    format!("\n{at}: {}", ops.join(", "))
                }
                other => format!("\n{at}: {other:?}"),
            };
        }
        text += &format!(
            "\nin flight {:?}",
            position.in_flight.as_ref().map(|s| match s {
                Step::Commit(ops) => ops
                    .iter()
                    .map(|op| format!("{}={:?}", op.key.escape_ascii(), short(op.value.as_ref())))
                    .collect::<Vec<_>>(),
                _ => vec![],
            })
        );
        for (name, contents) in &seen.logged {
            for (key, value) in contents {
                text += &format!("\nseen {name}/{} = {:?}", key.escape_ascii(), short(Some(value)));
            }
        }
    }
    text
}

fn brief(step: &Step) -> String {
    match step {
        Step::Commit(ops) => format!("commit of {}", ops.len()),
        other => format!("{other:?}"),
    }
}

/// Each key has a value that was written to it, no older than the last flush.
fn check_unlogged(
    record: &WriteRecord,
    position: &RecordPosition,
    seen: &Contents,
) -> Result<(), String> {
    type Allowed<'a> = BTreeMap<&'a [u8], Vec<Option<&'a Arc<[u8]>>>>;
    let mut allowed: Allowed<'_> = BTreeMap::new();
    for (at, (key, value)) in record.unlogged[..position.unlogged].iter().enumerate() {
        let values = allowed.entry(key).or_insert_with(|| vec![None]);
        if at < position.covered {
            values.clear();
        }
        values.push(value.as_ref());
    }
    if let Some(key) = seen.keys().find(|key| !allowed.contains_key(&key[..])) {
        return Err(format!("unlogged {} was never written", key.escape_ascii()));
    }
    for (key, values) in allowed {
        if !values.contains(&seen.get(key)) {
            let key = key.escape_ascii();
            return Err(format!("unlogged {key} has none of its {} values", values.len()));
        }
    }
    Ok(())
}

/// All live files of an open store verify: a store that reads well may still have damage that no
/// read met.
pub fn check_sound(db: &Db) -> Result<(), String> {
    let report = db.verify(VerifyOptions::default()).map_err(context("verify"))?;
    if report.is_sound() {
        Ok(())
    } else {
        Err(format!("a sound store is called damaged: {report}"))
    }
}

/// The manifest names every file in the folder, and each of those is there.
pub fn check_files(variant: &Variant, mem: &MemFs) -> Result<(), String> {
    let entries = mem.list(Path::new(DIR), "").map_err(context("list"))?;
    let mut found: BTreeSet<String> = entries.into_iter().map(|entry| entry.name).collect();
    // The values say which of these are there.
    found.retain(|name| !name.ends_with(".chunk"));
    let names: Vec<FileName> = found.iter().filter_map(|name| FileName::parse(name)).collect();
    let fs = over(variant, Arc::new(mem.clone()));
    let recovered = recover(&*fs, Path::new(DIR), &names).map_err(context("recover"))?;
    let recovered = recovered.ok_or("there is no manifest")?;
    let version = &recovered.version;
    // No edit names the cursor. A cursor of another epoch would be an unneeded file.
    found.remove(&names::cursor(version.epoch));
    let tables = version.partitions.values().flat_map(|p| p.tables());
    let tables = tables.map(|(_, t)| FileName::new(FileKind::Sst, t.meta.file, t.meta.epoch));
    let segments = version.log_segments.iter();
    let segments = segments.map(|(file, epoch)| FileName::new(FileKind::Wal, *file, *epoch));
    let kept = version.retained.segments.iter();
    let kept = kept.map(|(file, kept)| FileName::new(FileKind::Wal, *file, kept.epoch));
    let live = tables.chain(segments).chain(kept).chain([recovered.generation]);
    let live: BTreeSet<String> =
        live.map(|name| name.to_string()).chain([LOCK.to_owned()]).collect();
    if live != found {
        let orphans: Vec<_> = found.difference(&live).collect();
        let missing: Vec<_> = live.difference(&found).collect();
        return Err(format!("orphans {orphans:?}, missing {missing:?}"));
    }
    Ok(())
}

/// A follower that begins with the first commit has what the store has, if the log is kept and everything is durable.
fn check_feed(variant: &Variant, db: &Db, seen: &Seen) -> Result<(), String> {
    if variant.options.log_retained_bytes == 0 {
        return Ok(());
    }
    let mut changes = db.changes(SeqNo::ZERO).map_err(context("changes"))?;
    let mut index: BTreeMap<_, Content> = BTreeMap::new();
    loop {
        match changes.try_next() {
            Ok(Some(FeedItem::Commit(batch))) => {
                for (partition, change) in &batch.changes {
                    follow_change(index.entry(partition.id).or_default(), change);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) if error.kind() == TooOld && variant.may_lose_log => return Ok(()),
            Err(error) => return Err(context("follow the changes")(error)),
        }
    }
    for partition in changes.partitions().filter(|partition| &*partition.name != UNLOGGED) {
        let followed = index.remove(&partition.id).unwrap_or_default();
        let found = followed.into_iter().map(|(key, value)| (key, value.into()));
        if found.collect::<Contents>() != seen.logged[&*partition.name] {
            return Err(format!("the changes make something else of {}", partition.name));
        }
    }
    Ok(())
}

/// Runs a check; a panic counts as a failure.
pub fn guarded<T>(check: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Opens a store and reads all of it. There must be no unneeded file.
pub fn reopen(variant: &Variant, mem: &MemFs, salt: u64) -> Result<(Db, Seen), String> {
    let db = open(variant, Arc::new(mem.clone()), salt).map_err(context("open"))?;
    let seen = observe(&db)?;
    check_feed(variant, &db, &seen)?;
    check_files(variant, mem)?;
    Ok((db, seen))
}

/// Reads all of a store without writing; `None` if there is none yet.
pub fn observe_read_only(variant: &Variant, mem: &MemFs) -> Result<Option<Seen>, String> {
    let fs = FaultFs::over_mem(mem.clone());
    let db = match open_read_only(variant, Arc::new(fs.clone())) {
        Err(error) if error.io_source().is_some_and(|e| e.kind() == NotFound) => return Ok(None),
        opened => opened.map_err(context("open read-only"))?,
    };
    let seen = observe(&db)?;
    db.close().map_err(context("close what was opened read-only"))?;
    match fs.mutation_count() {
        0 => Ok(Some(seen)),
        count => Err(format!("{count} changes were asked for without writing")),
    }
}

/// Opens a store, uses it, closes it and opens it again. Returns its first content.
pub fn check_goes_on(variant: &Variant, mem: &MemFs, settle: bool) -> Result<Seen, String> {
    let (db, seen) = reopen(variant, mem, 1)?;
    let mut expected = seen.clone();
    for name in db.partition_names() {
        let partition = db.partition(&name).map_err(context("partition"))?;
        let logged = name != UNLOGGED;
        let durability = if logged { Durability::Sync } else { Durability::Os };
        let put = db.batch().put(&partition, "after", "the cut").commit(durability);
        put.map_err(context("write after the cut"))?;
        let contents = if logged { expected.logged.get_mut(&name) } else { None };
        contents.unwrap_or(&mut expected.unlogged).insert(b"after".to_vec(), (*b"the cut").into());
    }
    if settle {
        db.flush().map_err(context("flush after the cut"))?;
        db.wait_idle().map_err(context("background work after the cut"))?;
        check_files(variant, mem)?;
    }
    let going = observe(&db)?;
    expected.logged = features::left(&expected.logged, &going.logged);
    if going != expected {
        return Err("the store lost something while it went on".to_owned());
    }
    check_feed(variant, &db, &expected)?;
    check_sound(&db)?;
    db.close().map_err(context("close after the cut"))?;
    check_files(variant, mem)?;
    let (_db, again) = reopen(variant, mem, 2).map_err(|what| format!("second time: {what}"))?;
    if again != expected {
        return Err("the store lost something when it was opened again".to_owned());
    }
    Ok(seen)
}

/// The beginning of a value, as text.
fn short(value: Option<&Arc<[u8]>>) -> Option<String> {
    value.map(|value| String::from_utf8_lossy(&value[..value.len().min(8)]).into_owned())
}

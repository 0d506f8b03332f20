//! The ways in which the entries of a damaged store move on.

use lsm_core::fs::AppendMode;

use super::*;

/// A way in which the entries of a damaged store move on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// All of it is compacted.
    Compact,
    /// A part is compacted, then all of it.
    CompactPart,
    /// New writes, a flush, and the compactions that are due; then all of it.
    WriteAndStep,
    /// Compacted, closed, and opened again.
    Reopen,
    /// Compacted twice, with new writes in between.
    Twice,
    /// Exported and ingested by another store.
    Export,
    /// The same, with damage of the exported files before they are ingested.
    ExportAndDamage,
    /// Exported without metadata, and ingested by a store without MetaHive.
    ExportBare,
    /// Compacted, then the loss is accepted.
    AcceptLoss,
}

impl Way {
    pub(super) fn random(rng: &mut Rng) -> Way {
        use Way::{AcceptLoss, Compact, CompactPart, Reopen, Twice, WriteAndStep};
        use Way::{Export, ExportAndDamage, ExportBare};
        let within = [Compact, CompactPart, WriteAndStep, Reopen, Twice, AcceptLoss];
        let out = [Export, ExportAndDamage, ExportBare];
        if rng.below(3) > 0 { *rng.pick(&within) } else { *rng.pick(&out) }
    }
}

const EXPORT: &str = "/export";

/// Runs one way to its end, which is a compaction.
pub(super) fn go(
    store: &mut Store,
    shape: Shape,
    way: Way,
    rng: &mut Rng,
    about: &dyn Fn() -> String,
) {
    match way {
        Way::Compact => {}
        Way::CompactPart => {
            let from = shape.key(rng.below(3 * shape.keys));
            compact(store, from.., about);
        }
        Way::WriteAndStep => {
            write_some(store, shape, rng);
            store.db.flush().unwrap();
            while store.db.step().unwrap() {}
        }
        Way::Reopen => {
            compact(store, .., about);
            *store = store.reopened(shape, |_| {});
        }
        Way::Twice => {
            compact(store, .., about);
            write_some(store, shape, rng);
            check(store, Reads::All, &|| format!("between two compactions: {}", about()));
        }
        Way::Export => export(store, shape, None, about),
        Way::ExportAndDamage => export(store, shape, Some(rng), about),
        Way::ExportBare => export_bare(store, about),
        Way::AcceptLoss => {
            compact(store, .., about);
            accept_loss(store, about);
        }
    }
    compact(store, .., about);
}

#[track_caller]
fn compact(store: &Store, range: impl lsm_core::read::KeyRange, about: &dyn Fn() -> String) {
    if let Err(error) = store.p.compact(range) {
        panic!("the compaction was refused: {error}: {}", about());
    }
}

fn write_some(store: &mut Store, shape: Shape, rng: &mut Rng) {
    for _ in 0..shape.keys / 2 {
        let key = shape.key(rng.below(3 * shape.keys));
        store.write(&key, 7, rng);
    }
}

/// The exported files on another node.
fn brought(store: &Store) -> MemFs {
    let fs = MemFs::new();
    let dir = Path::new(EXPORT);
    fs.create_dir(dir).unwrap();
    for path in store.fs.paths().into_iter().filter(|path| path.starts_with(dir)) {
        let bytes = store.fs.read_raw(&path).unwrap();
        fs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
    }
    fs
}

/// Changes a part of an exported table. Returns the change.
fn damage_export(fs: &MemFs, store: &Store, rng: &mut Rng) -> String {
    let mut tables: Vec<PathBuf> = fs.paths();
    tables.retain(|path| path.extension().is_some_and(|ending| ending == "sst"));
    if tables.is_empty() {
        return "nothing to damage".to_owned();
    }
    let path: &PathBuf = rng.pick(&tables);
    let all = parts::parts_of(fs, path, store.p.walk().unwrap().db_id());
    let part = rng.pick(&all);
    let sealed = rng.below(2) == 0;
    let mut how = "";
    put(fs, part, sealed, |bytes| how = change(bytes, rng));
    format!("{how} of {part:?} of the export, sealed: {sealed}")
}

/// An export either fails or has all entries, wherever it is ingested. An export that was damaged
/// later is refused, or all of its content is right.
fn export(store: &Store, shape: Shape, damage: Option<&mut Rng>, about: &dyn Fn() -> String) {
    if let Err(error) = store.p.export(.., EXPORT) {
        assert!(error.is_corruption(), "{error}: {}", about());
        return;
    }
    let fs = brought(store);
    let damage = damage.map(|rng| damage_export(&fs, store, rng));
    let is_damaged = damage.is_some();
    take_in(store, fs, shape, is_damaged, &|| format!("{damage:?}: {}", about()));
}

/// Ingests the export of `store`.
fn take_in(store: &Store, fs: MemFs, shape: Shape, is_damaged: bool, about: &dyn Fn() -> String) {
    let (db, p, log) = open(&fs, shape);
    if let Err(error) = p.ingest(EXPORT) {
        assert!(is_damaged && error.is_corruption(), "{error}: {}", about());
        assert_eq!(p.iter().count(), 0, "{}", about());
        return;
    }
    let other = Store { fs, db, p, log, now: store.now.clone(), snapshots: Vec::new() };
    let loud = check(&other, Reads::All, &|| format!("in the other store: {}", about()));
    assert_eq!(loud.keys, 0, "an export that worked is sound: {}", about());
    other.p.compact(..).unwrap();
    check(&other, Reads::All, &|| format!("compacted in the other store: {}", about()));
}

/// A store that ingests such an export cannot verify it: the export is right, or there is none.
fn export_bare(store: &Store, about: &dyn Fn() -> String) {
    let bare = siltstone::ExportOptions::new().hidden_entries(false);
    if let Err(error) = store.p.export_with(.., EXPORT, bare) {
        assert!(error.is_corruption(), "{error}: {}", about());
        return;
    }
    let fs = brought(store);
    let db = builder(Arc::new(fs), 5).open().unwrap();
    let p = db.partition("plain").unwrap();
    p.ingest(EXPORT).unwrap();
    let has_hidden = p.walk().unwrap().tables().any(|table| table.meta().hidden > 0);
    assert!(!has_hidden, "{}", about());
    let expected = store.now.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
    assert_eq!(pairs(p.iter()), expected.collect::<Content>(), "{}", about());
    for (key, value) in &store.now {
        assert_eq!(p.get(key).unwrap().as_deref(), value.as_deref(), "{}", about());
    }
}

/// Afterwards no read returns an error, and no older value has come up: a key has its value or
/// none.
fn accept_loss(store: &mut Store, about: &dyn Fn() -> String) {
    let before: Vec<_> = store.now.keys().map(|key| store.p.get(key).is_err()).collect();
    store.p.accept_loss(..).unwrap();
    assert!(store.p.gaps().is_empty());
    for ((key, value), was_loud) in store.now.iter_mut().zip(before) {
        let found = store.p.get(key).unwrap();
        if was_loud && found.is_none() {
            *value = None;
        }
        assert_eq!(found.as_deref(), value.as_deref(), "{}: {}", key.escape_ascii(), about());
    }
}

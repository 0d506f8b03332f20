//! The ways that entries of a damaged store go on.

use lsm_core::fs::AppendMode;

use super::*;

/// A way for a damaged store to go on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// All of it is compacted.
    Compact,
    /// A part is compacted, then all of it.
    CompactPart,
    /// New writes, a flush, and what compactions are due; then all of it.
    WriteAndStep,
    /// Compacted, closed, and opened again.
    Reopen,
    /// Compacted twice, with new writes between.
    Twice,
    /// Exported and ingested by another store.
    Export,
    /// Compacted, then what is lost is given up.
    AcceptLoss,
}

impl Way {
    pub(super) fn random(rng: &mut Rng) -> Way {
        use Way::{AcceptLoss, Compact, CompactPart, Export, Reopen, Twice, WriteAndStep};
        let all = [Compact, CompactPart, WriteAndStep, Reopen, Twice, Export, AcceptLoss];
        *rng.pick(&all)
    }
}

const EXPORT: &str = "/export";

/// Goes one way to its end, which is a compaction.
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
            let from = format!("pre/{:02}", rng.below(3 * shape.keys)).into_bytes();
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
        Way::Export => export(store, shape, about),
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
        let key = format!("pre/{:02}", rng.below(3 * shape.keys)).into_bytes();
        store.write(&key, 7, rng);
    }
}

/// An export either fails or is all that there is, wherever it is ingested.
fn export(store: &Store, shape: Shape, about: &dyn Fn() -> String) {
    if let Err(error) = store.p.export(.., EXPORT) {
        assert!(error.is_corruption(), "{error}: {}", about());
        return;
    }
    let fs = MemFs::new();
    let dir = Path::new(EXPORT);
    fs.create_dir(dir).unwrap();
    for path in store.fs.paths().into_iter().filter(|path| path.starts_with(dir)) {
        let bytes = store.fs.read_raw(&path).unwrap();
        fs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
    }
    let (db, p, log) = open(&fs, shape);
    p.ingest(EXPORT).unwrap();
    let other = Store { fs, db, p, log, now: store.now.clone(), snapshots: Vec::new() };
    let loud = check(&other, Reads::All, &|| format!("in the other store: {}", about()));
    assert_eq!(loud.keys, 0, "an export that worked is sound: {}", about());
    other.p.compact(..).unwrap();
    check(&other, Reads::All, &|| format!("compacted in the other store: {}", about()));
}

/// Behind it nothing is loud, and no older value has come up: a key has its value or none.
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

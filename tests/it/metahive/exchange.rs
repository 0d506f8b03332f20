//! Metadata that is exported with its entries: exports and ingests between nodes with MetaHive and
//! nodes without it.

use lsm_core::fs::{AppendMode, CrashOutcome, FaultFs};
use lsm_core::hooks::{Entry, Origin};
use metahive::{MetadataProvider, RepairOptions, Verdict};

use super::crash::take_images;
use super::faulty::Faulty;
use super::*;

const EXPORT: &str = "/export";

/// Ingests the export of one node on another, replacing its content.
fn bring(from: &MemFs, to: &MemFs) {
    let dir = Path::new(EXPORT);
    for path in to.paths().into_iter().filter(|path| path.starts_with(dir)) {
        to.remove_raw(&path).unwrap();
    }
    to.create_dir(dir).unwrap();
    for path in from.paths().into_iter().filter(|path| path.starts_with(dir)) {
        let bytes = from.read_raw(&path).unwrap();
        to.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
    }
}

fn export(it: &Checked) -> siltstone::Result<siltstone::ExportSummary> {
    let dir = Path::new(EXPORT);
    for path in it.fs.paths().into_iter().filter(|path| path.starts_with(dir)) {
        it.fs.remove_raw(&path).unwrap();
    }
    it.p.export(.., EXPORT)
}

/// An export of a partition where some keys are not reserved does not bring in keys that are
/// reserved here.
#[test]
fn an_export_with_a_key_that_is_reserved_here_is_refused() {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 77).open().unwrap();
    let from = db.partition_with("from", tiny()).unwrap();
    let to = db.partition_with("to", tiny()).unwrap();
    to.put("a", "stores keys as they are given").unwrap();
    db.partition_with("to", tiny().metahive(MetaHiveOptions::new())).unwrap();
    for (folder, key) in [("/reserved", "k\x01"), ("/free", "k\x02")] {
        from.put(key, "exported").unwrap();
        from.export(.., folder).unwrap();
        from.delete(key).unwrap();
    }
    assert_eq!(to.ingest("/reserved").unwrap_err().kind(), ErrorKind::ReservedKey);
    assert_eq!(to.iter().count(), 1);
    to.ingest("/free").unwrap();
    assert_eq!(to.get("k\x02").unwrap().as_deref(), Some(&b"exported"[..]));
}

/// A node without MetaHive, with a partition `p`.
fn plain_node(fs: &MemFs, seed: u64) -> (lsm_core::Db, lsm_core::Partition) {
    let db = plain(fs, seed);
    let p = db.partition_with("p", tiny().stored().clone(), None).unwrap();
    (db, p)
}

/// The tables of an export: entries and hidden entries.
fn exported(fs: &MemFs) -> (u64, u64) {
    let target = MemFs::new();
    bring(fs, &target);
    let (db, p) = plain_node(&target, 90);
    p.ingest(EXPORT).unwrap();
    drop(p);
    db.close().unwrap();
    let found = census(&target);
    (found.entries, found.hidden)
}

#[test]
fn metadata_travels_with_its_entries_and_verifies_on_the_other_node() {
    let source = filled(&MemFs::new(), &Provider::new(MetaHive::default()));
    source.p.put(key_of(3), "in memory").unwrap();
    let summary = export(&source).unwrap();
    assert_eq!(summary.entries, 300);
    assert_eq!(exported(&source.fs), (300, 300));
    assert_eq!(source.provider.0.counts().verified, 300, "each table entry, before it left");

    let provider = Provider::new(MetaHive::default());
    let mut to = Checked::open(MemFs::new(), provider.clone());
    for n in 290..320 {
        to.p.put(key_of(n), "theirs").unwrap();
    }
    bring(&source.fs, &to.fs);
    to.p.ingest(EXPORT).unwrap();
    assert_eq!(provider.0.counts().verified, 300, "each, as it arrived");
    to.model = pairs(source.p.iter());
    to.model.extend((300..320).map(|n| (key_of(n), b"theirs".to_vec())));
    to.check(b"key 1");
    to.p.compact(..).unwrap();
    to.check(b"key 1");
    census(&to.fs).assert_all_sealed();
    let counts = provider.0.counts();
    assert_eq!((counts.made, counts.faults, counts.orphans_dropped), (0, 0, 0));
    let to = to.reopen();
    to.check(b"key 2");
}

#[test]
fn a_plain_node_keeps_the_rule_shows_nothing_cleans_up_and_sends_plain_tables_back() {
    let source = filled(&MemFs::new(), &Provider::new(MetaHive::default()));
    export(&source).unwrap();
    let fs = MemFs::new();
    let (db, p) = plain_node(&fs, 20);
    p.put("x\x01", "legal here").unwrap();
    bring(&source.fs, &fs);
    let before = pairs(p.iter());
    let seq = db.visible_seq();
    let files = fs.paths();
    let refused = p.ingest(EXPORT).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReservedKey);
    assert!(refused.to_string().contains("x\\x01"), "{refused}");
    assert_eq!((pairs(p.iter()), db.visible_seq(), fs.paths()), (before, seq, files));
    p.put("y\x01", "still legal").unwrap();
    p.delete("x\x01").unwrap();
    p.delete("y\x01").unwrap();
    assert_eq!(p.ingest(EXPORT).unwrap_err().kind(), ErrorKind::ReservedKey);
    p.compact(..).unwrap();
    p.put("mine", "too").unwrap();
    p.ingest(EXPORT).unwrap();

    let mut model = source.model.clone();
    model.insert(b"mine".to_vec(), b"too".to_vec());
    let check = |p: &lsm_core::Partition, model: &Content| {
        assert_eq!(&pairs(p.iter()), model);
        assert!(
            p.iter().rev().map(|pair| pair.unwrap().0.to_vec()).eq(model.keys().rev().cloned())
        );
        assert_eq!(p.keys().count(), model.len());
        assert_eq!(p.get(key_of(7)).unwrap().as_deref(), model.get(&key_of(7)).map(|v| &v[..]));
        assert_eq!(p.get([&key_of(7)[..], &[SUFFIX]].concat()).unwrap(), None);
        let refused = p.put("z\x01", "v").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReservedKey);
    };
    check(&p, &model);
    drop(p);
    db.close().unwrap();
    assert_eq!(census(&fs).hidden, 300);
    let (db, p) = plain_node(&fs, 21);
    check(&p, &model);
    for n in 0..300 {
        p.put(key_of(n), &model[&key_of(n)]).unwrap();
    }
    p.compact(..).unwrap();
    check(&p, &model);
    assert_eq!(census(&fs).hidden, 0);

    p.export(.., "/back").unwrap();
    let home = source;
    let names = fs.paths().into_iter().filter(|path| path.starts_with("/back"));
    home.fs.create_dir(Path::new("/back")).unwrap();
    for path in names {
        let file = home.fs.open_append(&path, AppendMode::IfAbsent).unwrap();
        file.append(&fs.read_raw(&path).unwrap()).unwrap();
    }
    home.p.ingest("/back").unwrap();
    home.p.compact(..).unwrap();
    assert_eq!(pairs(home.p.iter()), model);
    census(&home.fs).assert_all_sealed();
    let counts = home.provider.0.counts();
    assert_eq!((counts.made, counts.faults), (301, 0), "what came without metadata got it");
    drop(db);
}

#[test]
fn a_partition_that_takes_a_sealed_export_in_is_sealed_from_then_on() {
    let source = filled(&MemFs::new(), &Provider::new(MetaHive::default()));
    export(&source).unwrap();
    let fs = MemFs::new();
    let open = || builder(Arc::new(fs.clone()), 30).open();
    let db = open().unwrap();
    let p = db.partition_with("p", tiny()).unwrap();
    bring(&source.fs, &fs);
    p.ingest(EXPORT).unwrap();
    for (round, db) in [Some(db), None].into_iter().enumerate() {
        let db = db.unwrap_or_else(|| open().unwrap());
        let p = db.partition("p").unwrap();
        p.put(format!("new {round}"), "sealed").unwrap();
        p.compact(..).unwrap();
        let found = census(&fs);
        found.assert_all_sealed();
        assert_eq!(found.entries, 301 + round as u64);
        drop(p);
        db.close().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_range_of_any_history_arrives_with_its_metadata(
        ops in prop::collection::vec((0u8..10, key(), 0u8..120), 1..120),
        start in key(),
        end in key(),
        any_key: bool,
    ) {
        let hive = || Provider::new(MetaHive::new(MetaHiveOptions::new().any_key(any_key)));
        let mut it = Checked::open(MemFs::new(), hive());
        for (what, key, arg) in ops {
            match what {
                _ if !any_key && key.ends_with(&[SUFFIX]) => {}
                0..5 => {
                    it.p.put(&key, vec![arg; usize::from(arg)]).unwrap();
                    it.model.insert(key, vec![arg; usize::from(arg)]);
                }
                5 => {
                    it.p.delete(&key).unwrap();
                    it.model.remove(&key);
                }
                6 => it.snapshots.push((it.db.snapshot(), it.model.clone())),
                7 if arg % 3 == 0 => it.p.compact(..).unwrap(),
                _ if arg % 2 == 0 => it.db.flush().unwrap(),
                _ => { it.db.step().unwrap(); }
            }
        }
        let expected: Content =
            it.model.iter().filter(|(key, _)| **key >= start && **key < end)
                .map(|(k, v)| (k.clone(), v.clone())).collect();
        let summary = it.p.export(start..end, EXPORT).unwrap();
        prop_assert_eq!(summary.entries, expected.len() as u64);
        prop_assert_eq!(it.provider.0.counts().faults, 0);
        let mut to = Checked::open(MemFs::new(), hive());
        bring(&it.fs, &to.fs);
        to.p.ingest(EXPORT).unwrap();
        to.model = expected;
        to.check(b"\x02");
        if !to.model.is_empty() {
            let found = census(&to.fs);
            prop_assert_eq!((found.entries, found.hidden), (found.entries, found.entries));
            to.p.put(b"\x00\x02", "more").unwrap();
            to.model.insert(b"\x00\x02".to_vec(), b"more".to_vec());
            to.p.compact(..).unwrap();
            to.check(b"\x02");
            census(&to.fs).assert_all_sealed();
        }
        let counts = to.provider.0.counts();
        prop_assert_eq!((counts.made, counts.faults, counts.orphans_dropped), (0, 0, 0));
    }
}

/// A closed node whose entry of key 137 is damaged, opened again.
fn harmed(masks: &[u8]) -> (Checked, Arc<Log>) {
    let options = RepairOptions { log: false, ..RepairOptions::default() };
    super::damage::harmed(masks, options)
}

#[test]
fn damage_on_the_medium_is_found_and_mended_before_the_data_leaves() {
    let (it, log) = harmed(&[0x80]);
    export(&it).unwrap();
    assert_eq!(log.take().0, ["one-bit search"]);
    let fs = MemFs::new();
    bring(&it.fs, &fs);
    let (_db, p) = plain_node(&fs, 40);
    p.ingest(EXPORT).unwrap();
    assert_eq!(pairs(p.iter()), it.model);
}

#[test]
fn unrepairable_entries_are_not_exported() {
    let (it, _) = harmed(&[0xff, 0xff, 0xff]);
    let bare = siltstone::ExportOptions::new().hidden_entries(false);
    for refused in [export(&it).unwrap_err(), it.p.export_with(.., EXPORT, bare).unwrap_err()] {
        assert!(refused.is_corruption());
        assert_eq!(refused.damage().unwrap().keys, Some((key_of(136), key_of(138))));
        assert!(
            !it.fs.paths().iter().any(|path| path.starts_with(EXPORT)),
            "nothing is left of it"
        );
    }
    // Between keys 136 and 137 there may have been others.
    assert!(it.p.export(..key_of(137), "/up to it").unwrap_err().is_corruption());
    it.p.export(..key_of(136), "/below").unwrap();
    it.p.put(key_of(137), "overwritten").unwrap();
    it.p.compact(..).unwrap();
    assert!(export(&it).unwrap_err().is_corruption(), "other keys may have been there");
    it.p.accept_loss(..).unwrap();
    export(&it).unwrap();
}

#[test]
fn a_bit_that_flips_in_memory_while_an_export_runs_does_not_leave_the_node() {
    for field in 0..4u64 {
        let fs = MemFs::new();
        let provider = Provider::new(MetaHive::default());
        let Checked { db, p, model, .. } = filled(&fs, &provider);
        drop(p);
        db.close().unwrap();
        let open = builder(Arc::new(fs.clone()), 7).hooks(Arc::new(provider.clone()));
        let db = open
            .inject(move |at: Origin, entry: &mut OwnedEntry| {
                if at.file.is_some() && entry.key == key_of(137) {
                    super::damage::FAULTS[field as usize](entry, 77);
                }
            })
            .open()
            .unwrap();
        let p = db.partition("p").unwrap();
        p.export(.., EXPORT).unwrap();
        let target = MemFs::new();
        bring(&fs, &target);
        let (_target_db, target) = plain_node(&target, 41);
        target.ingest(EXPORT).unwrap();
        assert_eq!(pairs(target.iter()), model);
        assert!(provider.0.counts().faults > 0);
    }
}

fn one_more(seal: TableSeal) -> TableSeal {
    TableSeal { sealed: seal.sealed + 1, ..seal }
}

/// Made by a node that records no digests of the blocks of a table.
fn without_digests(seal: TableSeal) -> TableSeal {
    TableSeal { spans: Vec::new(), ..seal }
}

#[test]
fn a_table_that_lacks_entries_by_its_seal_does_not_leave_the_node() {
    for seal in [one_more, |seal| one_more(without_digests(seal))] {
        let it = Faulty::sealing(seal);
        let before = it.fs.paths();
        for bare in [false, true] {
            let options = siltstone::ExportOptions::new().hidden_entries(!bare);
            let refused = it.p.export_with(.., EXPORT, options).unwrap_err();
            assert!(refused.is_corruption(), "{refused}");
            assert_eq!(it.fs.paths(), before, "nothing is left of it");
        }
    }
    // Also where a part of the table is exported: without digests the export reads to the end of
    // the table.
    let it = Faulty::sealing(|seal| one_more(without_digests(seal)));
    assert!(it.p.export(key_of(10)..key_of(12), EXPORT).unwrap_err().is_corruption());
    let sound = Faulty::sealing(without_digests);
    assert_eq!(sound.p.export(key_of(10)..key_of(12), EXPORT).unwrap().entries, 2);
    // A compaction records the number again, where digests show that nothing is missing.
    let it = Faulty::sealing(one_more);
    it.p.compact(..).unwrap();
    assert_eq!(it.p.iter().map(siltstone::Result::unwrap).count(), 300);
    assert!(it.p.scrub(ScrubOptions::new()).unwrap().is_sound());
    assert_eq!(it.p.export(.., EXPORT).unwrap().entries, 300);
}

fn digest_off(seal: TableSeal) -> TableSeal {
    let mut spans = seal.spans;
    spans[0].digest ^= 1;
    TableSeal { spans, ..seal }
}

/// An entry replaces another one, with metadata of its own. It differs from the sealed table only
/// in the digest of its block.
#[test]
fn a_table_whose_blocks_disagree_with_their_digests_is_not_taken_in() {
    for (on_seal, is_sound) in
        [((|seal| seal) as fn(TableSeal) -> TableSeal, true), (digest_off, false)]
    {
        let fs = MemFs::new();
        let db = builder(Arc::new(fs.clone()), 30).open().unwrap();
        let faulty = Faulty::new(|key, found| vec![(key.to_vec(), found.to_vec())], on_seal);
        let hooks = Hooks::new().filter(Arc::new(faulty));
        let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
        for n in 0..60 {
            p.put(key_of(n), format!("value {n}")).unwrap();
        }
        p.export(.., EXPORT).unwrap();
        let to = Checked::open(MemFs::new(), Provider::new(MetaHive::default()));
        bring(&fs, &to.fs);
        let taken = to.p.ingest(EXPORT);
        if is_sound {
            assert_eq!(taken.unwrap().entries, 60);
            continue;
        }
        let refused = taken.unwrap_err();
        assert!(refused.to_string().contains("entries of the block are missing"), "{refused}");
        assert_eq!(to.p.iter().count(), 0);
    }
}

/// Claims the name of the integrity provider, and seals one key wrongly: a faulty node.
struct Broken;

impl MetadataProvider for Broken {
    fn name(&self) -> &'static str {
        "integrity"
    }

    fn make(&self, entry: &Entry<'_>) -> Vec<u8> {
        let sum = checksum::of_entry(entry.key, entry.value, entry.seq, entry.kind);
        let wrong = u64::from(entry.key == key_of(55));
        Payload::new(entry.seq, sum ^ wrong).encode()[8..].to_vec()
    }

    fn check(&self, _entry: &Entry<'_>, _metadata: &[u8]) -> Verdict {
        Verdict::Valid
    }
}

#[test]
fn an_entry_that_disagrees_with_its_metadata_is_not_taken_in() {
    let source = filled(
        &MemFs::new(),
        &Provider::new(MetaHive::new(MetaHiveOptions::new().provider(Arc::new(Broken)))),
    );
    export(&source).unwrap();
    let to = Checked::open(MemFs::new(), Provider::new(MetaHive::default()));
    bring(&source.fs, &to.fs);
    let files = to.fs.paths();
    let refused = to.p.ingest(EXPORT).unwrap_err();
    assert!(refused.is_corruption());
    assert_eq!(refused.damage().unwrap().key.as_deref(), Some(&key_of(55)[..]));
    assert_eq!((to.fs.paths(), to.p.iter().count()), (files, 0));
}

#[test]
fn a_power_cut_while_rules_are_taken_over_leaves_all_or_nothing() {
    let source = filled(&MemFs::new(), &Provider::new(MetaHive::default()));
    export(&source).unwrap();
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let mut random = Rng::new(50);
    let db = lsm_core::Db::builder(DIR).fs(Arc::new(fs.clone())).options(small_buffers());
    let db = db.background(BackgroundMode::Stepped).random(move || random.next_u64());
    let db = db.open().unwrap();
    let p = db.partition_with("p", tiny().stored().clone(), None).unwrap();
    p.put("key 0055", "inside their range").unwrap();
    db.flush().unwrap();
    let before = pairs(p.iter());
    bring(&source.fs, &mem);
    let images = take_images(&fs, &mem, &Arc::default());
    p.ingest(EXPORT).unwrap();
    fs.clear_observer();
    let after = pairs(p.iter());
    let mut images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 20);
    let mut rng = Rng::new(4);
    let last = mem.crash_clone(CrashOutcome::Nothing, &mut || rng.next_u64());
    images.push(("at the end".to_owned(), last, 1, 1));
    for (what, image, done, _) in images {
        let (_db, p) = plain_node(&image, 51);
        let found = pairs(p.iter());
        assert!(found == after || (found == before && done == 0), "{what}");
        let put = p.put("z\x01", "v");
        assert_eq!(put.is_err(), found == after, "{what}");
    }
}

#[test]
fn an_export_without_metadata_is_that_of_a_plain_partition() {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 70).open().unwrap();
    let p = db.partition_with("p", tiny().metahive(MetaHiveOptions::default())).unwrap();
    let mut model = Content::new();
    for n in 0..100u64 {
        let key = n.to_be_bytes();
        p.put(key, format!("value {n}")).unwrap();
        model.insert(key.to_vec(), format!("value {n}").into_bytes());
    }
    p.compact(..).unwrap();
    let bare = siltstone::ExportOptions::new().hidden_entries(false);
    assert_eq!(p.export_with(.., "/bare", bare).unwrap().entries, 100);
    // A plain partition has the keys as they were given, no metadata, and no reserved keys from
    // then on.
    let plain = db.partition_with("plain", tiny()).unwrap();
    plain.ingest("/bare").unwrap();
    assert_eq!(pairs(plain.iter()), model);
    let hidden: u64 = plain.walk().unwrap().tables().map(|table| table.meta().hidden).sum();
    assert_eq!(hidden, 0);
    plain.put(b"k\x01", "legal").unwrap();
    assert!(db.verify(siltstone::VerifyOptions::new()).unwrap().is_sound());
    // With metadata the plain partition refuses keys that it would store in another form.
    p.export(.., "/sealed").unwrap();
    let other = db.partition_with("other", tiny()).unwrap();
    assert_eq!(other.ingest("/sealed").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

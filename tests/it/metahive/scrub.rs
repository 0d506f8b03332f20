//! Scrubs: sealed entries count as sealed, and every damage of an entry or its metadata is found
//! and reported for its own key, whether the checksum of the block shows it or not.

mod runs;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lsm_core::clock::Clock;
use lsm_core::hooks::{CompactionFilter, Decision, Entry, Job};
use lsm_core::types::EntryKind;
use metahive::{
    MetadataProvider, ScrubMark, ScrubOptions, ScrubReport, Sealing, Statistics, Verdict,
};
use siltstone::Compression;

use super::faulty::Faulty;
use super::*;
use crate::verify::Ticking;

pub(super) fn scrubbed(p: &Partition) -> ScrubReport {
    checked(p.scrub(ScrubOptions::new()).unwrap())
}

fn checked(report: ScrubReport) -> ScrubReport {
    // Nothing is counted twice, and nothing is left out.
    for table in &report.tables {
        let counts = table.counts;
        let faulty = table.faults.iter().filter(|f| f.verdict == Verdict::DataCorrupt).count();
        let known = counts.sealed + counts.unsealed + counts.foreign;
        assert!(known <= counts.entries && counts.entries <= known + faulty as u64, "{report}");
    }
    report
}

/// Checks that everything is sealed, nothing is left over, and nothing is damaged.
#[track_caller]
fn assert_sealed(report: &ScrubReport) {
    assert!(report.is_sound() && report.is_sealed(), "{report}");
    let counts = report.counts;
    assert!(counts.entries > 0);
    assert_eq!((counts.unsealed, counts.orphans, counts.metadata_damaged), (0, 0, 0), "{report}");
    for table in &report.tables {
        assert_eq!(
            (&table.sealing, table.seal_entries),
            (&Sealing::Sealed, Some(table.counts.entries))
        );
    }
}

/// Replaces each value that does not end in `!`.
struct Shouting;

impl CompactionFilterFactory for Shouting {
    fn name(&self) -> &'static str {
        "shouting"
    }

    fn start(&self, _job: &Job<'_>) -> siltstone::Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(Shouting))
    }
}

impl CompactionFilter for Shouting {
    fn decide(&mut self, entry: Entry<'_>) -> siltstone::Result<Decision> {
        Ok(match entry.value {
            [.., b'!'] => Decision::Keep,
            value if value.len() % 5 == 3 => Decision::Remove,
            value => Decision::Replace([value, b"!"].concat()),
        })
    }
}

#[test]
fn after_a_full_compaction_nothing_is_unsealed_left_over_or_damaged() {
    for (compression, replaces) in [(Compression::Lz4, false), (Compression::None, true)] {
        let fs = MemFs::new();
        let provider = Provider::new(MetaHive::default());
        let open = builder(Arc::new(fs.clone()), 20).hooks(Arc::new(provider.clone()));
        let db = open.open().unwrap();
        let options = tiny().compression(compression).level_base_bytes(1 << 10);
        let mut hooks = provider.hooks();
        if replaces {
            hooks = hooks.filter(Arc::new(Shouting));
        }
        let p = db.partition_with("p", options.clone().hooks(hooks.clone())).unwrap();
        let mut rng = Rng::new(21);
        let mut snapshots = Vec::new();
        for n in 0..2500u64 {
            let key = key_of((rng.next_u64() % 900) as u32);
            match rng.next_u64() % 8 {
                0 => p.delete(&key).unwrap(),
                _ => p.put(&key, format!("{n} ").repeat((n % 9) as usize)).unwrap(),
            };
            if n % 500 == 0 {
                snapshots.push(db.snapshot());
            }
            while n % 5 == 0 && db.step().unwrap() {}
        }
        db.flush().unwrap();
        let before = scrubbed(&p);
        assert!(before.is_sound() && before.is_sealed(), "{before}");
        let levels: BTreeSet<_> = before.tables.iter().map(|table| table.level).collect();
        assert!(levels.len() > 4, "{levels:?}");
        for held in [snapshots.len(), 0] {
            snapshots.truncate(held);
            p.compact(..).unwrap();
            assert_sealed(&scrubbed(&p));
        }
        let report = scrubbed(&p);
        assert_eq!(report.counts.entries, p.iter().count() as u64);
        assert!(report.tables.iter().all(|table| table.level == 6));

        // A partition of the same name is another one.
        db.drop_partition("p").unwrap();
        let gone = p.scrub(ScrubOptions::new()).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::PartitionNotFound);
        let p = db.partition_with("p", options.hooks(hooks)).unwrap();
        p.put("a", "1!").unwrap();
        let report = scrubbed(&p);
        assert_eq!((report.counts.entries, report.unflushed.entries), (0, 1));
        p.compact(..).unwrap();
        assert_sealed(&scrubbed(&p));
        assert_eq!((provider.0.counts().faults, provider.0.counts().made), (0, 0));
    }
}

#[test]
fn entries_from_before_metahive_are_reported_apart_from_later_ones() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let db = builder(Arc::new(fs.clone()), 22).hooks(Arc::new(provider.clone())).open().unwrap();
    let options = tiny().level0_tables(100);
    let p = db.partition_with("p", options.clone()).unwrap();
    for n in 0..60 {
        p.put(key_of(n), "before").unwrap();
    }
    db.flush().unwrap();
    let report = scrubbed(&p);
    assert!(report.is_sound() && !report.is_sealed());
    assert_eq!((report.counts.sealed, report.counts.unsealed), (0, 60));

    let p = db.partition_with("p", options.hooks(provider.hooks())).unwrap();
    for n in 40..140 {
        p.put(key_of(n), "after").unwrap();
    }
    db.flush().unwrap();
    p.put("late", "in memory").unwrap();
    let report = scrubbed(&p);
    assert!(report.is_sound());
    assert_eq!((report.counts.sealed, report.counts.unsealed), (100, 60));
    assert_eq!((report.unflushed.memtables, report.unflushed.entries), (1, 1));
    let sealings: Vec<_> = report.tables.iter().map(|table| &table.sealing).collect();
    assert_eq!(
        (sealings.first(), sealings.last()),
        (Some(&&Sealing::Unsealed), Some(&&Sealing::Sealed))
    );
    p.compact(..).unwrap();
    let counts = provider.0.counts();
    let report = scrubbed(&p);
    assert_sealed(&report);
    assert_eq!(report.counts.sealed, 141);
    assert_eq!(provider.0.counts(), counts, "what a scrub reads is no work of the filters");
}

#[test]
fn a_node_without_metahive_sees_what_is_sealed_and_what_it_wrote_is_not() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let it = filled(&fs, &provider);
    it.p.compact(..).unwrap();
    drop(it.p);
    it.db.close().unwrap();

    let db = plain(&fs, 23);
    let p = db.partition_with("p", tiny().level0_tables(100).stored().clone(), None).unwrap();
    assert_sealed(&checked(metahive::scrub(&p, ScrubOptions::new()).unwrap()));
    for n in 0..20 {
        p.put(key_of(n), "plain").unwrap();
    }
    db.flush().unwrap();
    let report = checked(metahive::scrub(&p, ScrubOptions::new()).unwrap());
    assert!(report.is_sound());
    assert_eq!((report.counts.sealed, report.counts.unsealed), (300, 20));
    drop(p);
    db.close().unwrap();

    let db = builder(Arc::new(fs), 24).hooks(Arc::new(provider)).open().unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(scrubbed(&p).counts, report.counts);
    p.compact(..).unwrap();
    assert_sealed(&scrubbed(&p));
}

#[test]
fn each_provider_verifies_only_its_own_tables() {
    let hive = || MetaHive::new(MetaHiveOptions::new().provider(Arc::new(Statistics::default())));
    let fs = MemFs::new();
    let provider = Provider::new(hive());
    let it = filled(&fs, &provider);
    it.p.compact(..).unwrap();
    assert_sealed(&scrubbed(&it.p));
    drop(it.p);
    it.db.close().unwrap();

    // A node without the provider can verify nothing, and reports it.
    let db = builder(Arc::new(fs.clone()), 25).open().unwrap();
    let p = db.partition("p").unwrap();
    p.put("plain", "v").unwrap();
    db.flush().unwrap();
    let report = scrubbed(&p);
    assert!(report.is_sound() && !report.is_sealed());
    assert_eq!(
        (report.counts.entries, report.counts.foreign, report.counts.unsealed),
        (301, 300, 1)
    );
    let foreign = report.tables.iter().filter(|table| match &table.sealing {
        Sealing::Foreign(what) => what.contains("statistics"),
        _ => false,
    });
    assert!(foreign.count() > 3);
    assert!(report.to_string().contains("sealed by \"statistics\""), "{report}");
}

/// A provider that reports a fault in one key.
struct Picky;

impl MetadataProvider for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn make(&self, entry: &Entry<'_>) -> Vec<u8> {
        entry.value.to_vec()
    }

    fn check(&self, entry: &Entry<'_>, metadata: &[u8]) -> Verdict {
        match entry.key {
            b"key 007" => Verdict::DataCorrupt,
            b"key 008" => Verdict::MetadataCorrupt,
            _ if metadata == entry.value => Verdict::Valid,
            _ => Verdict::DataCorrupt,
        }
    }
}

#[test]
fn the_verdicts_of_a_provider_are_reported_by_key() {
    let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().provider(Arc::new(Picky))));
    let it = filled(&MemFs::new(), &provider);
    let report = scrubbed(&it.p);
    let faults: Vec<_> = report.faults().map(|fault| (&fault.key[..], fault.verdict)).collect();
    let expected =
        [(&b"key 007"[..], Verdict::DataCorrupt), (b"key 008", Verdict::MetadataCorrupt)];
    assert_eq!(faults, expected);
    assert_eq!((report.counts.entries, report.counts.sealed), (300, 299));
    assert_eq!(report.counts.metadata_damaged, 1);
    assert!(report.damage().next().is_none());
}

#[test]
fn each_kind_of_damaged_metadata_is_named_by_its_key() {
    type Change = fn(&mut Vec<u8>);
    let damaged: [(Change, Verdict, &str); 6] = [
        (|v| v[8] ^= 1, Verdict::MetadataCorrupt, "the metadata is damaged"),
        (|v| v[16] ^= 1, Verdict::SecondCopyDamaged, "second checksum"),
        (|v| v[0] ^= 1, Verdict::MetadataCorrupt, "sequence number"),
        (|v| (v[8], v[16]) = (v[8] ^ 1, v[16] ^ 1), Verdict::DataCorrupt, "disagrees"),
        (|v| v.truncate(18), Verdict::DataCorrupt, "disagrees"),
        (|v| v.clear(), Verdict::DataCorrupt, "disagrees"),
    ];
    for (change, verdict, what) in damaged {
        let it = Faulty::metadata(move |key, found| {
            let mut found = found.to_vec();
            if key == b"key 013" {
                change(&mut found);
            }
            vec![(key.to_vec(), found)]
        });
        let report = scrubbed(&it.p);
        let faults: Vec<_> = report.faults().collect();
        assert_eq!(faults.len(), 1, "{report}");
        assert_eq!((&faults[0].key[..], faults[0].verdict), (&b"key 013"[..], verdict), "{report}");
        assert!(faults[0].what.contains(what), "{report}");
        assert_eq!((faults[0].seq.get(), faults[0].kind), (14, EntryKind::Value));
        let sealed = report.counts.entries - u64::from(verdict == Verdict::DataCorrupt);
        assert_eq!((report.counts.sealed, report.counts.orphans), (sealed, 0), "{report}");
        assert_eq!(report.damage().count(), 0, "{report}");
        // A compaction does what the scrub reported: it rebuilds metadata, or calls its repair.
        it.p.put("key 013+", "inside").unwrap();
        it.p.compact(..).unwrap();
        assert_sealed(&scrubbed(&it.p));
        let counts = it.provider.0.counts();
        let is_data = verdict == Verdict::DataCorrupt;
        assert_eq!(counts.faults > 0, is_data, "{counts:?}");
    }
}

#[test]
fn halves_of_pairs_and_lost_pairs_are_faults_in_sealed_tables() {
    let keys = |report: &ScrubReport| -> Vec<_> {
        report.faults().map(|fault| (fault.key.clone(), fault.verdict)).collect()
    };
    let is_13 = |key: &[u8]| key == b"key 013";
    let expect = |key: &[u8]| vec![(key.to_vec(), Verdict::DataCorrupt)];
    let it = Faulty::metadata(move |key, found| match is_13(key) {
        true => vec![],
        false => vec![(key.to_vec(), found.to_vec())],
    });
    let report = scrubbed(&it.p);
    assert_eq!(keys(&report), expect(b"key 013"), "{report}");
    assert!(report.to_string().contains("no metadata in a table that is sealed"), "{report}");
    assert_eq!((report.counts.sealed, report.counts.unsealed, report.counts.orphans), (299, 0, 0));

    // Metadata of an entry that is not there.
    let it = Faulty::metadata(move |key, found| {
        let mut all = vec![(key.to_vec(), found.to_vec())];
        if is_13(key) {
            all.push((b"key 013\x02".to_vec(), found.to_vec()));
        }
        all
    });
    let report = scrubbed(&it.p);
    assert_eq!(keys(&report), expect(b"key 013\x02"), "{report}");
    assert_eq!((report.counts.sealed, report.counts.orphans), (300, 1));

    // Only the number shows that a whole pair is missing.
    let it = Faulty::sealing(|seal| TableSeal { sealed: seal.sealed + 1, ..seal });
    let report = scrubbed(&it.p);
    assert_eq!(keys(&report), vec![]);
    let damage: Vec<_> = report.damage().collect();
    assert_eq!(damage.len(), report.tables.len(), "{report}");
    assert!(damage[0].what.contains("the seal of the table counts"), "{report}");
    assert_eq!((damage[0].partition.as_deref(), damage[0].level), (Some("p"), Some(0)));
}

#[test]
fn what_the_cache_remembers_does_not_hide_what_is_on_the_medium() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let it = filled(&fs, &provider);
    it.check(b"");
    assert!(scrubbed(&it.p).is_sound());
    damage::harm(&fs, "value 137 ".repeat(4).as_bytes(), &[1]);
    let report = scrubbed(&it.p);
    let faults: Vec<_> = report.faults().map(|fault| (&fault.key[..], fault.verdict)).collect();
    assert_eq!(faults, [(&b"key 137"[..], Verdict::DataCorrupt)]);
    assert_eq!(report.damage().count(), 1);
    it.check(b"");
}

#[test]
fn a_table_that_cannot_be_read_is_damage_and_the_others_are_scrubbed() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let it = filled(&fs, &provider);
    let sound = scrubbed(&it.p);
    drop(it.p);
    it.db.close().unwrap();
    // The footer of one table is damaged, and all bytes of another one.
    let [harmed, lost] = [&sound.tables[0], &sound.tables[2]];
    fs.corrupt(&harmed.path, harmed.bytes - 20, 0x10).unwrap();
    fs.remove_raw(&lost.path).unwrap();
    let db = builder(Arc::new(fs), 28).hooks(Arc::new(provider)).open().unwrap();
    let report = scrubbed(&db.partition("p").unwrap());
    assert_eq!(report.tables.len(), sound.tables.len());
    let damage: Vec<_> = report.damage().collect();
    let files: Vec<_> = damage.iter().map(|damage| &damage.file).collect();
    assert_eq!(files, [&harmed.path, &lost.path], "{report}");
    assert_eq!((damage[0].partition.as_deref(), damage[0].level), (Some("p"), Some(harmed.level)));
    let rest = sound.counts.entries - harmed.counts.entries - lost.counts.entries;
    assert_eq!((report.counts.entries, report.counts.sealed), (rest, rest), "{report}");
    assert!(!report.is_sound() && report.mark.is_none() && report.faults().next().is_none());
}

#[test]
fn a_partition_that_another_filter_seals_is_refused() {
    let faulty = Faulty::new(|key, found| vec![(key.to_vec(), found.to_vec())], |seal| seal);
    let hooks = Hooks::new().filter(Arc::new(faulty));
    let db = builder(Arc::new(MemFs::new()), 26).open().unwrap();
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    let refused = p.scrub(ScrubOptions::new()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("partition \"p\" is sealed by"), "{refused}");
    assert_eq!(p.explain(b"k").unwrap_err().kind(), ErrorKind::Unsupported);
}

//! `explain` of one key: each of its versions with its place, its metadata and the verdict on it.

use lsm_core::types::EntryKind;
use metahive::{Explanation, Sealing, Verdict};

use super::damage::{harmed, no_log};
use super::faulty::Faulty;
use super::*;

/// A store with large buffers, so that entries stay where a test puts them. It has no cache: a
/// cached block would hide the damage that a test does to a file.
fn roomy(fs: &MemFs, hive: MetaHive) -> (Db, Partition) {
    let provider = Provider::new(hive);
    let open = builder(Arc::new(fs.clone()), 50).hooks(Arc::new(provider.clone()));
    let options = Options::new().write_buffer_bytes(1 << 20).cache_bytes(0);
    let db = open.options(options).open().unwrap();
    let p = db.partition_with("p", tiny().level0_tables(100).hooks(provider.hooks())).unwrap();
    (db, p)
}

/// For each version: sequence number, kind, level if it is in a table, verdict.
fn summary(explanation: &Explanation) -> Vec<(u64, EntryKind, Option<usize>, Option<Verdict>)> {
    let versions = explanation.versions.iter().map(|explained| {
        let version = &explained.version;
        let level = version.at.file.map(|_| version.at.level);
        (version.seq.get(), version.kind, level, explained.verdict())
    });
    versions.collect()
}

#[test]
fn explain_lists_every_version_with_its_place_and_verdict() {
    let value = EntryKind::Value;
    let tombstone = EntryKind::Tombstone;
    let valid = Some(Verdict::Valid);
    let (db, p) = roomy(&MemFs::new(), MetaHive::default());
    p.put("k", "one").unwrap();
    p.put("other", "entry").unwrap();
    let first = db.snapshot();
    p.delete("k").unwrap();
    let second = db.snapshot();
    p.put("k", "three").unwrap();
    p.compact(..).unwrap();
    p.put("k", "four").unwrap();
    db.flush().unwrap();
    p.put("k", "fifth").unwrap();
    let explanation = p.explain(b"k").unwrap();
    let expected = [
        (5 + 1, value, None, None),
        (5, value, Some(0), valid),
        (4, value, Some(6), valid),
        (3, tombstone, Some(6), valid),
        (1, value, Some(6), valid),
    ];
    assert_eq!(summary(&explanation), expected, "{explanation}");
    assert!(!explanation.is_damaged() && explanation.orphans.is_empty());
    for explained in &explanation.versions[1..] {
        let metadata = explained.metadata.as_ref().unwrap();
        let at = metadata.at.unwrap();
        let integrity = metadata.integrity.unwrap();
        assert_eq!(at.block_offset, explained.version.at.block_offset);
        assert!(at.entry > explained.version.at.entry);
        assert_eq!(integrity.seq, explained.version.stored_seq);
        assert_eq!(metadata.payload, integrity.encode());
        let sum = checksum::of_entry(
            b"k",
            &explained.version.value,
            integrity.seq,
            explained.version.kind,
        );
        assert_eq!(integrity.sum, sum);
        assert_eq!(explained.sealing, Some(Sealing::Sealed));
    }
    drop((first, second));
    p.compact(..).unwrap();
    assert_eq!(summary(&p.explain(b"k").unwrap()), [(6, value, Some(6), valid)]);
    assert_eq!(summary(&p.explain(b"absent").unwrap()), []);
    assert_eq!(summary(&p.explain(b"").unwrap()), []);
    // An entry stored under the key of its metadata is no version of any key.
    assert_eq!(p.explain(b"k\x01").unwrap().versions, []);
}

#[test]
fn the_text_of_explain_is_readable() {
    let fs = MemFs::new();
    let (db, p) = roomy(&fs, MetaHive::default());
    p.put("k", "value").unwrap();
    db.flush().unwrap();
    p.delete("k").unwrap();
    let table = damage::tables(&fs).pop().unwrap();
    let sum = checksum::of_entry(b"k", b"value", SeqNo::new(1).unwrap(), EntryKind::Value);
    let lines = [
        "key \"k\" in partition \"p\": 2 versions".to_owned(),
        "1. sequence 2, tombstone, in the active memtable".to_owned(),
        "   no metadata yet: the flush makes it".to_owned(),
        format!(
            "2. sequence 1, value of 5 bytes, level 0, {}, block at 0, entry 0",
            table.display()
        ),
        format!(
            "   metadata in the same block, entry 1: sequence 1, checksum {sum:016x}, \
             its checksum {:06x}",
            checksum::hash(sum) & 0xff_ffff
        ),
        "   Valid".to_owned(),
    ];
    assert_eq!(p.explain(b"k").unwrap().to_string(), lines.join("\n"));
}

#[test]
fn explain_prints_keys_as_users_wrote_them() {
    let (db, p) = roomy(&MemFs::new(), MetaHive::new(MetaHiveOptions::new().any_key(true)));
    for key in [&b"k"[..], b"k\0", b"k\x01", b"k\x01\0", b"\x01", b"\0"] {
        p.put(key, key).unwrap();
    }
    db.flush().unwrap();
    for key in [&b"k"[..], b"k\0", b"k\x01", b"k\x01\0", b"\x01", b"\0"] {
        let explanation = p.explain(key).unwrap();
        assert_eq!(explanation.versions.len(), 1, "{explanation}");
        assert_eq!(explanation.versions[0].version.value, key);
        assert_eq!(explanation.versions[0].verdict(), Some(Verdict::Valid), "{explanation}");
    }
}

#[test]
fn missing_metadata_is_explained_with_its_reason() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let db = builder(Arc::new(fs.clone()), 51).hooks(Arc::new(provider.clone())).open().unwrap();
    let p = db.partition_with("p", tiny().level0_tables(100)).unwrap();
    p.put("k", "before").unwrap();
    p.put("k\x01", "a key like any other").unwrap();
    db.flush().unwrap();
    for key in [&b"k"[..], b"k\x01"] {
        let explanation = p.explain(key).unwrap();
        assert_eq!(
            (explanation.versions.len(), explanation.orphans.len()),
            (1, 0),
            "{explanation}"
        );
        assert_eq!(explanation.versions[0].sealing, Some(Sealing::Unsealed));
        assert_eq!((explanation.versions[0].verdict(), explanation.is_damaged()), (None, false));
        let text = explanation.to_string();
        assert!(text.contains("no metadata: the partition has no MetaHive"), "{text}");
    }
    p.put("new", "1").unwrap();
    let text = p.explain(b"new").unwrap().to_string();
    assert!(text.contains("no metadata: the partition has no MetaHive"), "{text}");
    let text = p.scrub(ScrubOptions::new()).unwrap().to_string();
    assert!(
        text.starts_with("partition \"p\": no MetaHive, no damaged block; 1 table, "),
        "{text}"
    );

    // Once it has MetaHive, the next compaction creates metadata.
    p.delete("k\x01").unwrap();
    p.compact(..).unwrap();
    let p = db.partition_with("p", tiny().level0_tables(100).hooks(provider.hooks())).unwrap();
    let text = p.explain(b"k").unwrap().to_string();
    assert!(text.contains("the next compaction of the table makes it"), "{text}");
    let text = p.scrub(ScrubOptions::new()).unwrap().to_string();
    assert!(text.starts_with("partition \"p\": no damage; "), "{text}");
    drop(p);
    db.close().unwrap();

    // Of another provider.
    let statistics =
        MetaHive::new(MetaHiveOptions::new().provider(Arc::new(metahive::Statistics::default())));
    let it = filled(&MemFs::new(), &Provider::new(statistics));
    let explanation = it.p.explain(b"key 007").unwrap();
    assert_eq!(explanation.versions[0].verdict(), Some(Verdict::Valid));
    let metadata = explanation.versions[0].metadata.as_ref().unwrap();
    assert!(metadata.integrity.is_none() && metadata.payload.len() == 24);
    drop(it.p);
    it.db.close().unwrap();
    let db = builder(Arc::new(it.fs), 52).open().unwrap();
    let explanation = db.partition("p").unwrap().explain(b"key 007").unwrap();
    assert_eq!((explanation.versions[0].verdict(), explanation.is_damaged()), (None, false));
    assert!(matches!(explanation.versions[0].sealing, Some(Sealing::Foreign(_))), "{explanation}");
}

#[test]
fn ingested_versions_have_two_sequence_numbers() {
    let fs = MemFs::new();
    let (db, p) = roomy(&fs, MetaHive::default());
    p.put("k", "exported").unwrap();
    p.export(.., "/export").unwrap();
    let other = db.partition("other").unwrap();
    other.put("k", "before").unwrap();
    other.ingest("/export").unwrap();
    let explanation = other.explain(b"k").unwrap();
    let ingested = &explanation.versions[0];
    assert_eq!(ingested.version.value, b"exported");
    assert!(ingested.version.stored_seq < ingested.version.seq, "{explanation}");
    assert!(explanation.to_string().contains("(stored as 1)"), "{explanation}");
    // The export decides whether metadata is included.
    let is_sealed = ingested.sealing == Some(Sealing::Sealed);
    assert_eq!(ingested.verdict(), is_sealed.then_some(Verdict::Valid), "{explanation}");
    assert!(!explanation.is_damaged());
}

#[test]
fn metadata_is_found_in_another_block_and_in_the_properties_of_the_table() {
    let (db, p) = roomy(&MemFs::new(), MetaHive::default());
    p.put("T", "a row with many columns").unwrap();
    for n in 0..3000u32 {
        p.put([b"T\0", &n.to_be_bytes()[..], b"."].concat(), [0; 40]).unwrap();
    }
    db.flush().unwrap();
    let explanation = p.explain(b"T").unwrap();
    let [found] = &explanation.versions[..] else { panic!("{explanation}") };
    let at = found.metadata.as_ref().unwrap().at.unwrap();
    assert!(at.block_offset > found.version.at.block_offset, "{explanation}");
    assert_eq!(found.verdict(), Some(Verdict::Valid));
    assert!(explanation.to_string().contains("metadata in the block at"), "{explanation}");
    // The tables of the bottom level are cut in between.
    p.compact(..).unwrap();
    let explanation = p.explain(b"T").unwrap();
    let [found] = &explanation.versions[..] else { panic!("{explanation}") };
    assert_eq!(found.metadata.as_ref().unwrap().at, None, "{explanation}");
    assert_eq!(found.verdict(), Some(Verdict::Valid));
    assert!(
        explanation.to_string().contains("metadata in the table's properties"),
        "{explanation}"
    );
    let report = scrub::scrubbed(&p);
    assert!(report.is_sound() && report.is_sealed() && report.counts.split_pairs == 1, "{report}");
}

/// The metadata of a value that nearly fills the longest block begins the next one. The later pairs
/// are complete.
#[test]
fn a_pair_that_its_own_metadata_parts_is_counted_and_no_other() {
    let (db, p) = roomy(&MemFs::new(), MetaHive::default());
    p.put("b", "an older version").unwrap();
    let _seen = db.snapshot();
    p.put("b", "a newer version").unwrap();
    // Blocks have 256 bytes, and 1 MiB more where they must not end.
    p.put("a", vec![7; 256 + (1 << 20) - 60]).unwrap();
    db.flush().unwrap();
    let explanation = p.explain(b"a").unwrap();
    let [found] = &explanation.versions[..] else { panic!("{explanation}") };
    let at = found.metadata.as_ref().unwrap().at.unwrap();
    assert!(at.block_offset > found.version.at.block_offset, "{explanation}");
    let report = scrub::scrubbed(&p);
    assert!(report.is_sound() && report.is_sealed(), "{report}");
    assert_eq!((report.counts.split_pairs, report.counts.sealed), (1, 3));
}

#[test]
fn explain_reports_damage_as_a_scrub_does() {
    // The checksum of the block shows damage, and the metadata shows which entry it is.
    let (it, _log) = harmed(&[0xff, 0xff, 0xff], no_log());
    let explanation = it.p.explain(key_of(137)).unwrap();
    assert_eq!(explanation.versions[0].verdict(), Some(Verdict::DataCorrupt));
    assert!(explanation.is_damaged() && !explanation.versions[0].version.at.block_verified);
    assert!(explanation.to_string().contains("in a block whose checksum does not agree"));
    let report = scrub::scrubbed(&it.p);
    let faults: Vec<_> = report.faults().cloned().collect();
    assert_eq!(explanation.versions[0].fault.as_ref(), faults.first());
    assert!(report.counts.suspects > 1 && report.damage().count() == 1, "{report}");
    // Its neighbour is intact, in a damaged block.
    let at = &explanation.versions[0].version.at;
    let neighbours = [136, 138].map(|n| it.p.explain(key_of(n)).unwrap());
    let mut neighbours = neighbours.iter();
    let neighbour = neighbours.find(|it| it.versions[0].version.at.block_offset == at.block_offset);
    let neighbour = neighbour.expect("no block has one entry");
    assert_eq!(neighbour.versions[0].verdict(), Some(Verdict::Valid));
    assert!(neighbour.is_damaged());
    // An entry that no source repairs is gone, and its gap is reported.
    it.p.put(key_of(137).repeat(2), "inside").unwrap();
    it.p.compact(..).unwrap();
    let explanation = it.p.explain(key_of(137)).unwrap();
    assert!(explanation.versions.is_empty() && explanation.is_damaged(), "{explanation}");
    assert!(explanation.to_string().contains("damaged beyond repair"), "{explanation}");
    assert_eq!(scrub::scrubbed(&it.p).lost.len(), 1);

    let it = Faulty::metadata(|key, found| match key {
        b"key 013" => vec![],
        b"key 014" => vec![(key.to_vec(), found[..18].to_vec())],
        b"key 015" => vec![(key.to_vec(), [&[0xff], &found[1..]].concat())],
        b"key 016" => {
            vec![(key.to_vec(), found.to_vec()), (b"key 016\x02".to_vec(), found.to_vec())]
        }
        _ => vec![(key.to_vec(), found.to_vec())],
    });
    for (key, verdict) in [
        (&b"key 013"[..], Verdict::DataCorrupt),
        (b"key 014", Verdict::DataCorrupt),
        (b"key 015", Verdict::MetadataCorrupt),
        (b"key 016", Verdict::Valid),
    ] {
        let explanation = it.p.explain(key).unwrap();
        assert_eq!(summary(&explanation)[0].3, Some(verdict), "{explanation}");
        assert_eq!(explanation.is_damaged(), verdict != Verdict::Valid, "{explanation}");
    }
    // An entry whose metadata alone is left: its key is within the range of the table.
    let explanation = it.p.explain(b"key 016\x02").unwrap();
    assert_eq!((explanation.versions.len(), explanation.orphans.len()), (0, 1), "{explanation}");
    assert!(explanation.is_damaged() && explanation.to_string().contains("without its entry"));
}

#[test]
fn explain_states_what_it_cannot_show() {
    let fs = MemFs::new();
    let (db, p) = roomy(&fs, MetaHive::default());
    p.put("k", "one").unwrap();
    db.flush().unwrap();
    p.put("k", "two").unwrap();
    db.flush().unwrap();
    let newest = damage::tables(&fs).pop().unwrap();
    fs.corrupt(&newest, 0, 0xff).unwrap();
    let explanation = p.explain(b"k").unwrap();
    assert_eq!(summary(&explanation), [(1, EntryKind::Value, Some(0), Some(Verdict::Valid))]);
    let [damage] = &explanation.damage[..] else { panic!("{explanation}") };
    assert_eq!(
        (&damage.file, damage.level, damage.key.as_deref()),
        (&newest, Some(0), Some(&b"k"[..]))
    );
    assert!(explanation.is_damaged() && explanation.to_string().contains("there may be more"));
}

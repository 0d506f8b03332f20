//! The rules that tables are imported with, and keys that end like those of a hook.

use super::*;
use crate::compaction::drawing::{draw, seq};
use crate::fs::MemFs;
use crate::types::{DbId, EntryKind, Operation, OperationChecksum, SectionBytes};
use crate::version::{Missing, PrefixCounts};

/// A partition whose filter, if it has one, reserves `suffix`, and which holds `keys`.
fn partition(suffix: &[u8], keys: &[&str]) -> PartitionState {
    let rules = Rules { reserved_suffix: suffix.to_vec(), ..Rules::default() };
    let hooks = PartitionHooks { rules, ..PartitionHooks::default() };
    let partition = PartitionState::alone(draw(""), hooks);
    for (number, key) in keys.iter().enumerate() {
        let view = partition.view();
        let section = SectionBytes::Lent(key.as_bytes());
        let kind = EntryKind::Tombstone;
        let operation = Operation { kind, key: 0..key.len(), value: key.len()..key.len() };
        let sums = OperationChecksum::new(kind, key.as_bytes(), b"");
        let seq = seq(1 + number as u64);
        view.active.writer().insert(seq, 0, sums, &section, &operation).unwrap();
    }
    partition
}

fn record(suffix: &[u8], key_form: KeyForm) -> HookRecord {
    let reserved_suffix = suffix.to_vec();
    let when_absent = WhenAbsent::OpenPlainly;
    HookRecord {
        kind: HookKind::Filter,
        name: "foreign".to_owned(),
        params: Vec::new(),
        rules: Rules { reserved_suffix, key_form, when_absent },
    }
}

fn tables() -> Arc<TableContext> {
    Arc::new(TableContext {
        fs: Arc::new(MemFs::new()),
        dir: "/db".into(),
        db_id: DbId(7),
        cache: None,
        are_mapped: false,
        files: None,
        prefix_counts: PrefixCounts::default(),
        missing: Missing::Damage,
    })
}

#[test]
fn tables_bring_their_rules_unless_the_partition_has_them() {
    let foreign = [record(b"\x02", KeyForm::default())];
    let (hooks, records) =
        with_rules_of(None, &partition(b"", &[]), &foreign).unwrap().expect("they are new");
    assert_eq!(hooks.rules.reserved_suffix, b"\x02");
    assert_eq!(records, foreign);
    let has_them = with_rules_of(None, &partition(b"\x02", &[]), &foreign).unwrap();
    assert!(has_them.is_none());
    let without_rules = [record(b"", KeyForm::default())];
    assert!(with_rules_of(None, &partition(b"\x03", &[]), &without_rules).unwrap().is_none());
}

#[test]
fn rules_that_contradict_those_of_the_partition_are_refused() {
    let other_suffix = [record(b"\x02", KeyForm::default())];
    let other_form = [record(b"\x01", KeyForm::Terminated)];
    for (own, foreign) in [(&b"\x03"[..], other_suffix), (b"", other_form)] {
        let error = with_rules_of(None, &partition(own, &[]), &foreign).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_suffix_that_keys_have_is_not_reserved() {
    let error = reserve_x(&["a", "bx", "c"]).expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::ReservedKey);
    assert!(error.to_string().contains("\"bx\""), "{error}");
    reserve_x(&["a", "xb"]).unwrap();
}

fn reserve_x(keys: &[&str]) -> Result<()> {
    let partition = partition(b"", keys);
    check_no_reserved_key(&tables(), &partition, &partition.pin(), b"x")
}

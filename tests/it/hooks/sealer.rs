//! A filter that keeps a hidden entry for each entry, and cannot repair.

use super::*;

/// Adds a hidden entry to each entry, which repeats a checksum of its bytes, and checks it in
/// compactions.
#[derive(Clone, Default)]
struct Sealer {
    checked: Arc<AtomicU64>,
    /// Outputs that came with a checksum of their value.
    confirmed: Arc<AtomicU64>,
    key_form: KeyForm,
}

const SUFFIX: u8 = 1;

fn sum(entry: Entry<'_>) -> Vec<u8> {
    let mut sum = entry.seq.get().to_le_bytes().to_vec();
    let bytes = entry.key.iter().chain(entry.value).map(|b| u64::from(*b));
    let total = bytes.fold(entry.kind as u64, |sum, b| sum.wrapping_mul(31).wrapping_add(b));
    sum.extend_from_slice(&total.to_le_bytes());
    sum
}

type ReadEntry = (Vec<u8>, Origin, EntryKind);

struct SealerJob {
    sealer: Sealer,
    /// The inputs by key and sequence number: checksum and place.
    read: BTreeMap<(Vec<u8>, u64), ReadEntry>,
    pending: Vec<(Vec<u8>, SeqNo, Vec<u8>)>,
}

impl CompactionFilterFactory for Sealer {
    fn name(&self) -> &'static str {
        "sealer"
    }

    fn rules(&self, _: Option<KeyForm>) -> Rules {
        let when_absent = WhenAbsent::OpenPlainly;
        Rules { reserved_suffix: vec![SUFFIX], key_form: self.key_form, when_absent }
    }

    fn sealer(&self) -> Option<&dyn siltstone::hooks::Sealer> {
        Some(self)
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        let read = BTreeMap::new();
        let pending = Vec::new();
        Ok(Box::new(SealerJob { sealer: self.clone(), read, pending }))
    }
}

impl siltstone::hooks::Sealer for Sealer {}

impl CompactionFilter for SealerJob {
    fn input(
        &mut self,
        entry: &Entry<'_>,
        at: &Origin,
        _verified: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        if !entry.hidden {
            let read = (sum(*entry), *at, entry.kind);
            self.read.insert((entry.key.to_vec(), entry.seq.get()), read);
            return Ok(Input::Pass);
        }
        let owner = (entry.key[..entry.key.len() - 1].to_vec(), entry.seq.get());
        if let Some((sum, at, kind)) = self.read.remove(&owner) {
            self.sealer.checked.fetch_add(1, Ordering::Relaxed);
            if sum != entry.value && kind != EntryKind::Poison {
                faults.push(Fault {
                    key: owner.0,
                    seq: entry.seq,
                    kind,
                    value: Vec::new(),
                    at,
                    what: "the sum does not agree".to_owned(),
                });
            }
        }
        Ok(Input::Take)
    }

    fn output(&mut self, output: &Output<'_>) -> Result<u64> {
        let Output { entry, value_sum, .. } = *output;
        if let Some(value_sum) = value_sum {
            assert_eq!(value_sum, checksum64_seeded(entry.value, VALUE_SEED));
            self.sealer.confirmed.fetch_add(1, Ordering::Relaxed);
        }
        let key = [entry.key, &[SUFFIX]].concat();
        self.pending.push((key, entry.seq, sum(entry)));
        Ok(0)
    }

    fn boundary(
        &mut self,
        next: Option<&[u8]>,
        out: &mut Emitter<'_>,
        _faults: &mut Faults,
    ) -> Result<Cut> {
        self.pending.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let due = self.pending.iter().position(|(key, _, _)| next.is_some_and(|n| n <= &key[..]));
        for (key, seq, payload) in self.pending.drain(..due.unwrap_or(self.pending.len())) {
            out.emit(&key, seq, &payload)?;
        }
        Ok(if self.pending.is_empty() { Cut::Allowed } else { Cut::Forbidden })
    }

    fn finish_table(&mut self, _: &[EndedBlock], properties: &mut Properties) -> Result<()> {
        properties.0.insert("sealer".to_owned(), b"yes".to_vec());
        Ok(())
    }
}

struct Provider(Sealer);

impl HookProvider for Provider {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        match name {
            "sealer" => Some(Arc::new(self.0.clone())),
            PrefixDropFilter::NAME => Some(Arc::new(PrefixDropFilter::from_params(params)?)),
            _ => None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With a filter that seals, every result is as without it; hidden entries are counted
    /// separately.
    #[test]
    fn hidden_entries_change_no_answer(
        ops in prop::collection::vec((0u8..7, prop::collection::vec(0u8..3, 0..4), 0u8..200), 1..120),
        form in 0u8..3,
        seed: u64,
    ) {
        let fs = MemFs::new();
        let key_form = KeyForm::from_u8(form).unwrap();
        let any_key = key_form.takes_any_key();
        let sealer = Sealer { key_form, ..Sealer::default() };
        let open = || builder(&fs, seed).hooks(Arc::new(Provider(sealer.clone()))).open().unwrap();
        let mut db = open();
        let options = || tiny().level0_tables(2).level_multiplier(2);
        let hooks = || Hooks::new().filter(Arc::new(sealer.clone()));
        let mut p = db.partition_with("p", options().hooks(hooks())).unwrap();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut snapshots = Vec::new();
        for (what, key, arg) in &ops {
            match what {
                0..3 => {
                    let value = vec![*arg; usize::from(*arg)];
                    let put = p.put(key, &value);
                    if key.ends_with(&[SUFFIX]) && !any_key {
                        prop_assert_eq!(put.unwrap_err().kind(), ErrorKind::ReservedKey);
                        continue;
                    }
                    put.unwrap();
                    model.insert(key.clone(), value);
                }
                3 if any_key || !key.ends_with(&[SUFFIX]) => {
                    p.delete(key).unwrap();
                    model.remove(key);
                }
                4 => p.compact(..).unwrap(),
                5 if snapshots.len() < 2 => snapshots.push((db.snapshot(), model.clone())),
                _ if *arg % 4 == 0 => {
                    snapshots.clear();
                    drop(p);
                    db.close().unwrap();
                    db = open();
                    p = db.partition("p").unwrap();
                }
                _ => db.flush().unwrap(),
            }
            prop_assert_eq!(&content(&p), &model);
            let back: Vec<_> = p.keys().rev().map(|k| k.unwrap().to_vec()).collect();
            prop_assert!(back.iter().rev().eq(model.keys()));
            for (key, value) in &model {
                let got = p.get(key).unwrap();
                prop_assert_eq!(got.as_deref(), Some(&value[..]));
            }
            let from = p.range(key.clone()..).next().map(|kv| kv.unwrap().0.to_vec());
            prop_assert_eq!(from.as_ref(), model.range(key.clone()..).next().map(|(k, _)| k));
            let prefix = p.prefix(key).count();
            prop_assert_eq!(prefix, model.keys().filter(|k| k.starts_with(key)).count());
            for (snapshot, then) in &snapshots {
                prop_assert_eq!(snapshot.iter(&p).count(), then.len());
            }
        }
    }
}

/// A store with sealed tables, in which a memory fault changes one entry each time it is read from
/// a table.
fn sealed_store(fs: &MemFs, sealer: &Sealer) -> (Db, Partition) {
    let db = builder(fs, 5)
        .hooks(Arc::new(Provider(sealer.clone())))
        .inject(|at, entry| {
            if at.file.is_some() && entry.key == b"bad" && entry.kind == EntryKind::Value {
                entry.value[3] ^= 0x10;
            }
        })
        .open()
        .unwrap();
    let hooks = Hooks::new().filter(Arc::new(sealer.clone()));
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    for n in 0..100u8 {
        p.put([b'k', n + 10], [n; 30]).unwrap();
    }
    p.put("bad", [7; 30]).unwrap();
    db.flush().unwrap();
    (db, p)
}

#[test]
fn a_flush_hands_the_checksums_of_values_on() {
    let sealer = Sealer::default();
    let db = builder(&MemFs::new(), 5).open().unwrap();
    let hooks = Hooks::new().filter(Arc::new(sealer.clone()));
    let p = db.partition_with("p", tiny().hooks(hooks)).unwrap();
    for (key, len) in [("empty", 0), ("short", 240), ("long", 241)] {
        p.put(key, vec![7; len]).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(sealer.confirmed.load(Ordering::Relaxed), 3);
    // Blocks of tables have checksums of their own.
    p.compact(..).unwrap();
    assert_eq!(sealer.confirmed.load(Ordering::Relaxed), 3);
}

/// Without a judge nothing repairs a table: the compaction fails, and changes nothing.
#[test]
fn a_fault_fails_the_compaction_and_names_table_and_key() {
    let sealer = Sealer::default();
    let (_db, p) = sealed_store(&MemFs::new(), &sealer);
    let error = p.compact(..).unwrap_err();
    assert!(error.is_corruption());
    let damage = error.damage().unwrap();
    assert_eq!(damage.key.as_deref(), Some(&b"bad"[..]));
    assert_eq!(damage.file.extension().unwrap(), "sst");
    assert!(sealer.checked.load(Ordering::Relaxed) > 0);
    assert_eq!(p.get("bad").unwrap().as_deref(), Some(&[7; 30][..]));
    assert_eq!(p.prefix("k").flatten().count(), 100);
}

#[test]
fn a_node_without_the_filter_reads_everything_and_cleans_up() {
    let fs = MemFs::new();
    let (db, p) = sealed_store(&fs, &Sealer::default());
    drop(p);
    db.close().unwrap();
    let db = builder(&fs, 6).open().unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.iter().flatten().count(), 101);
    let refused = p.put([b'x', SUFFIX], "v").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReservedKey, "the rule holds without the hook");
    p.compact(..).unwrap();
    assert_eq!(p.iter().flatten().count(), 101);
    // When the filter is turned off, the rule is gone; when it is turned on again, the error names
    // keys that break the rule.
    let p = db.partition_with("p", tiny().hooks(Hooks::new())).unwrap();
    p.put([b'x', SUFFIX], "v").unwrap();
    let hooks = Hooks::new().filter(Arc::new(Sealer::default()));
    let error = db.partition_with("p", tiny().hooks(hooks.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReservedKey);
    assert!(error.to_string().contains("x\\x01"), "{error}");
    p.delete([b'x', SUFFIX]).unwrap();
    p.compact(..).unwrap();
    db.partition_with("p", tiny().hooks(hooks)).unwrap();
}

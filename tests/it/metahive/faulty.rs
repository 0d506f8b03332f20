//! A MetaHive with a fault: the metadata that it writes is changed before the engine gets it. So a
//! table is made whose blocks all verify, and in which one pair is wrong.

use lsm_core::hooks::{CompactionFilter, Cut, Emitter, EndedBlock, Faults, HiddenSink, Properties};
use metahive::table_seal::PROPERTY;
use siltstone::Result;

use super::around::{Around, Change};
use super::*;

/// Keys of entries, and the V+ that is written for each.
type Emitted = Vec<(Vec<u8>, Vec<u8>)>;

/// A MetaHive whose metadata and seals a test changes before the engine gets them.
#[derive(Clone)]
pub(super) struct Faulty {
    fault: Arc<OnMetadata>,
    on_seal: OnSeal,
}

/// The seal that is written instead of another one.
type OnSeal = fn(TableSeal) -> TableSeal;

/// The payload that replaces the V+ of a key.
type OnMetadata = dyn Fn(&[u8], &[u8]) -> Emitted + Send + Sync;

impl Faulty {
    pub(super) fn new(
        fault: impl Fn(&[u8], &[u8]) -> Emitted + Send + Sync + 'static,
        on_seal: OnSeal,
    ) -> Around<Faulty> {
        Around::new(Faulty { fault: Arc::new(fault), on_seal })
    }

    /// A store that was written with this fault in its metadata, opened on a node without the
    /// fault.
    pub(super) fn metadata(
        fault: impl Fn(&[u8], &[u8]) -> Emitted + Send + Sync + 'static,
    ) -> Checked {
        store(Faulty::new(fault, |seal| seal))
    }

    /// A store that was written with this fault in the seal of each table.
    pub(super) fn sealing(on_seal: OnSeal) -> Checked {
        store(Faulty::new(|key, found| vec![(key.to_vec(), found.to_vec())], on_seal))
    }
}

fn store(filter: Around<Faulty>) -> Checked {
    let fs = MemFs::new();
    let db = builder(Arc::new(fs.clone()), 30).open().unwrap();
    let hooks = Hooks::new().filter(Arc::new(filter));
    let p = db.partition_with("p", tiny().level0_tables(100).hooks(hooks)).unwrap();
    for n in 0..300 {
        p.put(key_of(n), format!("value {n} ").repeat(4)).unwrap();
        if n % 40 == 39 {
            db.flush().unwrap();
        }
    }
    db.flush().unwrap();
    drop(p);
    db.close().unwrap();
    Checked::open(fs, Provider::new(MetaHive::default()))
}

/// Changes metadata before the engine gets it.
struct Changing<'c, 'o> {
    out: &'c mut Emitter<'o>,
    fault: &'c OnMetadata,
}

impl HiddenSink for Changing<'_, '_> {
    fn add(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        for (key, payload) in (self.fault)(entry_key(key).unwrap(), payload) {
            self.out.emit(&[&key[..], &[SUFFIX]].concat(), seq, &payload)?;
        }
        Ok(())
    }

    fn ended_blocks(&mut self) -> Option<&mut Vec<EndedBlock>> {
        self.out.ended_blocks()
    }
}

impl Change for Faulty {
    fn boundary(
        &mut self,
        job: &mut dyn CompactionFilter,
        next: Option<&[u8]>,
        out: &mut Emitter<'_>,
        faults: &mut Faults,
    ) -> Result<Cut> {
        let fault = &*self.fault;
        job.boundary(next, &mut Emitter::new(&mut Changing { out, fault }), faults)
    }

    fn finish_table(
        &mut self,
        job: &mut dyn CompactionFilter,
        blocks: &[EndedBlock],
        properties: &mut Properties,
    ) -> Result<()> {
        job.finish_table(blocks, properties)?;
        let seal = TableSeal::of(properties, "integrity")?.unwrap();
        let seal = (self.on_seal)(seal);
        properties.0.insert(PROPERTY.to_owned(), seal.encode());
        Ok(())
    }
}

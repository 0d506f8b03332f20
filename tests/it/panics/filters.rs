//! Filters with a fuse: each of their calls can be made to panic.

use std::sync::Arc;

use lsm_core::hooks::{
    BlockVerifier, CompactionFilter, CompactionFilterFactory, Cut, DamagedBlock, DamagedTable,
    Decision, Emitter, EndedBlock, Entry, Faults, Input, InputBlock, InputTable, Job, NoteForm,
    Origin, Output, Piece, Properties, RepairSources, RepairedBlock, Rules, Sealer, TableRepair,
    TableVerdict, VerifiedBlock, VerifiedEntry, Verifier,
};
use lsm_core::types::{FileNo, KeyForm};
use siltstone::Result;

use crate::test_value_store::Fuse;

/// The calls that a repair makes.
pub(super) const REPAIR_CALLS: [&str; 4] = ["repair", "block", "has_versions", "end of a repair"];

#[derive(Clone)]
pub struct Fused {
    pub fuse: Fuse,
    pub seals: bool,
}

impl CompactionFilterFactory for Fused {
    fn name(&self) -> &str {
        if self.seals { "sealing" } else { "deciding" }
    }

    fn rules(&self, _: Option<KeyForm>) -> Rules {
        // Hidden entries are made from notes.
        let reserved_suffix = if self.seals { vec![0xfe, 0xfe] } else { Vec::new() };
        Rules { reserved_suffix, ..Rules::default() }
    }

    fn sealer(&self) -> Option<&dyn Sealer> {
        if self.seals { Some(self) } else { None }
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        if !self.seals {
            self.fuse.pass("start")?;
        }
        Ok(Box::new(self.clone()))
    }
}

impl Sealer for Fused {
    fn joined(&self, _left_largest: &[u8], _right_smallest: &[u8]) -> bool {
        self.fuse.pass("joined").unwrap();
        false
    }

    fn verifies(&self) -> bool {
        self.seals
    }

    fn verifier(&self, _: &[InputTable], _: bool) -> Result<Option<Verifier>> {
        self.fuse.pass("verifier")?;
        // The note of a verified entry stays, and its output is not called.
        if self.fuse.is_set("output") {
            return Ok(None);
        }
        Ok(Some(Verifier { blocks: Arc::new(self.clone()), walks_all: false }))
    }

    fn repair(
        &self,
        _: &InputTable,
        _: &DamagedTable,
        _: &Arc<dyn RepairSources>,
    ) -> Result<Option<Box<dyn TableRepair>>> {
        self.fuse.pass("repair")?;
        Ok(Some(Box::new(self.clone())))
    }

    fn note_form(&self) -> Option<Arc<dyn NoteForm>> {
        self.seals.then(|| Arc::new(self.clone()) as Arc<dyn NoteForm>)
    }
}

impl CompactionFilter for Fused {
    fn input(
        &mut self,
        _entry: &Entry<'_>,
        _at: &Origin,
        _verified: Option<&VerifiedEntry<'_>>,
        _faults: &mut Faults,
    ) -> Result<Input> {
        self.fuse.pass("input")?;
        Ok(Input::Pass)
    }

    fn decide(&mut self, _entry: Entry<'_>) -> Result<Decision> {
        self.fuse.pass("decide")?;
        Ok(Decision::Keep)
    }

    fn output(&mut self, _output: &Output<'_>) -> Result<u64> {
        self.fuse.pass("output").map(|()| 7)
    }

    fn boundary(
        &mut self,
        _next: Option<&[u8]>,
        _out: &mut Emitter<'_>,
        _faults: &mut Faults,
    ) -> Result<Cut> {
        self.fuse.pass("boundary")?;
        Ok(Cut::Idle)
    }

    fn finish_table(&mut self, _: &[EndedBlock], _: &mut Properties) -> Result<()> {
        if self.seals { self.fuse.pass("finish_table") } else { Ok(()) }
    }
}

impl BlockVerifier for Fused {
    fn verify(&self, block: &dyn InputBlock, verified: &mut VerifiedBlock) -> Result<()> {
        self.fuse.pass("verify")?;
        if REPAIR_CALLS.iter().any(|call| self.fuse.is_set(call)) {
            return Err(block.corruption("so that a repair begins"));
        }
        verified.sums.resize(block.entry_count(), 7);
        Ok(())
    }

    fn end(&self, _: FileNo) -> Option<String> {
        self.fuse.pass("end").unwrap();
        None
    }
}

/// Loses everything.
impl TableRepair for Fused {
    fn block(&mut self, _: &mut dyn DamagedBlock) -> RepairedBlock {
        self.fuse.pass("block").unwrap();
        RepairedBlock { pieces: vec![Piece::Lost], ..RepairedBlock::default() }
    }

    fn end(&mut self) -> TableVerdict {
        self.fuse.pass("end of a repair").unwrap();
        TableVerdict::Whole
    }

    fn has_versions(&self) -> bool {
        self.fuse.pass("has_versions").unwrap();
        false
    }
}

impl NoteForm for Fused {
    fn payload_bytes(&self) -> usize {
        1
    }

    fn put_payloads(&self, notes: &[u64], out: &mut Vec<u8>) -> Result<()> {
        out.extend(notes.iter().map(|note| *note as u8));
        self.fuse.pass("put_payloads")
    }
}

impl Drop for Fused {
    fn drop(&mut self) {
        let _ = self.fuse.pass("drop");
    }
}

//! Filters with a fuse: each call of theirs can be made to panic.

use std::sync::Arc;

use lsm_core::hooks::{
    CompactionFilter, CompactionFilterFactory, Cut, Decision, Emitter, EndedBlock, Entry, Fault,
    Faults, Input, Job, NoteForm, Origin, Patch, Properties, RepairSources, Rules,
};
use lsm_core::types::SeqNo;
use siltstone::Result;

use crate::shelf::Fuse;

#[derive(Clone)]
pub(super) struct Fused {
    pub fuse: Fuse,
    pub seals: bool,
}

impl CompactionFilterFactory for Fused {
    fn name(&self) -> &str {
        if self.seals { "sealing" } else { "deciding" }
    }

    fn rules(&self) -> Rules {
        // Hidden entries are made of notes.
        let reserved_suffix = if self.seals { vec![0xfe, 0xfe] } else { Vec::new() };
        Rules { reserved_suffix, ..Rules::default() }
    }

    fn seals(&self) -> bool {
        self.seals
    }

    fn joined(&self, _left_largest: &[u8], _right_smallest: &[u8]) -> bool {
        self.fuse.pass("joined").unwrap();
        false
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        if !self.seals {
            self.fuse.pass("start")?;
        }
        Ok(Box::new(self.clone()))
    }

    fn repair(&self, faults: &[Fault], _sources: &mut dyn RepairSources) -> Vec<Patch> {
        self.fuse.pass("repair").unwrap();
        // They were never damaged.
        faults
            .iter()
            .map(|fault: &Fault| {
                let Fault { key, seq, kind, value, .. } = fault.clone();
                Patch::Replace { key, seq, kind, value, source: "the fault itself".to_owned() }
            })
            .collect()
    }
}

impl CompactionFilter for Fused {
    fn input(&mut self, entry: Entry<'_>, at: Origin, faults: &mut Faults) -> Result<Input> {
        self.fuse.pass("input")?;
        if self.fuse.is_set("repair") && at.file.is_some() {
            faults.push(Fault {
                key: entry.key.to_vec(),
                seq: entry.stored_seq,
                kind: entry.kind,
                value: entry.value.to_vec(),
                at,
                what: "a test says so".to_owned(),
                detail: Vec::new(),
            });
        }
        Ok(Input::Pass)
    }

    fn decide(&mut self, _entry: Entry<'_>) -> Result<Decision> {
        self.fuse.pass("decide")?;
        Ok(Decision::Keep)
    }

    fn output(
        &mut self,
        _entry: &Entry<'_>,
        _untouched_from: Option<SeqNo>,
        _value_sum: Option<u64>,
    ) -> Result<()> {
        self.fuse.pass("output")
    }

    fn note_form(&self) -> Option<Arc<dyn NoteForm>> {
        Some(Arc::new(self.clone()))
    }

    fn note(
        &mut self,
        _entry: &Entry<'_>,
        _untouched_from: Option<SeqNo>,
        _value_sum: Option<u64>,
    ) -> Result<u64> {
        self.fuse.pass("note").map(|()| 7)
    }

    fn blocks_ended(&mut self, _blocks: &[EndedBlock]) -> Result<()> {
        self.fuse.pass("blocks_ended")
    }

    fn boundary(
        &mut self,
        _next: Option<&[u8]>,
        _out: &mut Emitter<'_>,
        _faults: &mut Faults,
    ) -> Result<Cut> {
        self.fuse.pass("boundary")?;
        // Otherwise every entry is noted.
        Ok(if self.fuse.is_set("output") { Cut::Allowed } else { Cut::Idle })
    }

    fn finish_table(&mut self, _properties: &mut Properties) -> Result<()> {
        if self.seals { self.fuse.pass("finish_table") } else { Ok(()) }
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

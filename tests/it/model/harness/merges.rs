//! The operations of a batch, among them merges of operands.

use testkit::model::Op;

use super::Harness;
use crate::model::operation::{Key, ValueLen};

impl Harness {
    pub(super) fn ops(&mut self, operations: &[(u8, Key, Option<ValueLen>)]) -> Vec<Op> {
        let mut ops = Vec::new();
        self.add_ops(&mut ops, operations);
        ops
    }

    /// Adds operations after others of the same batch. Where the partition has a merge operator, some puts are merges:
    /// for the oracle they put what that makes.
    pub(super) fn add_ops(
        &mut self,
        ops: &mut Vec<Op>,
        operations: &[(u8, Key, Option<ValueLen>)],
    ) {
        for (p, key, len) in operations {
            let key = key.bytes();
            let mut value = len.map(|len| self.value(len));
            let part = self.part(*p);
            let name = part.name;
            let is_merge = !self.values.is_multiple_of(3) && part.handle.merge_operator().is_some();
            // Shorter values are not those of one write alone.
            if let Some(operand) = value.take_if(|value| is_merge && value.len() >= 4) {
                let mut own = ops.iter().rev();
                let before = match own.find(|op| op.partition == name && op.key == key) {
                    Some(op) => op.value.clone(),
                    None => self.oracle.contents(name).remove(&key),
                };
                let merged = [before.as_deref().unwrap_or_default(), &operand].concat();
                self.operands.insert((key.clone(), merged.clone()), operand);
                value = Some(merged);
            }
            ops.push(Op { partition: name.to_owned(), key, value: value.map(Into::into) });
        }
    }

    /// The operand that made the value of `op`, if it is a merge.
    pub(super) fn operand_of(&self, op: &Op) -> Option<&Vec<u8>> {
        self.operands.get(&(op.key.clone(), op.value.as_ref()?.to_vec()))
    }
}

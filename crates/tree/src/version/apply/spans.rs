//! [`SpansDraft`]: changes of the deleted ranges of a partition, which its version does not contain yet.
//!
//! An edit, or a recovery, may have thousands of them, and each change of a [`DeletedRanges`] copies all of it. So changes
//! of one sort that follow each other are made together.

use crate::types::{DeletedRange, DeletedRanges};

/// Additions and removals, in their order.
#[derive(Debug, Default)]
pub(super) struct SpansDraft {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Add(Vec<DeletedRange>),
    Remove(Vec<DeletedRange>),
}

impl SpansDraft {
    pub(super) fn is_unchanged(&self) -> bool {
        self.steps.is_empty()
    }

    pub(super) fn add(&mut self, span: &DeletedRange) {
        match self.steps.last_mut() {
            Some(Step::Add(spans)) => spans.push(span.clone()),
            _ => self.steps.push(Step::Add(vec![span.clone()])),
        }
    }

    pub(super) fn remove(&mut self, span: &DeletedRange) {
        match self.steps.last_mut() {
            Some(Step::Remove(spans)) => spans.push(span.clone()),
            _ => self.steps.push(Step::Remove(vec![span.clone()])),
        }
    }

    /// The spans after all changes of `before`; `None` if one is removed that is not there.
    pub(super) fn finish(self, before: &DeletedRanges) -> Option<DeletedRanges> {
        let mut spans = before.clone();
        for step in self.steps {
            spans = match step {
                Step::Add(added) => spans.and(&DeletedRanges::of(&added)),
                Step::Remove(removed) => spans.without(&DeletedRanges::of(&removed))?,
            };
        }
        Some(spans)
    }
}

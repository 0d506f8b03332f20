//! [`Injections`]: faults of memory, for the tests of what finds them.
//!
//! Set by the builder's hidden calls; the commit path and jobs ask. Without one, nothing is changed
//! and nothing copied.

use std::sync::Arc;

use crate::hooks::Inject;
use crate::types::SectionBytes;

/// The place of an encoded section in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMemory {
    /// Copied from the caller, not yet summed for the log.
    Section,
    /// In a memtable.
    Memtable,
}

/// Changes the bytes of sections.
pub(super) type InjectInMemory = dyn Fn(InMemory, &mut Vec<u8>) + Send + Sync;

/// See the module.
#[derive(Default)]
pub(super) struct Injections {
    /// Between the reading and the writing of a job.
    pub(super) entries: Option<Arc<Inject>>,
    pub(super) sections: Option<Box<InjectInMemory>>,
}

impl Injections {
    /// The section as it is there from now on, if it is another one.
    #[inline]
    pub(super) fn in_memory(
        &self,
        place: InMemory,
        section: &[u8],
    ) -> Option<SectionBytes<'static>> {
        let inject = self.sections.as_ref()?;
        let mut bytes = section.to_vec();
        inject(place, &mut bytes);
        Some(SectionBytes::Shared(bytes.into()))
    }
}

//! [`Injections`]: faults of memory, for the tests of their detection.
//!
//! Set by the builder's hidden calls; read by the commit path and jobs. Without one, nothing is
//! changed and nothing copied.

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

/// The injected faults of a database.
#[derive(Default)]
pub(super) struct Injections {
    /// Between the reading and the writing of a job.
    pub(super) entries: Option<Arc<Inject>>,
    pub(super) sections: Option<Box<InjectInMemory>>,
}

impl Injections {
    /// The section to use from now on, if it was changed.
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

//! [`JobParts`]: the parts of an open database from which the owners of its background work are built.
//!
//! The scheduler makes it once. Each owner keeps pointers to the parts that it uses. It has no work of its own,
//! and no lock.

use std::sync::Arc;

use super::background::Background;
use super::job::JobRunner;
use super::jobs::Jobs;
use super::log::Log;
use super::ownership::Ownership;

/// The parts that several owners of background work use.
#[derive(Clone)]
pub(super) struct JobParts {
    pub(super) log: Arc<Log>,
    /// Has the catalog and the commit path, too.
    pub(super) runner: Arc<JobRunner>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) background: Arc<Background>,
    pub(super) ownership: Arc<Ownership>,
}

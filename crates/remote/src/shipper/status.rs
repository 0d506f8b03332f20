//! [`Status`]: the figures of a primary; and its failures, for the health of the database.

use std::time::Duration;

use siltstone::ErrorKind;

use super::Shipper;
use crate::bucket::{Bucket, StoreTrouble};
use crate::restorer::RestoreStatus;

/// A store that fails for a shorter time throttles, or has a hiccup: it is in the status, and not in the health.
const FAILS_FOR_MIN: Duration = Duration::from_secs(5);

/// Figures of a primary, see [`Primary::status`](crate::Primary::status).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The last journal object that is stored.
    pub number: u64,
    /// The last base.
    pub base: u64,
    /// Bytes of changes that wait for the bucket.
    pub waiting_bytes: u64,
    /// Journal objects that this primary has put.
    pub objects: u64,
    /// Tables and chunk files that are read from the bucket, because the local disk does not have them yet.
    pub remote_files: u64,
    /// The restore of them.
    pub restore: RestoreStatus,
    /// The puts fail at present.
    pub failure: Option<StoreFailure>,
    /// A journal object that the bucket had, and has lost. The primary has put what the next open needs; a restore to
    /// a moment since the last base before it fails.
    pub lost_object: Option<String>,
    /// Another writer has taken the database over.
    pub is_fenced: bool,
}

/// A store that does not answer, or refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFailure {
    /// The store.
    pub store: String,
    /// The time since the first call that failed. None has succeeded since.
    pub lasts: Duration,
    /// The last error.
    pub error: String,
    /// It refuses the credentials: they have expired, or lack a right. The primary goes on once the store takes them, or
    /// those that its provider has by then.
    pub is_refusal: bool,
}

impl Shipper {
    pub(crate) fn status(&self) -> Status {
        let failure = self.store_failure();
        let lost_object = self.lost_object();
        let state = self.state.lock();
        Status {
            number: state.folder.number,
            base: state.base_number,
            waiting_bytes: state.waiting_bytes(),
            objects: state.objects,
            remote_files: state.remote_only.len() as u64,
            restore: RestoreStatus::default(),
            failure,
            lost_object,
            is_fenced: state.ended.as_ref().is_some_and(|it| it.kind() == ErrorKind::Fenced),
        }
    }

    fn store_failure(&self) -> Option<StoreFailure> {
        let trouble = self.bucket.trouble()?;
        let lasts = self.bucket.timer.now().saturating_sub(trouble.since);
        let StoreTrouble { error, is_refusal, .. } = trouble;
        Some(StoreFailure { store: self.bucket.store.name(), lasts, error, is_refusal })
    }

    /// The failure of the store, for the health of the database.
    pub(crate) fn failure(&self) -> Option<String> {
        let lost = self.lost_object().map(|name| format!("the bucket has lost {name}"));
        let Some(failure) = self.store_failure().filter(|it| it.lasts >= FAILS_FOR_MIN) else {
            return lost;
        };
        let StoreFailure { store, lasts, error, is_refusal } = failure;
        let what = if is_refusal { "refused the credentials" } else { "failed" };
        let waiting = self.waiting_bytes();
        let seconds = lasts.as_secs();
        Some(format!(
            "the bucket, {store}, has {what} for {seconds} s, and {waiting} bytes of changes wait for it: {error}"
        ))
    }

    /// The bucket for other calls of the primary: their failures are not those of its puts.
    pub(crate) fn other_bucket(&self) -> Bucket {
        self.bucket.sibling()
    }

    /// Ends the open: see [`Bucket::await_credentials`].
    pub(crate) fn await_credentials(&self) {
        self.bucket.await_credentials();
    }

    /// Ends the patience with the store soon, for the drop of the primary.
    pub(crate) fn end_patience(&self) {
        self.bucket.end_patience_after(self.bucket.patience.min(Duration::from_secs(60)));
    }
}

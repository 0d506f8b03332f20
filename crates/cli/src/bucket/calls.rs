//! [`CountedStore`]: a store whose bytes are counted for the progress, and whose calls fail once the command is to end.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use indicatif::HumanBytes;
use remote::{ObjectListing, Store, StoreError, StoreErrorKind, StoreResult};

/// The folder of the leases in a bucket.
const LEASES: &str = "lease/";

/// Sums over the calls of a store.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    // Shown to a person: no order with other memory is needed.
    got: AtomicU64,
    put: AtomicU64,
    has_lease: AtomicBool,
    /// The error of the first lease, if it could not be put.
    lease_refusal: OnceLock<String>,
}

impl CallCounts {
    /// The sums as words.
    pub(crate) fn text(&self) -> String {
        let got = HumanBytes(self.got.load(Ordering::Relaxed));
        let put = HumanBytes(self.put.load(Ordering::Relaxed));
        format!("{got} got, {put} put")
    }

    pub(crate) fn lease_refusal(&self) -> Option<&str> {
        self.lease_refusal.get().map(String::as_str)
    }

    fn count_put(&self, name: &str, bytes: &[u8]) {
        self.put.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if name.starts_with(LEASES) {
            self.has_lease.store(true, Ordering::Relaxed);
        }
    }

    fn count_got(&self, bytes: Option<&Vec<u8>>) {
        self.got.fetch_add(bytes.map_or(0, |bytes| bytes.len() as u64), Ordering::Relaxed);
    }
}

/// A store, with sums of what its calls get and put.
pub(crate) struct CountedStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) counts: Arc<CallCounts>,
    /// Returns `true` once the user has asked for an end.
    pub(crate) is_ended: fn() -> bool,
}

impl CountedStore {
    fn check_end(&self) -> StoreResult<()> {
        match (self.is_ended)() {
            false => Ok(()),
            // Final: another attempt would be made otherwise, for a minute.
            true => Err(StoreError::new(StoreErrorKind::Final, "interrupted by Ctrl-C")),
        }
    }
}

impl Store for CountedStore {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.check_end()?;
        let is_put = self.inner.put_if_absent(name, bytes)?;
        self.counts.count_put(name, bytes);
        Ok(is_put)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.check_end()?;
        let Err(error) = self.inner.put(name, bytes) else {
            self.counts.count_put(name, bytes);
            return Ok(());
        };
        if !name.starts_with(LEASES) || self.counts.has_lease.load(Ordering::Relaxed) {
            return Err(error);
        }
        // The first one is tried once: a reader without the right to write would wait for a minute otherwise.
        self.counts.lease_refusal.get_or_init(|| error.message.clone());
        Err(StoreError { kind: StoreErrorKind::Final, ..error })
    }

    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        let mut counted = parts.map(|part| {
            self.check_end()?;
            let part = part?;
            self.counts.count_put(name, &part);
            Ok(part)
        });
        self.inner.put_parts(name, &mut counted)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.check_end()?;
        let got = self.inner.get(name)?;
        self.counts.count_got(got.as_ref());
        Ok(got)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.check_end()?;
        let got = self.inner.get_range(name, range)?;
        self.counts.count_got(got.as_ref());
        Ok(got)
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.check_end()?;
        self.inner.list(dir)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        // Also after Ctrl-C: a command gives its lease up.
        self.inner.delete(name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use remote::Remote;

    use super::*;

    static IS_ENDED: AtomicBool = AtomicBool::new(false);

    fn is_ended() -> bool {
        IS_ENDED.load(Ordering::Relaxed)
    }

    #[test]
    fn bytes_are_counted_and_all_calls_but_deletions_end_with_the_command() {
        let counts = Arc::<CallCounts>::default();
        let inner = Remote::memory().unwrap().store();
        let store = CountedStore { inner, counts: counts.clone(), is_ended };
        store.put("a", &[1; 1000]).unwrap();
        assert!(store.put_if_absent("b", &[1; 24]).unwrap());
        assert!(!store.put_if_absent("b", &[1; 1024]).unwrap());
        store.get("a").unwrap();
        store.get_range("a", 0..24).unwrap();
        assert_eq!(counts.text(), "1.00 KiB got, 2.00 KiB put");
        store.put_parts("d", &mut [Ok(vec![1; 1000]), Ok(vec![1; 24])].into_iter()).unwrap();
        assert_eq!(counts.text(), "1.00 KiB got, 3.00 KiB put");
        IS_ENDED.store(true, Ordering::Relaxed);
        for ended in [
            store.put("a", b"").map(drop),
            store.put_if_absent("c", b"").map(drop),
            store.put_parts("d", &mut [Ok(vec![1])].into_iter()),
            store.get("a").map(drop),
            store.get_range("a", 0..1).map(drop),
            store.list("").map(drop),
        ] {
            assert_eq!(ended.unwrap_err().kind, StoreErrorKind::Final);
        }
        store.delete("a").unwrap();
    }
}

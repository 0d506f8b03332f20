//! [`StorageCalls`]: the requests of a server to its bucket, and their price; [`CountedCalls`]: a store whose requests are
//! counted.
//!
//! Each call of the store is a request, also one that fails. The price is that of S3 Standard: other stores have other prices, and a
//! folder has none.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use remote::{ObjectListing, Store, StoreResult};

use crate::exposition::{Exposition, count, value};

/// The kinds of requests, with the dollars for a million of them (S3 Standard, November 2026).
const KINDS: [(&str, f64); 4] = [("put", 5.0), ("get", 0.4), ("list", 5.0), ("delete", 0.0)];
const PUT: usize = 0;
const GET: usize = 1;
const LIST: usize = 2;
const DELETE: usize = 3;

/// The requests to a bucket, since the start of the server.
#[derive(Debug, Default)]
pub(crate) struct StorageCalls([AtomicU64; KINDS.len()]);

impl StorageCalls {
    fn rows(&self) -> impl Iterator<Item = (&'static str, u64, f64)> {
        let kinds = KINDS.iter().zip(&self.0);
        kinds.map(|((kind, price), calls)| (*kind, value(calls), value(calls) as f64 * price / 1e6))
    }

    pub(crate) fn figures(&self, out: &mut Exposition) {
        let name = "storage_requests_total";
        out.head(name, "counter", "Requests to the bucket.");
        for (kind, calls, _) in self.rows() {
            out.line(name, &[("kind", kind)], calls);
        }
        let name = "storage_dollars_total";
        out.head(name, "counter", "Price of the requests to the bucket, as of S3 Standard.");
        for (kind, _, dollars) in self.rows() {
            out.line(name, &[("kind", kind)], dollars);
        }
    }

    /// The rows of a table: kind, requests, dollars.
    pub(crate) fn cells(&self) -> Vec<Vec<String>> {
        self.rows()
            .map(|(kind, calls, dollars)| {
                vec![kind.to_owned(), calls.to_string(), format!("{dollars:.4} $")]
            })
            .collect()
    }
}

/// A store whose requests are counted.
pub(crate) struct CountedCalls {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) calls: Arc<StorageCalls>,
}

impl CountedCalls {
    fn count(&self, kind: usize) -> &dyn Store {
        count(&self.calls.0[kind]);
        &*self.inner
    }
}

impl Store for CountedCalls {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.count(PUT).put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.count(PUT).put(name, bytes)
    }

    /// One request for each part, one for the begin, and one for the end.
    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        count(&self.calls.0[PUT]);
        let mut counted = parts.inspect(|_| count(&self.calls.0[PUT]));
        self.count(PUT).put_parts(name, &mut counted)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.count(GET).get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.count(GET).get_range(name, range)
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.count(LIST).list(dir)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.count(DELETE).delete(name)
    }
}

#[cfg(test)]
mod tests {
    use remote::Remote;

    use super::*;

    #[test]
    fn requests_and_their_price_are_counted() {
        let inner = Remote::memory().unwrap().store();
        let calls = Arc::<StorageCalls>::default();
        let store = CountedCalls { inner, calls: calls.clone() };
        store.put("a/1", b"x").unwrap();
        assert!(!store.put_if_absent("a/1", b"y").unwrap());
        let part = vec![0; 8 << 20];
        store.put_parts("a/2", &mut [Ok(part.clone()), Ok(part)].into_iter()).unwrap();
        store.get("a/1").unwrap();
        store.get_range("a/1", 0..1).unwrap();
        store.list("a").unwrap();
        store.delete("a/1").unwrap();
        let rows: Vec<_> = calls.rows().collect();
        let counts: Vec<_> = rows.iter().map(|(kind, calls, _)| (*kind, *calls)).collect();
        assert_eq!(counts, [("put", 6), ("get", 2), ("list", 1), ("delete", 1)]);
        let dollars: f64 = rows.iter().map(|(.., dollars)| dollars).sum();
        assert!((dollars - 35.8e-6).abs() < 1e-12, "{dollars}");
    }
}

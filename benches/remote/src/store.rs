//! [`Meter`]: a store that counts requests and bytes, and waits before each request. Both engines use it.

use std::fmt;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

#[derive(Default)]
struct Counters {
    puts: AtomicU64,
    journal_puts: AtomicU64,
    put_bytes: AtomicU64,
    gets: AtomicU64,
    got_bytes: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
}

/// Requests and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) puts: u64,
    /// Those of puts of siltstone's journal, or of SlateDB's log.
    pub(crate) journal_puts: u64,
    pub(crate) put_bytes: u64,
    pub(crate) gets: u64,
    pub(crate) got_bytes: u64,
    pub(crate) lists: u64,
    pub(crate) deletes: u64,
}

impl Sub for Figures {
    type Output = Figures;

    fn sub(self, other: Figures) -> Figures {
        Figures {
            puts: self.puts - other.puts,
            journal_puts: self.journal_puts - other.journal_puts,
            put_bytes: self.put_bytes - other.put_bytes,
            gets: self.gets - other.gets,
            got_bytes: self.got_bytes - other.got_bytes,
            lists: self.lists - other.lists,
            deletes: self.deletes - other.deletes,
        }
    }
}

struct Shared {
    counters: Counters,
    delay_micros: AtomicU64,
}

impl Shared {
    fn add(&self, counter: impl Fn(&Counters) -> &AtomicU64, count: u64) {
        counter(&self.counters).fetch_add(count, Ordering::Relaxed);
    }

    async fn wait(&self) {
        let micros = self.delay_micros.load(Ordering::Relaxed);
        if micros > 0 {
            tokio::time::sleep(Duration::from_micros(micros)).await;
        }
    }
}

/// A store that counts, and waits before each request.
#[derive(Clone)]
pub(crate) struct Meter {
    inner: Arc<dyn ObjectStore>,
    shared: Arc<Shared>,
}

impl Meter {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Meter {
        let (counters, delay_micros) = Default::default();
        Meter { inner, shared: Arc::new(Shared { counters, delay_micros }) }
    }

    /// The same counters and delay in front of another client.
    pub(crate) fn with(&self, inner: Arc<dyn ObjectStore>) -> Meter {
        Meter { inner, shared: self.shared.clone() }
    }

    pub(crate) fn set_delay(&self, millis: u64) {
        self.shared.delay_micros.store(millis * 1000, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> Figures {
        let it = &self.shared.counters;
        Figures {
            puts: it.puts.load(Ordering::Relaxed),
            journal_puts: it.journal_puts.load(Ordering::Relaxed),
            put_bytes: it.put_bytes.load(Ordering::Relaxed),
            gets: it.gets.load(Ordering::Relaxed),
            got_bytes: it.got_bytes.load(Ordering::Relaxed),
            lists: it.lists.load(Ordering::Relaxed),
            deletes: it.deletes.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("meter")
    }
}

#[async_trait]
impl ObjectStore for Meter {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.shared.add(|it| &it.puts, 1);
        if location.as_ref().contains("/journal/") || location.as_ref().contains("/wal/") {
            self.shared.add(|it| &it.journal_puts, 1);
        }
        self.shared.add(|it| &it.put_bytes, payload.content_length() as u64);
        self.shared.wait().await;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.shared.add(|it| &it.puts, 1);
        self.shared.wait().await;
        let inner = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(MeteredUpload { inner, shared: self.shared.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.shared.add(|it| &it.gets, 1);
        self.shared.wait().await;
        let is_head = options.head;
        let got = self.inner.get_opts(location, options).await?;
        if !is_head {
            self.shared.add(|it| &it.got_bytes, got.range.end - got.range.start);
        }
        Ok(got)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let shared = self.shared.clone();
        let counted = locations.inspect(move |_| shared.add(|it| &it.deletes, 1)).boxed();
        let deleted = self.inner.delete_stream(counted);
        let shared = self.shared.clone();
        stream::once(async move { shared.wait().await })
            .flat_map(|()| stream::empty())
            .chain(deleted)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.add(|it| &it.lists, 1);
        let listed = self.inner.list(prefix);
        let shared = self.shared.clone();
        stream::once(async move { shared.wait().await })
            .flat_map(|()| stream::empty())
            .chain(listed)
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.add(|it| &it.lists, 1);
        self.shared.wait().await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.add(|it| &it.puts, 1);
        self.shared.wait().await;
        self.inner.copy_opts(from, to, options).await
    }
}

struct MeteredUpload {
    inner: Box<dyn MultipartUpload>,
    shared: Arc<Shared>,
}

impl fmt::Debug for MeteredUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeteredUpload")
    }
}

#[async_trait]
impl MultipartUpload for MeteredUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.shared.add(|it| &it.puts, 1);
        self.shared.add(|it| &it.put_bytes, data.content_length() as u64);
        let part = self.inner.put_part(data);
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.wait().await;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.shared.add(|it| &it.puts, 1);
        self.shared.wait().await;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

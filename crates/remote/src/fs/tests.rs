//! A sync, and an append during it.

use lsm_core::fs::MemFs;

use super::*;
use crate::opening::{ClaimedFolder, claim};
use crate::settings::{Ack, Settings};
use crate::store::{ObjectStoreCalls, SystemTimer};

/// A log. While it is synced another thread stores its bytes, and appends to another log.
struct BusyLog {
    file: Arc<dyn File>,
    shipper: Arc<Shipper>,
}

impl File for BusyLog {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.shipper.tend()?;
        let create = StoredChange::Create { name: "2.wal".into() };
        self.shipper.note(NotedChange::Whole(create));
        self.shipper.note_append("2.wal", 0, &[b"later"]);
        self.file.sync()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.file.preallocate(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.file.punch(offset, len)
    }
}

fn settings() -> Settings {
    let memory = Arc::new(object_store::memory::InMemory::new());
    Settings {
        seal: None,
        store: Arc::new(ObjectStoreCalls::new(memory, "".into()).unwrap()),
        timer: Arc::new(SystemTimer::new()),
        fs: Arc::new(MemFs::new()),
        ack: Ack::Stored,
        interval: Duration::from_secs(3600),
        patience: Duration::from_secs(1),
        backlog_bytes: 1 << 20,
        cache_bytes: 0,
        disk: None,
        is_stepped: true,
        restore_rate: 0,
        retention: Duration::MAX,
        grace: Duration::ZERO,
        read_lease: Duration::ZERO,
        lease: None,
        url: None,
    }
}

#[test]
fn a_sync_does_not_wait_for_the_put_of_a_later_append() {
    let settings = settings();
    let root = PathBuf::from("/db");
    let ClaimedFolder { shipper, cache, lock } = claim(&settings, &root, false).unwrap();
    let restorer = Arc::new(FileRestorer::new(&settings, &shipper));
    let inner = settings.fs.clone();
    let path = root.join("1.wal");
    let local = inner.open_append(&path, AppendMode::IfAbsent).unwrap();
    let file = Arc::new(BusyLog { file: local, shipper: shipper.clone() });
    let fs = ShippingFs {
        inner,
        root,
        shipper: shipper.clone(),
        cache,
        restorer,
        backlog_bytes: settings.backlog_bytes,
        _lock: lock.into(),
    };
    fs.note(StoredChange::Create { name: "1.wal".into() });
    let log = fs.file(&path, ("1.wal".into(), FileClass::Log), file, 0);
    log.append(b"a commit").unwrap();
    log.sync().unwrap();
    assert_eq!(shipper.written("1.wal"), Some(8), "the commit is stored");
    assert_eq!(shipper.waiting_bytes(), 64 + 5, "the later append waits for its own sync");
}

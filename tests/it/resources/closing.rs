//! A close by a listener, on a thread that databases share.

use super::*;

/// Closes a database on the thread of the pool that reports a flush to it.
struct Closes(std::sync::Mutex<Option<Db>>);

impl EventListener for Closes {
    fn on_event(&self, event: &Event) {
        if !matches!(event, Event::Flushed { .. }) {
            return;
        }
        // A statement of its own: a close under the lock would wait for a thread that delivers another event here.
        let db = self.0.lock().unwrap().take();
        if let Some(db) = db {
            db.close().unwrap();
        }
    }
}

#[test]
fn a_listener_may_close_a_database_on_a_thread_that_it_shares() {
    let options = ResourceOptions::new().write_buffer_bytes(32 << 10);
    let resources = Resources::new(options.flush_threads(1).compaction_threads(1)).unwrap();
    let closes = Arc::new(Closes(std::sync::Mutex::default()));
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).resources(&resources);
    let db = builder.listener(closes.clone()).open().unwrap();
    let p = default_of(&db);
    *closes.0.lock().unwrap() = Some(db);
    while p.put("key", [0; 1000]).is_ok() {}
    assert_eq!(p.put("key", "").unwrap_err().kind(), ErrorKind::Closed);
    let other = open(&resources);
    fill(&default_of(&other), 1, 200);
    other.wait_idle().unwrap();
    assert!(other.stats().flush_count > 0);
}

/// Its first call waits until the database is being closed, and closes it as well.
struct ClosesDuringClose {
    db: std::sync::Mutex<Option<Db>>,
    begun: std::sync::mpsc::SyncSender<()>,
}

impl EventListener for ClosesDuringClose {
    fn on_event(&self, event: &Event) {
        if !matches!(event, Event::Flushed { .. }) {
            return;
        }
        let db = self.db.lock().unwrap().take();
        if let Some(db) = db {
            self.begun.send(()).unwrap();
            let p = default_of(&db);
            while p.get("key").is_ok() {
                std::thread::yield_now();
            }
            db.close().unwrap();
        }
    }
}

/// The one close waits for the thread of the listener, which must not wait for the close.
#[test]
fn a_close_in_a_listener_waits_for_no_other_close() {
    let (begun, in_listener) = std::sync::mpsc::sync_channel(1);
    let closes = Arc::new(ClosesDuringClose { db: std::sync::Mutex::default(), begun });
    let options = ResourceOptions::new().write_buffer_bytes(32 << 10);
    let resources = Resources::new(options.flush_threads(1).compaction_threads(1)).unwrap();
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).resources(&resources);
    let db = builder.listener(closes.clone()).open().unwrap();
    *closes.db.lock().unwrap() = Some(db.clone());
    let p = default_of(&db);
    // It waits for the thread that flushes until the close.
    let writer = std::thread::spawn(move || while p.put("key", [0; 1000]).is_ok() {});
    in_listener.recv().unwrap();
    db.close().unwrap();
    writer.join().unwrap();
    let other = open(&resources);
    fill(&default_of(&other), 1, 200);
    other.wait_idle().unwrap();
    assert!(other.stats().flush_count > 0);
}

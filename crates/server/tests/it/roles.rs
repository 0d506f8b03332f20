//! Readers that refuse writes, promotions, and databases in a bucket.

use std::path::Path;
use std::time::Duration;

use remote::Remote;
use server::{Acknowledge, Options, Place, Role, Server};
use siltstone::clock::{Clock, SystemClock};

use crate::client::{self, Client, options, primary, reader};
use crate::commands::check;

#[test]
fn a_reader_names_the_primary_and_is_promoted_while_its_connections_stay() {
    let folder = tempfile::tempdir().unwrap();
    let old = primary(folder.path());
    let mut options = options();
    options.follow = Some(std::time::Duration::from_millis(1));
    let new = Server::start(Place::folder(folder.path()), Role::Reader, options).unwrap();
    let mut before = Client::new(&old);
    let mut after = Client::new(&new);
    check(&mut before, &[("SET a 1", "OK"), ("SCID.TOKEN", "1-~")]);
    let token = before.text("SCID.TOKEN");
    let address = old.address().to_string();
    // The address comes with the next sync.
    while !after.text("SET a 2").ends_with(&address) {
        assert!(after.text("SET a 2").starts_with("-READONLY"));
    }
    check(&mut after, &[("SCID.PROMOTE", "~"), ("SET a 2", "OK"), ("SCID.PROMOTE", "~")]);
    // A token of the epoch before is known, and one that no commit has is not.
    check(
        &mut after,
        &[(&format!("SCID.GET a TOKEN {token}"), "2"), ("SCID.GET a TOKEN 1-99", "-SESSIONLOST~")],
    );
    let address = new.address().to_string();
    check(&mut before, &[("GET a", "2"), (&format!("SCID.GET a TOKEN {token}"), "2")]);
    assert!(before.text("SET a 3").ends_with(&address), "{}", before.text("SET a 3"));
    let newest = after.text("SCID.TOKEN");
    check(&mut before, &[(&format!("SCID.GET a TOKEN {newest}"), "2")]);
    // And back.
    check(&mut before, &[("SCID.PROMOTE", "~"), ("INCR a", "3")]);
    check(
        &mut after,
        &[("GET a", "3"), ("MULTI", "OK"), ("SET a 9", "-READONLY~"), ("EXEC", "-EXECABORT~")],
    );
    old.stop().unwrap();
    new.stop().unwrap();
}

#[test]
fn a_reader_waits_at_its_start_for_a_primary_to_make_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("db");
    let bucket = Remote::url(&format!("file://{}", folder.path().join("bucket").display()));
    let bucket = bucket.unwrap();
    for (place, at_primary) in [
        (Place::folder(&local), Place::folder(&local)),
        (
            Place::bucket(bucket.clone(), None),
            Place::bucket(bucket, Some(folder.path().join("own"))),
        ),
    ] {
        assert!(Server::start(place.clone(), Role::Reader, options()).is_err(), "there is none");
        let options = Options { start_wait: Duration::from_secs(60), ..options() };
        let starting =
            std::thread::spawn(move || Server::start(place, Role::Reader, options).unwrap());
        let options = Options { acknowledge: Acknowledge::Sync, ..client::options() };
        let first = Server::start(at_primary, Role::Primary, options).unwrap();
        let reader = starting.join().unwrap();
        check(&mut Client::new(&first), &[("SET a 1", "OK")]);
        check(&mut Client::new(&reader), &[("SCID.GET a LEVEL 1", "1")]);
        reader.stop().unwrap();
        first.stop().unwrap();
    }
}

/// The primary alone was given the option.
#[test]
fn a_reader_and_the_next_primary_know_which_entries_expire() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.expiring = vec!["sessions".to_owned()];
    let old = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let new = reader(folder.path());
    let mut client = Client::new(&new);
    check(&mut client, &[("SELECT sessions", "OK"), ("SCID.GET a LEVEL 1", "nil")]);
    let timed = "SET a admin EX 1000";
    check(&mut Client::new(&old), &[("SELECT sessions", "OK"), (timed, "OK"), ("GET a", "admin")]);
    check(&mut client, &[("GET a", "admin"), ("SCID.PROMOTE", "~"), ("GET a", "admin")]);
    check(&mut client, &[("SET b author EX 1000", "OK"), ("GET b", "author"), ("STRLEN b", "6")]);
    old.stop().unwrap();
    new.stop().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(&mut client, &[("SELECT sessions", "OK"), ("GET a", "admin"), ("GET b", "author")]);
    server.stop().unwrap();
}

#[test]
fn a_transaction_over_a_promotion_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let old = primary(folder.path());
    let new = reader(folder.path());
    let mut client = Client::new(&old);
    check(
        &mut client,
        &[("SET a 1", "OK"), ("WATCH a", "OK"), ("MULTI", "OK"), ("INCR a", "QUEUED")],
    );
    check(&mut Client::new(&new), &[("SCID.PROMOTE", "~")]);
    check(
        &mut client,
        &[("EXEC", "-READONLY~"), ("EXEC", "-ERR EXEC without MULTI"), ("GET a", "1")],
    );
    check(&mut client, &[("SCID.PROMOTE", "~"), ("WATCH a", "OK")]);
    check(&mut Client::new(&new), &[("SET a 2", "-READONLY~"), ("SCID.PROMOTE", "~")]);
    check(
        &mut client,
        &[("GET a", "1"), ("SCID.PROMOTE", "~"), ("MULTI", "OK"), ("GET a", "QUEUED")],
    );
    // What was watched under another primary is not known to be the same.
    check(&mut client, &[("EXEC", "nil"), ("MULTI", "OK"), ("GET a", "QUEUED"), ("EXEC", "[1]")]);
    new.stop().unwrap();
    old.stop().unwrap();
}

#[test]
fn a_primary_that_was_taken_over_is_promoted_again() {
    let folder = tempfile::tempdir().unwrap();
    let old = primary(folder.path());
    let new = reader(folder.path());
    check(&mut Client::new(&new), &[("SCID.PROMOTE", "~"), ("SET a 1", "OK")]);
    // It has not noticed yet.
    let mut client = Client::new(&old);
    check(&mut client, &[("SCID.PROMOTE", "~"), ("INCR a", "2")]);
    check(&mut Client::new(&new), &[("INCR a", "-READONLY~")]);
    old.stop().unwrap();
    new.stop().unwrap();
}

fn bucket(url: &str, folders: &Path, name: &str) -> Place {
    Place::bucket(Remote::url(url).unwrap(), Some(folders.join(name)))
}

#[test]
fn a_bucket_is_served_and_taken_over() {
    let store = tempfile::tempdir().unwrap();
    let folders = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().display());
    let mut options = options();
    options.acknowledge = Acknowledge::Sync;
    let old = Server::start(bucket(&url, folders.path(), "first"), Role::Primary, options.clone())
        .unwrap();
    let mut before = Client::new(&old);
    check(
        &mut before,
        &[
            ("SET a 1", "OK"),
            ("GET a", "1"),
            ("SCID.LAST", "[level 3~"),
            // It asks the bucket.
            ("SCID.GET a LEVEL 1", "1"),
            ("SCID.LAST", "[level 1~"),
            ("SCID.GET a LEVEL 2 MAXAGE 0", "1"),
            ("SCID.LAST", "[level 2~"),
            ("SCID.GET a LEVEL 4", "1"),
        ],
    );
    // It does not have the commit of this session, so it does not name level 3.
    let mut other = Client::new(&old);
    check(&mut other, &[("GET a", "1"), ("SCID.LAST", "[level 3~"), ("SCID.TOKEN 9-1", "OK")]);
    check(&mut other, &[("GET a", "1"), ("SCID.LAST", "[level 5~"), ("SCID.TOKEN LOST", "OK")]);
    check(&mut other, &[("GET a", "1"), ("SCID.LAST", "[level 5~")]);
    check(&mut other, &[("SCID.GET a PREDICTED 2", "1"), ("SCID.LAST", "[level 5~")]);
    let new = Server::start(bucket(&url, folders.path(), "second"), Role::Reader, options).unwrap();
    let mut after = Client::new(&new);
    check(&mut after, &[("SCID.GET a LEVEL 1", "1"), ("SET a 2", "-READONLY~")]);
    check(&mut before, &[("SET a 2", "OK")]);
    check(&mut after, &[("SCID.GET a LEVEL 1", "2"), ("SCID.PROMOTE", "~"), ("INCR a", "3")]);
    // The old primary finds out with its next write.
    let refused = before.text("SET a 9");
    // It has written nothing, or does not know whether the write is there.
    assert!(refused.starts_with("-UNKNOWN") || refused.starts_with("-READONLY"), "{refused}");
    check(&mut before, &[("SCID.GET a LEVEL 1", "3")]);
    new.stop().unwrap();
    old.stop().unwrap();
}

const LEASE: Duration = Duration::from_millis(1500);

fn leased(url: &str, folders: &Path, name: &str) -> Place {
    let remote = Remote::url(url).unwrap().read_lease(LEASE);
    Place::bucket(remote, Some(folders.join(name)))
}

/// A primary of a bucket that asks nothing of it while its lease holds, and one that has none left.
#[test]
fn a_read_lease_serves_level_1_until_another_primary_may_write() {
    let store = tempfile::tempdir().unwrap();
    let folders = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().display());
    let mut options = options();
    options.acknowledge = Acknowledge::Sync;
    let old = Server::start(leased(&url, folders.path(), "first"), Role::Primary, options.clone())
        .unwrap();
    let new = Server::start(leased(&url, folders.path(), "second"), Role::Reader, options).unwrap();
    let mut before = Client::new(&old);
    let mut after = Client::new(&new);
    let first = "SCID.GET a LEVEL 1";
    check(&mut before, &[("SET a 1", "OK"), ("GET a", "1"), ("SCID.LAST", "[level 1~")]);
    check(&mut before, &[(first, "1"), ("SCID.LAST", "[level 1~"), ("DEL b", "0")]);
    assert!(before.text("INFO").contains("scid_bucket:0"));
    let clock = SystemClock::new();
    check(&mut after, &[(first, "1"), ("SCID.PROMOTE", "~")]);
    assert!(clock.now() >= LEASE, "the claimant waits for the lease");
    check(&mut after, &[("SET a 2", "OK"), (first, "2"), ("SCID.LAST", "[level 1~")]);
    // The old one has heard nothing of it. It must ask, and finds out.
    check(&mut before, &[(first, "2"), ("SCID.LAST", "[level 1~"), ("SET a 3", "-READONLY~")]);
    check(&mut before, &[("EXISTS b", "0"), ("SCID.PROMOTE", "~"), ("SET a 3", "OK")]);
    check(&mut after, &[("SETNX a 4", "-~"), ("SET a 4 NX", "-READONLY~"), (first, "3")]);
    new.stop().unwrap();
    old.stop().unwrap();
}

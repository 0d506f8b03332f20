//! Strong reads of a reader of a bucket, which asks the primary for its newest commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remote::Remote;
use server::{Acknowledge, Options, Place, Role, Server, Users};
use siltstone::clock::{Clock, SystemClock};

use crate::client::{Client, options, until};
use crate::commands::check;
use crate::network::{HOLD, PASS};
use crate::pages::get;
use crate::partitions::Node;

/// The identity of the run of a primary.
pub(crate) fn run(client: &mut Client) -> String {
    let info = client.text("INFO");
    let mut lines = info.lines().filter_map(|line| line.strip_prefix("scid_run:"));
    lines.next().unwrap().to_owned()
}

fn follows(client: &mut Client) {
    until("the reader knows its primary", || client.text("SET x 1").contains("the primary is at"));
}

fn read_strongly(client: &mut Client) {
    check(client, &[("SCID.GET a LEVEL 1", "1"), ("SCID.LAST", "[level 1~")]);
}

/// A read lease that does not end within a test.
const LONG: Duration = Duration::from_secs(60);

/// The bucket of the reader answers nothing for a time.
#[test]
fn a_read_of_a_reader_that_has_the_newest_commit_waits_for_no_bucket() {
    let bucket = Remote::memory().unwrap().store();
    let [primary, reader] =
        [Role::Primary, Role::Reader].map(|role| Node::new(&bucket, role, None, LONG));
    let mut writer = Client::at(primary.link.address);
    let [mut client, mut late] = [(); 2].map(|()| Client::at(reader.link.address));
    check(&mut writer, &[("SET a 1", "OK"), ("SET b 2", "OK")]);
    check(&mut client, &[("SCID.GET a LEVEL 1", "1")]);
    follows(&mut client);
    until("a sync of all partitions", || client.text("SCID.GET b LEVEL 4") == "2");
    reader.store.modes.set(HOLD, HOLD);
    for (level, token) in [("1", "[level 1~"), ("3", "[level 3~"), ("4", "[level 4~")] {
        let read = format!("SCID.GET a LEVEL {level}");
        check(&mut client, &[(&read, "1"), ("SCID.LAST", token)]);
    }
    check(&mut client, &[("GET b", "2"), ("SCID.LAST", "[level 1~"), ("SCID.LEVEL 5", "OK")]);
    check(&mut client, &[("MGET a b", "[1 2]"), ("SCID.LAST", "[level 5~")]);
    let lines = ["SCID.LEVEL 1", "GET a", "GET b", "GET c", "SCID.LAST"];
    let replies = client.pipeline(&lines);
    assert_eq!(replies[1..4], ["1", "2", "nil"]);
    assert!(replies[4].starts_with("[level 1 "), "{replies:?}");
    // It lacks a commit, which the bucket has.
    check(&mut writer, &[("SET a 3", "OK")]);
    for client in [&mut client, &mut late] {
        check(client, &[("SCID.GET a LEVEL 1", "-~")]);
    }
    reader.store.modes.set(PASS, PASS);
    check(&mut client, &[("SCID.GET a LEVEL 1", "3"), ("SCID.LAST", "[level 1~")]);
}

#[test]
fn a_reader_whose_primary_does_not_answer_looks_at_the_bucket() {
    let bucket = Remote::memory().unwrap().store();
    let [mut primary, reader] =
        [Role::Primary, Role::Reader].map(|role| Node::new(&bucket, role, None, LONG));
    let mut client = Client::at(reader.link.address);
    check(&mut Client::at(primary.link.address), &[("SET a 1", "OK")]);
    follows(&mut client);
    let mut failed = 0;
    for ends in [false, true] {
        if ends {
            primary.kill();
        } else {
            primary.link.modes.set(HOLD, HOLD);
        }
        // A promise may last, and after a failure nothing is asked for a second.
        until("a question without an answer", || {
            read_strongly(&mut client);
            questions(reader.server.as_ref().unwrap(), "failed") > failed
        });
        failed = questions(reader.server.as_ref().unwrap(), "failed");
    }
}

/// A clock whose time since boot is set.
struct SetClock(SystemClock, AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(self.1.load(Ordering::Relaxed))
    }
}

#[test]
fn a_promise_of_the_primary_serves_reads_until_its_end() {
    let [store, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let url = format!("file://{}", store.path().display());
    let wait = Duration::from_secs(60);
    let base = Options { acknowledge: Acknowledge::Sync, wait, ..options() };
    let primary = started(&url, Some(&folder), Role::Primary, base.clone());
    let clock = Arc::new(SetClock(SystemClock::new(), AtomicU64::new(0)));
    let follow = Some(Duration::from_millis(20));
    let http = Some("127.0.0.1:0".to_owned());
    let of_reader = Options { follow, http, clock: clock.clone(), ..base };
    let reader = started(&url, None, Role::Reader, of_reader);
    let [mut writer, mut client] = [&primary, &reader].map(Client::new);
    check(&mut writer, &[("SET a 1", "OK")]);
    follows(&mut client);
    // The primary promises nothing while it puts something.
    until("a read that asks nothing", || {
        let before = questions(&reader, "answered");
        read_strongly(&mut client);
        before > 0 && questions(&reader, "answered") == before
    });
    let before = questions(&reader, "answered");
    (0..20).for_each(|_| read_strongly(&mut client));
    assert_eq!(questions(&reader, "answered"), before);
    clock.1.store(1, Ordering::Relaxed);
    read_strongly(&mut client);
    assert!(questions(&reader, "answered") > before);
    reader.stop().unwrap();
    primary.stop().unwrap();
}

fn started(url: &str, folder: Option<&tempfile::TempDir>, role: Role, options: Options) -> Server {
    let remote = Remote::url(url).unwrap().interval(Duration::from_millis(20));
    let lease = if role == Role::Primary { options.wait } else { Duration::ZERO };
    let folder = folder.map(|it| it.path().join("db"));
    Server::start(Place::bucket(remote.read_lease(lease), folder), role, options).unwrap()
}

/// The outcomes of the questions of a reader.
fn questions(reader: &Server, outcome: &str) -> u64 {
    let text = get(reader.http_address().unwrap(), "/metrics");
    let name = format!("siltstone_server_newest_questions_total{{outcome=\"{outcome}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

#[test]
fn a_reader_asks_a_primary_with_a_lease_and_as_a_user_that_it_knows() {
    for (login, lease, expected) in [
        (Some(("ann", "secret")), 60, "answered"),
        (Some(("ann", "wrong")), 60, "failed"),
        (None, 60, "failed"),
        (Some(("ann", "secret")), 0, "failed"),
    ] {
        let [store, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let url = format!("file://{}", store.path().display());
        let base = Options {
            users: Users::parse("ann secret write=*").unwrap(),
            acknowledge: Acknowledge::Sync,
            wait: Duration::from_secs(lease),
            ..options()
        };
        let primary = started(&url, Some(&folder), Role::Primary, base.clone());
        let login = login.map(|(name, word)| (name.to_owned(), word.to_owned()));
        let follow = Some(Duration::from_millis(20));
        let http = Some("127.0.0.1:0".to_owned());
        let wait = Duration::from_secs(60);
        let reader =
            started(&url, None, Role::Reader, Options { login, follow, http, wait, ..base });
        let [mut writer, mut client] = [&primary, &reader].map(Client::new);
        check(&mut writer, &[("AUTH ann secret", "OK"), ("SET a 1", "OK")]);
        check(&mut client, &[("AUTH ann secret", "OK"), ("SCID.GET a LEVEL 1", "1")]);
        follows(&mut client);
        let answered = questions(&reader, expected);
        // One that has failed rests for a second.
        until("a question", || {
            read_strongly(&mut client);
            questions(&reader, expected) > answered
        });
        check(&mut writer, &[("SCID.NEWEST 0", "-UNSUPPORTED~")]);
        check(&mut client, &[("SCID.NEWEST 0", "-READONLY~")]);
        reader.stop().unwrap();
        primary.stop().unwrap();
    }
}

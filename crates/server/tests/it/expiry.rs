//! Partitions whose entries expire: which ones may, and which servers know them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use largeval::LargeValues;
use lsm_core::hooks::{StoreContext, StoreSection, ValueStore, ValueStoreFactory};
use server::{Options, Place, Role, Server};
use siltstone::stream::{StreamExport, StreamImport};
use siltstone::{Db, Error, ErrorKind, Hooks, LargeValueOptions, PartitionOptions, Result};
use siltstone::{TimeUnit, TtlFilter, TtlRule};

use crate::client::{Client, options, primary, reader};
use crate::commands::check;

fn expiring(name: &str) -> Options {
    Options { expiring: vec![name.to_owned()], ..options() }
}

fn start(folder: &Path, role: Role, options: Options) -> Server {
    Server::start(Place::folder(folder), role, options).unwrap()
}

fn start_error(folder: &Path, role: Role, options: Options) -> Error {
    let started = Server::start(Place::folder(folder), role, options);
    started.map(drop).expect_err("the options do not fit the database")
}

/// The error of a start, which names the partition.
fn refused(folder: &Path, role: Role, options: Options) -> String {
    let error = start_error(folder, role, options);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("\"users\" has entries without times"), "{error}");
    error.to_string()
}

/// A value whose first bytes are a time that has passed.
const VALUE: &[u8] = b"\0\0\0\0\0\0\0\x01admin";

/// A database of another program, with the value in its partition `users`.
fn foreign(folder: &Path) {
    let db = Db::open(folder).unwrap();
    db.partition("users").unwrap().put("alice", VALUE).unwrap();
    db.close().unwrap();
}

#[test]
fn a_partition_with_entries_of_another_program_gets_no_rule() {
    let folder = tempfile::tempdir().unwrap();
    foreign(folder.path());
    let text = refused(folder.path(), Role::Primary, expiring("users"));
    assert!(text.contains("--expire takes a partition that is new"), "{text}");
    refused(folder.path(), Role::Reader, expiring("users"));
    // Also if others are allowed: nothing is done before all are decided.
    let both = Options { expiring: vec!["new".to_owned(), "users".to_owned()], ..options() };
    refused(folder.path(), Role::Primary, both);
    let db = Db::open(folder.path()).unwrap();
    let users = db.partition("users").unwrap();
    users.flush().unwrap();
    users.compact(..).unwrap();
    assert_eq!(users.get("alice").unwrap().as_deref(), Some(VALUE));
    assert!(users.filters().is_empty() && !db.has_partition("new"));
    assert_eq!(db.partition("scid").unwrap().prefix("expires/").count(), 0);
    drop(users);
    db.close().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(&mut client, &[("SELECT users", "OK"), ("STRLEN alice", "13")]);
    server.stop().unwrap();
}

#[test]
fn an_empty_partition_gets_the_rule_and_keeps_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    let own = PartitionOptions::new().bloom_bits_per_key(14);
    let users = db.partition_with("users", own).unwrap();
    users.put("gone", VALUE).unwrap();
    users.delete("gone").unwrap();
    drop(users);
    db.close().unwrap();
    for value in ["1", "2"] {
        // The second time it has entries, and the rule.
        let server = start(folder.path(), Role::Primary, expiring("users"));
        let mut client = Client::new(&server);
        check(&mut client, &[("SELECT users", "OK"), (&format!("SET a {value} EX 1000"), "OK")]);
        check(&mut client, &[("GET a", value), ("GET gone", "nil")]);
        server.stop().unwrap();
    }
    let db = Db::open(folder.path()).unwrap();
    let users = db.partition("users").unwrap();
    assert_eq!((users.filters().len(), users.options().get_bloom_bits_per_key()), (1, 14));
}

#[test]
fn a_partition_keeps_what_a_program_has_set() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    let rule = TtlFilter::stored(&TtlRule::in_key(0));
    db.partition_with("users", PartitionOptions::new().filter(Arc::new(rule))).unwrap();
    let own = PartitionOptions::new().bloom_bits_per_key(14);
    db.partition_with("small", own.clone()).unwrap();
    let above = LargeValueOptions::default().threshold_bytes(1 << 20);
    db.partition_with("large", own.large_values(above)).unwrap();
    db.close().unwrap();
    let error = start_error(folder.path(), Role::Primary, expiring("users"));
    assert!(error.to_string().contains("has the filter \"ttl\" of another program"), "{error}");
    let large_values = vec!["small".to_owned(), "large".to_owned()];
    start(folder.path(), Role::Primary, Options { large_values, ..options() }).stop().unwrap();
    let db = Db::open(folder.path()).unwrap();
    for (name, expected) in [("small", LargeValueOptions::default()), ("large", above)] {
        let partition = db.partition(name).unwrap();
        assert_eq!(partition.options().get_bloom_bits_per_key(), 14, "{name}");
        assert_eq!(partition.large_value_options(), Some(expected), "{name}");
    }
}

#[test]
fn the_notes_are_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    for options in
        [expiring("scid"), Options { large_values: vec!["scid".to_owned()], ..options() }]
    {
        let error = start_error(folder.path(), Role::Primary, options);
        assert!(error.to_string().contains("\"scid\" is that of the server"), "{error}");
    }
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(
        &mut client,
        &[
            ("SELECT scid", "OK"),
            ("SET expires/default x", "-NOPERM~"),
            ("DEL primary", "-NOPERM~"),
            ("GET primary", &server.address().to_string()),
            ("MULTI", "OK"),
            ("MSET expires/default x a b", "-NOPERM~"),
            ("EXEC", "-EXECABORT~"),
            ("DBSIZE", "2"),
        ],
    );
    server.stop().unwrap();
    primary(folder.path()).stop().unwrap();
}

/// Also without the option: the note of an earlier primary is not enough.
#[test]
fn a_noted_partition_that_another_program_made_again_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    start(folder.path(), Role::Primary, expiring("users")).stop().unwrap();
    let db = Db::open(folder.path()).unwrap();
    db.drop_partition("users").unwrap();
    db.partition("users").unwrap().put("alice", VALUE).unwrap();
    db.close().unwrap();
    let text = refused(folder.path(), Role::Primary, options());
    assert!(text.contains("delete the key \"expires/users\" of partition \"scid\""), "{text}");
    let db = Db::open(folder.path()).unwrap();
    assert_eq!(db.partition("users").unwrap().get("alice").unwrap().as_deref(), Some(VALUE));
    db.partition("scid").unwrap().delete("expires/users").unwrap();
    db.close().unwrap();
    primary(folder.path()).stop().unwrap();
}

/// The program goes on: a takeover would leave no one who writes.
#[test]
fn a_reader_takes_nothing_over_for_a_noted_partition_that_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    start(folder.path(), Role::Primary, expiring("users")).stop().unwrap();
    let db = Db::open(folder.path()).unwrap();
    db.drop_partition("users").unwrap();
    let users = db.partition("users").unwrap();
    users.put("alice", VALUE).unwrap();
    let reader = reader(folder.path());
    let text = Client::new(&reader).text("SCID.PROMOTE");
    assert!(text.starts_with('-') && text.contains("expires/users"), "{text}");
    users.put("bob", VALUE).unwrap();
    reader.stop().unwrap();
}

#[test]
fn a_partition_that_expires_and_is_to_be_large_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    let rule = TtlFilter::stored(&TtlRule::in_value(0).unit(TimeUnit::Millis));
    db.partition_with("users", PartitionOptions::new().filter(Arc::new(rule))).unwrap();
    db.close().unwrap();
    let large = Options { large_values: vec!["users".to_owned()], ..options() };
    let error = start_error(folder.path(), Role::Primary, large);
    assert!(error.to_string().contains("\"users\" expire, and cannot be large"), "{error}");
    let db = Db::open(folder.path()).unwrap();
    assert_eq!(db.partition("scid").unwrap().iter().count(), 0);
}

/// A value store of another program.
struct Foreign(LargeValues);

impl ValueStoreFactory for Foreign {
    fn name(&self) -> &'static str {
        "foreign"
    }

    fn threshold_bytes(&self) -> u64 {
        self.0.threshold_bytes()
    }

    fn open(
        &self,
        context: StoreContext,
        sections: &[StoreSection],
    ) -> Result<Arc<dyn ValueStore>> {
        self.0.open(context, sections)
    }
}

#[test]
fn a_partition_of_another_program_that_cannot_be_opened_stops_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    let store = Foreign(LargeValues::new(LargeValueOptions::new()).unwrap());
    let hooks = Hooks::new().value_store(Arc::new(store));
    db.partition_with("media", PartitionOptions::new().hooks(hooks))
        .unwrap()
        .put("a", "b")
        .unwrap();
    db.close().unwrap();
    let server = start(folder.path(), Role::Primary, expiring("users"));
    let mut client = Client::new(&server);
    check(&mut client, &[("SET a 2", "OK"), ("SELECT users", "OK"), ("SET a x EX 1000", "OK")]);
    let refusal = client.text("SELECT media");
    assert!(refusal.contains("foreign") || client.text("GET a").contains("foreign"), "{refusal}");
    server.stop().unwrap();
    let error = start_error(folder.path(), Role::Primary, expiring("media"));
    assert!(error.to_string().contains("foreign"), "{error}");
}

/// It knows the partition from before, and follows nothing by itself.
#[test]
fn a_reader_knows_the_rule_as_of_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    db.partition("users").unwrap();
    db.close().unwrap();
    let old = primary(folder.path());
    let reader = reader(folder.path());
    let mut client = Client::new(&reader);
    check(&mut client, &[("SELECT users", "OK"), ("SCID.GET a LEVEL 1", "nil")]);
    old.stop().unwrap();
    let new = start(folder.path(), Role::Primary, expiring("users"));
    check(&mut Client::new(&new), &[("SELECT users", "OK"), ("SET a admin EX 1000", "OK")]);
    check(&mut client, &[("SCID.GET a LEVEL 1", "admin"), ("GET a", "admin"), ("STRLEN a", "5")]);
    new.stop().unwrap();
    reader.stop().unwrap();
}

/// The reader has the option, and the primary does not. What it reads has no times.
#[test]
fn a_reader_takes_nothing_over_for_a_rule_that_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let old = primary(folder.path());
    let new = start(folder.path(), Role::Reader, expiring("users"));
    let mut client = Client::new(&old);
    check(&mut client, &[("SELECT users", "OK"), ("SET alice administrator", "OK")]);
    let mut other = Client::new(&new);
    check(&mut other, &[("SELECT users", "OK"), ("SCID.GET alice LEVEL 1", "administrator")]);
    let text = other.text("SCID.PROMOTE");
    assert!(text.starts_with('-') && text.contains("entries without times"), "{text}");
    check(&mut client, &[("SET alice author", "OK")]);
    check(&mut other, &[("SCID.GET alice LEVEL 1", "author"), ("SET alice x", "-READONLY~")]);
    new.stop().unwrap();
    old.stop().unwrap();
}

/// A database with what a stream brings of one whose primary had the option: entries and the note, and no rule.
fn imported(folder: &Path) {
    let from = tempfile::tempdir().unwrap();
    let server = start(from.path(), Role::Primary, expiring("users"));
    let mut client = Client::new(&server);
    check(&mut client, &[("SELECT users", "OK"), ("SET a admin EX 1000", "OK"), ("SET b x", "OK")]);
    server.stop().unwrap();
    let mut stream = Vec::new();
    Db::open(from.path()).unwrap().export_stream(&mut stream, &StreamExport::new()).unwrap();
    let db = Db::open(folder).unwrap();
    db.import_stream(&stream[..], &StreamImport::new()).unwrap();
    assert!(db.partition("users").unwrap().filters().is_empty());
    db.close().unwrap();
}

#[test]
fn a_noted_partition_that_was_imported_gets_its_rule_again() {
    let folder = tempfile::tempdir().unwrap();
    imported(folder.path());
    start(folder.path(), Role::Reader, options()).stop().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(&mut client, &[("SELECT users", "OK"), ("GET a", "admin"), ("GET b", "x")]);
    server.stop().unwrap();
    let db = Db::open(folder.path()).unwrap();
    assert_eq!(db.partition("users").unwrap().filters().len(), 1);
}

/// One that a primary may have stored, for what its bytes say; and one without a note.
#[test]
fn an_operator_confirms_that_entries_have_times() {
    let late = [&u64::MAX.to_be_bytes()[..], b"author"].concat();
    for is_noted in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        imported(folder.path());
        let db = Db::open(folder.path()).unwrap();
        db.partition("users").unwrap().put("late", &late).unwrap();
        if !is_noted {
            db.partition("scid").unwrap().delete("expires/users").unwrap();
        }
        db.close().unwrap();
        let text = refused(folder.path(), Role::Primary, expiring("users"));
        assert!(text.contains("--expire-stored users says that they are"), "{text}");
        let confirmed = Options { expiring_stored: vec!["users".to_owned()], ..options() };
        start(folder.path(), Role::Reader, confirmed.clone()).stop().unwrap();
        start(folder.path(), Role::Primary, confirmed).stop().unwrap();
        let server = primary(folder.path());
        let mut client = Client::new(&server);
        check(&mut client, &[("SELECT users", "OK"), ("GET a", "admin"), ("GET late", "author")]);
        server.stop().unwrap();
    }
}

#[test]
fn a_primary_knows_the_rule_that_a_program_has_stored() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    let rule = TtlFilter::stored(&TtlRule::in_value(0).unit(TimeUnit::Millis));
    db.partition_with("users", PartitionOptions::new().filter(Arc::new(rule))).unwrap();
    db.close().unwrap();
    let server = primary(folder.path());
    let reader = reader(folder.path());
    let mut client = Client::new(&server);
    check(&mut client, &[("SELECT users", "OK"), ("SET a administrator", "OK")]);
    check(&mut client, &[("GET a", "administrator"), ("SET b x EX 1000", "OK")]);
    let level = "SCID.GET a LEVEL 1";
    check(&mut Client::new(&reader), &[("SELECT users", "OK"), (level, "administrator")]);
    reader.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn an_empty_partition_with_large_values_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let large = Options { large_values: vec!["users".to_owned()], ..options() };
    let old = start(folder.path(), Role::Primary, large);
    let error = start_error(folder.path(), Role::Reader, expiring("users"));
    assert!(error.to_string().contains("\"users\" has large values"), "{error}");
    check(&mut Client::new(&old), &[("SET a 2", "OK")]);
    old.stop().unwrap();
    let error = start_error(folder.path(), Role::Primary, expiring("users"));
    assert!(error.to_string().contains("\"users\" has large values"), "{error}");
    primary(folder.path()).stop().unwrap();
}

/// The other way round: the partition has the rule, and the reader would give it large values.
#[test]
fn a_reader_takes_nothing_over_for_large_values_that_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let old = start(folder.path(), Role::Primary, expiring("users"));
    let large = Options { large_values: vec!["users".to_owned()], ..options() };
    let error = start_error(folder.path(), Role::Reader, large);
    assert!(error.to_string().contains("\"users\" expire, and cannot be large"), "{error}");
    old.stop().unwrap();
}

/// The longest wait there is, and no wait for what no wait mends.
#[test]
fn wrong_options_end_the_start_of_a_reader_before_its_wait() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { start_wait: Duration::MAX, ..expiring("scid") };
    let absent = Place::folder(folder.path().join("db"));
    let Err(error) = Server::start(absent, Role::Reader, options) else {
        panic!("the partition is that of the server")
    };
    assert!(error.to_string().contains("\"scid\" is that of the server"), "{error}");
    primary(folder.path()).stop().unwrap();
    let options = Options { start_wait: Duration::MAX, ..crate::client::options() };
    start(folder.path(), Role::Reader, options).stop().unwrap();
}

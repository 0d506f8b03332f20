//! Exports as commands of Redis: read back here, and loaded into a real redis-server.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(clippy::disallowed_methods, reason = "exports are outside every database")]

mod runner;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use runner::{ended, siltstone};
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Db, LargeValueOptions, PartitionOptions, TimeUnit, TtlFilter, TtlRule};
use testkit::Rng;

/// By the key in Redis: the value, and the time of expiry.
type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// Longer than a piece of a value on its way.
const LARGE_BYTES: usize = (5 << 20) + 7;

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// The time, that much later, in milliseconds.
fn after(seconds: u64) -> u64 {
    SystemClock::new().unix_time().as_millis() as u64 + 1000 * seconds
}

/// A rule over values that begin with a time in this unit.
fn rule(unit: TimeUnit) -> PartitionOptions {
    let rule = TtlRule::in_value(0).unit(unit);
    PartitionOptions::new().filter(Arc::new(TtlFilter::stored(&rule)))
}

/// Makes a database at `path`: `default` has any bytes, `films` large values, `session` the entries of a server with
/// `--expire session`, `lease` times by a rule of a program. Returns what Redis has to hold of all of them.
fn make(path: &Path) -> Entries {
    let mut rng = Rng::from_env_or(11);
    let mut expected = Entries::new();
    let db = Db::open(path).unwrap();
    let default = db.partition("default").unwrap();
    for n in 0..300 {
        let key = random(&mut rng, 1 + n % 50);
        let value = random(&mut rng, n * 13 % 700);
        default.put(&key, &value).unwrap();
        expected.insert([b"default:", &key[..]].concat(), (value, None));
    }
    default.put("\r\n$9", "*3\r\n$3\r\nSET\r\n").unwrap();
    expected.insert(b"default:\r\n$9".to_vec(), (b"*3\r\n$3\r\nSET\r\n".to_vec(), None));
    let large = LargeValueOptions::new().threshold_bytes(1024);
    let films = db.partition_with("films", PartitionOptions::new().large_values(large)).unwrap();
    for (key, len) in [("long", LARGE_BYTES), ("short", 9), ("empty", 0)] {
        let value = random(&mut rng, len);
        films.put(key, &value).unwrap();
        expected.insert(format!("films:{key}").into_bytes(), (value, None));
    }
    let session = db.partition_with("session", rule(TimeUnit::Millis)).unwrap();
    let end = after(10_000);
    for (key, time) in [("a", end), ("b", 0), ("gone", 5), ("late", u64::MAX)] {
        session.put(key, [&time.to_be_bytes()[..], key.as_bytes()].concat()).unwrap();
    }
    session.put("raw", "1234567").unwrap();
    db.partition("scid").unwrap().put("expires/session", "").unwrap();
    expected.insert(b"session:a".to_vec(), (b"a".to_vec(), Some(end)));
    expected.insert(b"session:b".to_vec(), (b"b".to_vec(), None));
    expected.insert(b"session:late".to_vec(), (b"late".to_vec(), Some(i64::MAX as u64)));
    expected.insert(b"session:raw".to_vec(), (b"1234567".to_vec(), None));
    expected.insert(b"scid:expires/session".to_vec(), (Vec::new(), None));
    let lease = db.partition_with("lease", rule(TimeUnit::Seconds)).unwrap();
    let seconds = end / 1000;
    let value = [&seconds.to_be_bytes()[..], b"node"].concat();
    lease.put("a", &value).unwrap();
    lease.put("gone", 5u64.to_be_bytes()).unwrap();
    expected.insert(b"lease:a".to_vec(), (value, Some(seconds * 1000)));
    drop((default, films, session, lease));
    db.close().unwrap();
    expected
}

/// Reads a line, without its end.
fn line(from: &mut dyn BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    from.read_until(b'\n', &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    Some(text.strip_suffix("\r\n")?.to_owned())
}

/// Reads a string of a request or a reply; `None` for nil.
fn string(from: &mut dyn BufRead) -> Option<Vec<u8>> {
    let head = line(from).unwrap();
    let len = head.strip_prefix('$').unwrap_or_else(|| panic!("{head} is no string"));
    if len == "-1" {
        return None;
    }
    let mut bytes = vec![0; len.parse::<usize>().unwrap() + 2];
    from.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
    Some(bytes)
}

/// The entries of an export. Nothing may be in it but commands that set an entry, each once.
fn parsed(file: &Path) -> Entries {
    let mut from = BufReader::new(File::open(file).unwrap());
    let mut entries = Entries::new();
    while let Some(head) = line(&mut from) {
        let count: usize = head.strip_prefix('*').unwrap().parse().unwrap();
        let words: Vec<_> = (0..count).map(|_| string(&mut from).unwrap()).collect();
        let time = match &words[..] {
            [_, _, _] => None,
            [_, _, _, unit, time] if unit == b"PXAT" => {
                Some(std::str::from_utf8(time).unwrap().parse().unwrap())
            }
            _ => panic!("{words:?}"),
        };
        assert_eq!(words[0], b"SET");
        let old = entries.insert(words[1].clone(), (words[2].clone(), time));
        assert!(old.is_none(), "{:?} comes twice", words[1]);
    }
    entries
}

/// Compares, with a second's grace for times that were read through the clock.
#[track_caller]
fn same(found: &Entries, expected: &Entries) {
    let keys: Vec<_> = found.keys().map(|key| key.escape_ascii().to_string()).collect();
    let wanted: Vec<_> = expected.keys().map(|key| key.escape_ascii().to_string()).collect();
    assert_eq!(keys, wanted);
    for (key, (value, time)) in expected {
        let (other, other_time) = &found[key];
        assert!(value == other, "the value of {}", key.escape_ascii());
        let near = time.unwrap_or(0).abs_diff(other_time.unwrap_or(0)) < 1000;
        assert!(near, "{}: {other_time:?} for {time:?}", key.escape_ascii());
    }
}

/// Those of one partition, with its own keys.
fn of(entries: &Entries, partition: &str) -> Entries {
    let begin = format!("{partition}:").into_bytes();
    let own = entries
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(&begin[..])?.to_vec(), value.clone())));
    own.collect()
}

#[test]
fn an_export_for_redis_has_every_entry_and_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let expected = make(&at.join("db"));
    let all = ["export", "db", "all", "--format", "resp", "--all-partitions"];
    let output = ended(at, &all, 0);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("exported {} entries, ", expected.len())), "{text}");
    assert!(text.ends_with("; 3 of them expire\n"), "{text}");
    same(&parsed(&at.join("all")), &expected);
    for name in ["default", "films", "session", "lease"] {
        let args = ["export", "db", name, "--format", "resp", "--partition", name];
        ended(at, &args, 0);
        same(&parsed(&at.join(name)), &of(&expected, name));
    }
    let part = [
        "export",
        "db",
        "-",
        "--format",
        "resp",
        "--partition",
        "films",
        "--from",
        "f",
        "--to",
        "m",
    ];
    let output = ended(at, &part, 0);
    std::fs::write(at.join("part"), output.stdout).unwrap();
    let mut long = of(&expected, "films");
    long.retain(|key, _| key == b"long");
    same(&parsed(&at.join("part")), &long);
    let errors = String::from_utf8(output.stderr).unwrap();
    let bytes = LARGE_BYTES + 4;
    assert!(errors.contains(&format!("exported 1 entries, {bytes} bytes; 0 of them")), "{errors}");
}

#[test]
fn what_redis_could_not_tell_apart_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    db.partition("a").unwrap().put("b:c", "1").unwrap();
    db.partition("a:b").unwrap().put("c", "2").unwrap();
    db.close().unwrap();
    let refused = ended(at, &["export", "db", "x", "--format", "resp", "--all-partitions"], 2);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("keys of partitions \"a\" and \"a:b\""), "{text}");
    assert!(!at.join("x").exists(), "nothing is written");
    let salvage = ended(at, &["export", "db", "x", "--format", "resp", "--salvage"], 2);
    assert!(String::from_utf8(salvage.stderr).unwrap().contains("--format stream"));
    ended(at, &["export", "db", "x", "--format", "resp", "--partition", "none"], 1);
    std::fs::write(at.join("there"), "precious").unwrap();
    ended(at, &["export", "db", "there", "--format", "resp", "--partition", "a"], 1);
    assert_eq!(std::fs::read(at.join("there")).unwrap(), b"precious");
}

/// A redis-server in a folder, at a socket of its own.
struct Redis {
    child: Child,
    /// Open, so that its lines do not end it.
    _lines: BufReader<ChildStdout>,
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It has nothing to keep.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one, and waits until it listens; `None` if there is none here.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn redis(at: &Path) -> Option<Redis> {
    for tool in ["redis-server", "redis-cli"] {
        if Command::new(tool).arg("--version").output().is_err() {
            println!("skipped: {tool} is not installed");
            return None;
        }
    }
    let mut command = Command::new("redis-server");
    command.current_dir(at).args(["--port", "0", "--unixsocket", "socket", "--save", ""]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("ready to accept connections") {
        assert!(lines.read_line(&mut text).unwrap() > 0, "redis-server ended: {text}");
    }
    Some(Redis { child, _lines: lines })
}

/// Sends a request, of words of any bytes.
fn send(stream: &mut UnixStream, words: &[&[u8]]) {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend(format!("${}\r\n", word.len()).into_bytes());
        request.extend([word, &b"\r\n"[..]].concat());
    }
    stream.write_all(&request).unwrap();
}

/// Everything that a database of the server holds.
fn held(at: &Path, database: &str) -> Entries {
    let mut stream = UnixStream::connect(at.join("socket")).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    send(&mut stream, &[b"SELECT", database.as_bytes()]);
    assert_eq!(line(&mut replies).unwrap(), "+OK");
    send(&mut stream, &[b"KEYS", b"*"]);
    let count: usize = line(&mut replies).unwrap()[1..].parse().unwrap();
    let keys: Vec<_> = (0..count).map(|_| string(&mut replies).unwrap()).collect();
    let mut entries = Entries::new();
    for key in keys {
        send(&mut stream, &[b"GET", &key]);
        let value = string(&mut replies).unwrap();
        send(&mut stream, &[b"PEXPIRETIME", &key]);
        let time: i64 = line(&mut replies).unwrap()[1..].parse().unwrap();
        entries.insert(key, (value, u64::try_from(time).ok()));
    }
    entries
}

#[test]
fn redis_server_loads_an_export_and_holds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let Some(_server) = redis(at) else { return };
    let expected = make(&at.join("db"));
    ended(at, &["export", "db", "all", "--format", "resp", "--all-partitions"], 0);
    let exported =
        siltstone(at, &["export", "db", "-", "--format", "resp", "--partition", "films"]);
    std::fs::write(at.join("films"), exported.stdout).unwrap();
    for (database, file) in [("0", "all"), ("3", "films")] {
        let mut command = Command::new("redis-cli");
        command.current_dir(at).args(["-s", "socket", "-n", database, "--pipe"]);
        let loaded = command.stdin(File::open(at.join(file)).unwrap()).output().unwrap();
        let text = String::from_utf8_lossy(&loaded.stdout);
        assert!(loaded.status.success() && text.contains("errors: 0, "), "{text}");
    }
    same(&held(at, "0"), &expected);
    same(&held(at, "3"), &of(&expected, "films"));
}

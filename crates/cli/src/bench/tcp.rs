//! `bench tcp`: the workloads of YCSB on a server that speaks the protocol of Redis, over TCP.
//!
//! Each thread has a connection of its own, and sends a request when the reply to the one before is there, as YCSB does. A
//! record is a string under its key, and an update writes all of it. Redis has no ordered scan over strings, so a scan of
//! `ycsb-e` is an `MGET` of the keys that the first records have in this order.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::bench::run::micros;
use testkit::bench::{Ack, Bench, Engine, Kind, Outcome, Plan, ScanDirection};

use crate::output::{Failure, Output};

/// The longest time for a reply.
const REPLY: Duration = Duration::from_secs(60);
/// The distance of two keys of the first records in key order: see `testkit::workload`.
const KEY_STEP: u64 = 256;
/// Elements of a reply that are read; more are no reply to a request of this file.
const ELEMENTS_MAX: u64 = 1 << 20;
/// The longest value of a reply.
const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Arguments of `bench tcp`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address of the server. Its database is to be empty: records are loaded first, and stay
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Workloads in order, separated by commas; all of `bench` but scan and scan-reverse
    #[arg(long, value_delimiter = ',', default_values = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"])]
    workloads: Vec<Kind>,
    /// Records of the data set
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Operations of each workload, over all connections [default: the records]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Seconds after which a workload ends, even if operations are left
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Bytes of a key, at least 8
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(8..))]
    key_size: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=64 << 20))]
    value_size: u32,
    /// Number of connections, each with a thread
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A server, as one thread reaches it. A clone has a connection of its own, from its first request on.
struct TcpEngine {
    address: String,
    connection: RefCell<Option<Connection>>,
}

/// A connection to a server.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    pub(super) value: Vec<u8>,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server answers {what}"))
}

impl Connection {
    pub(super) fn new(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY))?;
        let stream = BufReader::with_capacity(64 << 10, stream);
        Ok(Connection { stream, request: Vec::new(), value: Vec::new() })
    }

    pub(super) fn send<'a>(
        &mut self,
        words: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        self.request.clear();
        write!(self.request, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.request, "${}\r\n", word.len())?;
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&self.request)
    }

    /// The first byte of a reply, and its number, if it has one.
    fn head(&mut self) -> io::Result<(u8, Option<i64>)> {
        let mut line = Vec::new();
        self.stream.by_ref().take(64 << 10).read_until(b'\n', &mut line)?;
        let [kind, text @ .., b'\r', b'\n'] = &line[..] else {
            return Err(wrong("no whole line"));
        };
        let text = String::from_utf8_lossy(text);
        if *kind == b'-' {
            return Err(wrong(&text));
        }
        Ok((*kind, text.parse().ok()))
    }

    /// Reads a reply that is one value into `value`, and returns whether there is one.
    pub(super) fn value(&mut self) -> io::Result<bool> {
        self.value.clear();
        match self.head()? {
            (b'$', Some(-1)) | (b'_', _) => Ok(false),
            (b'$', Some(len)) => {
                let len = u64::try_from(len).ok().filter(|len| *len <= VALUE_BYTES_MAX);
                let len = len.ok_or_else(|| wrong("a length that no value has"))?;
                self.value.resize(len as usize + 2, 0);
                self.stream.read_exact(&mut self.value)?;
                self.value.truncate(len as usize);
                Ok(true)
            }
            (b'+' | b':', _) => Ok(true),
            (kind, _) => Err(wrong(&format!("a reply of the kind {:?}", char::from(kind)))),
        }
    }

    /// Reads a reply that is an array, and passes the values that are there to `visit`, with their places.
    fn values(&mut self, mut visit: impl FnMut(usize, &[u8])) -> io::Result<()> {
        let (b'*', Some(count)) = self.head()? else { return Err(wrong("no array")) };
        let count = u64::try_from(count).ok().filter(|count| *count <= ELEMENTS_MAX);
        for at in 0..count.ok_or_else(|| wrong("a length that no array has"))? {
            if self.value()? {
                visit(at as usize, &self.value);
            }
        }
        Ok(())
    }
}

impl TcpEngine {
    fn new(address: &str) -> TcpEngine {
        TcpEngine { address: address.to_owned(), connection: RefCell::new(None) }
    }

    /// Runs `work` on the connection. After a failure the next call connects again.
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> io::Result<T>) -> io::Result<T> {
        let mut kept = self.connection.borrow_mut();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::new(&self.address)?,
        };
        let done = work(&mut connection)?;
        *kept = Some(connection);
        Ok(done)
    }

    /// Sends a request whose reply is one value, and returns the length of that.
    fn call(&self, words: &[&[u8]]) -> io::Result<Option<usize>> {
        self.with(|connection| {
            connection.send(words.iter().copied())?;
            Ok(connection.value()?.then_some(connection.value.len()))
        })
    }

    /// Reads many keys with one request.
    fn read_all(&self, keys: &[Vec<u8>], mut visit: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        let words: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
        self.with(|connection| {
            connection.send(words.iter().copied())?;
            connection.values(|at, value| {
                if let Some(key) = keys.get(at) {
                    visit(key, value);
                }
            })
        })
    }
}

impl Clone for TcpEngine {
    fn clone(&self) -> TcpEngine {
        TcpEngine::new(&self.address)
    }
}

/// The `count` keys from `key` on that the first records have.
fn following(key: &[u8], count: u64) -> Vec<Vec<u8>> {
    let Some((word, rest)) = key.split_first_chunk() else { return vec![key.to_vec()] };
    let word = u64::from_be_bytes(*word);
    let begin = word - word % KEY_STEP;
    let later = (1..count).map(|n| begin.wrapping_add(n * KEY_STEP).to_be_bytes());
    let later = later.map(|word| [&word[..], rest].concat());
    std::iter::once(key.to_vec()).chain(later).collect()
}

/// The server decides when a write counts as done.
impl Engine for TcpEngine {
    type Error = io::Error;

    fn put(&self, key: &[u8], value: &[u8], _: Ack) -> io::Result<()> {
        self.call(&[b"SET", key, value]).map(drop)
    }

    fn delete(&self, key: &[u8], _: Ack) -> io::Result<()> {
        self.call(&[b"DEL", key]).map(drop)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], _: Ack) -> io::Result<()> {
        let pairs = entries.iter().flat_map(|(key, value)| [&key[..], &value[..]]);
        let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(pairs).collect();
        self.call(&words).map(drop)
    }

    fn get(&self, key: &[u8]) -> io::Result<Option<usize>> {
        self.call(&[b"GET", key])
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> io::Result<usize> {
        let mut found = 0;
        self.read_all(keys, |_, _| found += 1)?;
        Ok(found)
    }

    fn seek(&self, key: &[u8], entries: u64, visit: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        self.read_all(&following(key, entries), visit)
    }

    fn scan(&self, _: ScanDirection, _: impl FnMut(&[u8], &[u8]) -> bool) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a server has no ordered scan"))
    }

    fn written_bytes(&self) -> Option<u64> {
        None
    }

    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(address: &str, e: &io::Error) -> Failure {
    Failure::Io(format!("{address}: {e}"))
}

/// Loads the records, runs the workloads, and passes each outcome to `report`.
fn measure(
    args: &Args,
    mut report: impl FnMut(&Outcome) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(kind) =
        args.workloads.iter().find(|it| matches!(it, Kind::Scan | Kind::ScanReverse))
    {
        return Err(Failure::Usage(format!("{} does not run over TCP", kind.name())));
    }
    let plan = Plan {
        records: args.records,
        ops: args.ops,
        limit: args.seconds.map(Duration::from_secs),
        idle_loop: false,
        key_bytes: usize::from(args.key_size),
        value_bytes: args.value_size as usize,
        threads: args.threads,
        write_rate: None,
        when: Ack::Os,
        seed: args.seed,
    };
    let engine = TcpEngine::new(&args.address);
    engine.call(&[b"PING"]).map_err(|e| failed(&args.address, &e))?;
    let mut bench = Bench::new(plan, engine);
    let load = [(Kind::FillRandom, "load")].into_iter();
    for (kind, name) in load.chain(args.workloads.iter().map(|kind| (*kind, kind.name()))) {
        // The files of the server are none of its business.
        let outcome = bench.run(kind, name, Path::new(""), &mut |_| ());
        report(&outcome.map_err(|e| failed(&args.address, &e))?)?;
    }
    Ok(())
}

/// Runs the workloads and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut out = Output::new(args.json);
    let mut rows = Vec::new();
    if !args.json {
        let head = format!(
            "{} records of {} + {} bytes, {} connection(s) to {}\n\n{:<17} {:>10} {:>12} {:>9} {:>9} {:>9} {:>10}",
            args.records,
            args.key_size,
            args.value_size,
            args.threads,
            args.address,
            "workload",
            "ops",
            "ops/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
        );
        out.line(head, &Value::Null)?;
        out.flush()?;
    }
    measure(args, |outcome| {
        if args.json {
            rows.push(outcome.json());
            return Ok(());
        }
        out.line(row(outcome), &Value::Null)?;
        out.flush()
    })?;
    if args.json {
        let config = json!({
            "address": args.address,
            "records": args.records,
            "ops": args.ops,
            "seconds": args.seconds,
            "key_size": args.key_size,
            "value_size": args.value_size,
            "connections": args.threads,
            "seed": args.seed,
        });
        out.line(String::new(), &json!({ "config": config, "workloads": rows }))?;
    }
    out.flush()
}

fn row(outcome: &Outcome) -> String {
    let tally = &outcome.tally;
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| micros(tally.latencies.value_at_quantile(q)));
    let mut text = format!(
        "{:<17} {:>10} {:>12.0} {:>9.1} {:>9.1} {:>9.1} {:>10.1}",
        outcome.name,
        tally.ops,
        outcome.ops_per_second(),
        p50,
        p99,
        p999,
        micros(tally.latencies.max()),
    );
    if tally.missed > 0 {
        text += &format!("  {} of {} not found", tally.missed, tally.found + tally.missed);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use server::{Options, Place, Role, Server};

    use super::*;

    fn args(address: String, workloads: &[&str]) -> Args {
        Args {
            address,
            workloads: workloads.iter().map(|name| name.parse().unwrap()).collect(),
            records: 500,
            ops: Some(300),
            seconds: None,
            key_size: 16,
            value_size: 100,
            threads: 3,
            seed: 7,
            json: false,
        }
    }

    #[test]
    fn the_workloads_run_on_a_server_and_find_their_records() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { listen: "127.0.0.1:0".to_owned(), ..Options::default() };
        let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
        let address = server.address().to_string();
        let all =
            ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f", "ycsb-e", "multireadrandom", "fillbatch"];
        let mut seen = Vec::new();
        measure(&args(address.clone(), &all), |outcome| {
            seen.push(outcome.name);
            let tally = &outcome.tally;
            assert_eq!(tally.missed, 0, "{}", outcome.name);
            let is_scan = outcome.name == "ycsb-e";
            // Up to 100 records of 116 bytes each.
            assert!(!is_scan || tally.read_bytes > 116 * 300 * 10, "{}", tally.read_bytes);
            assert!(tally.ops >= 300, "{}: {}", outcome.name, tally.ops);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [&["load"], &all[..]].concat());
        // A read of the latest may come before the insert of another connection.
        measure(&args(address.clone(), &["ycsb-d"]), |_| Ok(())).unwrap();
        let wrong = measure(&args(address, &["scan"]), |_| Ok(())).unwrap_err();
        assert!(matches!(wrong, Failure::Usage(_)));
        server.stop().unwrap();
    }

    #[test]
    fn keys_of_a_scan_are_those_of_the_records() {
        let space = testkit::workload::KeySpace::new(50, 12);
        let mut key = Vec::new();
        let ordered = (0..50).map(|n| {
            space.in_order(n, &mut key);
            key.clone()
        });
        let ordered: Vec<Vec<u8>> = ordered.collect();
        assert_eq!(following(&ordered[7], 3), ordered[7..10]);
        // One that was inserted between two of them.
        space.record(50, &mut key);
        let found = following(&key, 2);
        assert_eq!(found[0], key);
        assert!(found[1] > key && (ordered.contains(&found[1]) || found[1] > ordered[49]));
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        for (answer, expected) in [
            (&b"-ERR no\r\n"[..], "ERR no"),
            (b"$-7\r\n", "a length that no value has"),
            (b"$99999999999\r\n", "a length that no value has"),
            (b"%1\r\n", "a reply of the kind"),
            (b"", "no whole line"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let thread = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 100];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer).unwrap();
            });
            let error = TcpEngine::new(&address).get(b"a").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            thread.join().unwrap();
        }
    }
}

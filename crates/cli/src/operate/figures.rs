//! [`Figures`]: what a server counts, from its page of metrics; and [`ask`], which fetches the page.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The longest time for one page.
const ANSWER: Duration = Duration::from_secs(1);
const PAGE_BYTES_MAX: u64 = 8 << 20;
/// The commands that are load. Not those that routers add: their questions for roles and tokens.
const OPERATIONS: [&str; 10] = [
    "GET",
    "SCID.GET",
    "SCID.PART",
    "MGET",
    "EXISTS",
    "STRLEN",
    "GETRANGE",
    "SCAN",
    "DBSIZE",
    "EXEC",
];
const PREFIX: &str = "siltstone_server_";

/// The counts of a server, from its start on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// It accepts requests.
    pub(super) is_up: bool,
    pub(super) is_primary: bool,
    /// The identifier of its process.
    pub(super) process: Option<u32>,
    /// Operations that were answered.
    pub(super) operations: u64,
    /// Of these the number of those that took at most so many microseconds.
    latencies: BTreeMap<u64, u64>,
}

impl Figures {
    /// Reads a page in the text format of Prometheus; `None` if it is not that of a server.
    pub(super) fn parse(page: &str) -> Option<Figures> {
        let mut figures = Figures::default();
        let mut is_server = false;
        for line in page.lines() {
            let Some((name, value)) =
                line.strip_prefix(PREFIX).and_then(|line| line.rsplit_once(' '))
            else {
                continue;
            };
            match name {
                "up" => {
                    figures.is_up = value == "1";
                    is_server = true;
                }
                "primary" => figures.is_primary = value == "1",
                "process_id" => figures.process = value.parse().ok(),
                _ => figures.count(name, value),
            }
        }
        is_server.then_some(figures)
    }

    /// Adds a line of the histogram of a command.
    fn count(&mut self, name: &str, value: &str) {
        let Some(labels) = name.strip_prefix("command_seconds_bucket{command=\"") else { return };
        let Some((command, rest)) = labels.split_once("\",le=\"") else { return };
        let (Some(end), Ok(count)) = (rest.strip_suffix("\"}"), value.parse::<u64>()) else {
            return;
        };
        if !OPERATIONS.contains(&command) {
            return;
        }
        let micros = match end.parse::<f64>() {
            Ok(seconds) if seconds.is_finite() => (seconds * 1e6).round() as u64,
            _ => {
                self.operations = self.operations.saturating_add(count);
                u64::MAX
            }
        };
        let sum = self.latencies.entry(micros).or_default();
        *sum = sum.saturating_add(count);
    }

    /// The operations since `before`; `None` if the server was started again.
    pub(super) fn since(&self, before: &Figures) -> Option<Figures> {
        let mut since = self.clone();
        since.operations = self.operations.checked_sub(before.operations)?;
        for (micros, count) in &mut since.latencies {
            *count = count.checked_sub(before.latencies.get(micros).copied().unwrap_or(0))?;
        }
        Some(since)
    }

    /// Adds the counts of another server.
    pub(super) fn add(&mut self, other: &Figures) {
        self.operations = self.operations.saturating_add(other.operations);
        for (micros, count) in &other.latencies {
            let sum = self.latencies.entry(*micros).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// The 99th percentile of the latency in seconds, evenly between the ends of its bucket. Above the last end it is that
    /// end. `None` without operations.
    pub(super) fn p99(&self) -> Option<f64> {
        let all = self.latencies.get(&u64::MAX).copied().filter(|all| *all > 0)?;
        let rank = all as f64 * 0.99;
        let mut below = (0, 0);
        for (micros, count) in &self.latencies {
            if *count as f64 >= rank {
                if *micros == u64::MAX {
                    break;
                }
                let part = (rank - below.1 as f64) / (*count - below.1).max(1) as f64;
                return Some((below.0 as f64 + part * (*micros - below.0) as f64) / 1e6);
            }
            below = (*micros, *count);
        }
        Some(below.0 as f64 / 1e6)
    }

    /// Figures of a test: operations of one latency.
    #[cfg(test)]
    pub(super) fn of_operations(operations: u64, micros: u64) -> Figures {
        let ends = [1_000, 4_000, 16_000, 64_000, u64::MAX];
        let latencies = ends.map(|end| (end, if micros <= end { operations } else { 0 }));
        let latencies = latencies.into_iter().collect();
        Figures { is_up: true, is_primary: false, process: None, operations, latencies }
    }
}

/// The reason why there are no figures.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// No process listens there.
    Refused,
    /// The connection failed, or there was no answer in time.
    Failed(String),
    /// The answer is not a page of a server.
    Foreign,
}

/// Fetches the pages of servers, over TLS or without.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker {
    #[cfg(feature = "tls")]
    pub(super) tls: Option<server::TlsClient>,
}

impl Asker {
    /// Fetches the figures of the server at `address`, its address for metrics.
    pub(super) fn figures_of(&self, address: &str) -> Result<Figures, Silence> {
        let answer = self.get(address, "/metrics").map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Silence::Refused,
            _ => Silence::Failed(error.to_string()),
        })?;
        let text = String::from_utf8_lossy(&answer);
        let page = text.split_once("\r\n\r\n");
        let page = page.filter(|(head, _)| head.starts_with("HTTP/1.1 200 "));
        page.and_then(|(_, body)| Figures::parse(body)).ok_or(Silence::Foreign)
    }

    /// Fetches the figures of several servers at the same time. One for which there is no thread has not answered.
    pub(super) fn ask(&self, addresses: &[String]) -> Vec<Option<Figures>> {
        std::thread::scope(|scope| {
            let asked = addresses.iter().map(|address| {
                let thread = std::thread::Builder::new().name("siltstone-figures".to_owned());
                thread.spawn_scoped(scope, || self.figures_of(address).ok())
            });
            // All are asked before the first answer is waited for.
            let asked: Vec<_> = asked.collect();
            asked.into_iter().map(|it| it.ok()?.join().ok().flatten()).collect()
        })
    }

    /// The whole answer of a server, with its head.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_self, reason = "TLS has files"))]
    fn get(&self, address: &str, path: &str) -> std::io::Result<Vec<u8>> {
        let stream = connect(address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return exchange(tls.connect(address, stream)?, address, path);
        }
        exchange(stream, address, path)
    }
}

/// Returns whether no process listens at `address`. It waits for no answer of one that does.
pub(super) fn is_refused(address: &str) -> bool {
    connect(address).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn connect(address: &str) -> std::io::Result<TcpStream> {
    let resolved: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let first = resolved.first().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    TcpStream::connect_timeout(first, ANSWER)
}

fn exchange(mut stream: impl Read + Write, address: &str, path: &str) -> std::io::Result<Vec<u8>> {
    // One write: an answer to a part of it would end in a reset.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(PAGE_BYTES_MAX).read_to_end(&mut answer)? {
        // A server that is killed ends the connection before it answers.
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP siltstone_server_up Whether the server accepts requests.
siltstone_server_up 1
siltstone_server_primary 0
siltstone_server_process_id 77
siltstone_server_command_seconds_bucket{command=\"GET\",le=\"0.001\"} 90
siltstone_server_command_seconds_bucket{command=\"GET\",le=\"0.004\"} 98
siltstone_server_command_seconds_bucket{command=\"GET\",le=\"+Inf\"} 100
siltstone_server_command_seconds_bucket{command=\"SCID.GET\",le=\"0.001\"} 0
siltstone_server_command_seconds_bucket{command=\"SCID.GET\",le=\"0.004\"} 100
siltstone_server_command_seconds_bucket{command=\"SCID.GET\",le=\"+Inf\"} 100
siltstone_server_command_seconds_bucket{command=\"INFO\",le=\"+Inf\"} 1000
siltstone_batches_total 7
";

    #[test]
    fn operations_and_latencies_are_read_from_the_page() {
        let figures = Figures::parse(PAGE).unwrap();
        assert!(figures.is_up && !figures.is_primary);
        assert_eq!((figures.process, figures.operations), (Some(77), 200));
        // 198 of 200 are within 4 ms.
        assert_eq!(figures.p99(), Some(0.004));
        assert_eq!(figures.since(&figures).unwrap().p99(), None);
        assert_eq!(figures.since(&Figures::of_operations(201, 1)), None);
        let mut sum = figures.clone();
        sum.add(&figures);
        assert_eq!((sum.operations, sum.p99()), (400, Some(0.004)));
        assert_eq!(Figures::of_operations(10, 2_000).p99(), Some(0.00397));
        assert_eq!(Figures::of_operations(10, 100_000).p99(), Some(0.064));
    }

    #[test]
    fn a_page_of_something_else_is_no_figure() {
        assert_eq!(Figures::parse(""), None);
        assert_eq!(Figures::parse("<html>up 1</html>"), None);
        let odd = "siltstone_server_up 1\nsiltstone_server_command_seconds_bucket{command=\"GET\",le=\"x\n\
                   siltstone_server_command_seconds_bucket{command=\"GET\",le=\"NaN\"} -1\nsiltstone_server_";
        assert_eq!(Figures::parse(odd).map(|it| it.operations), Some(0));
        // Numbers that no server counts to.
        let full = format!(
            "siltstone_server_up 1\nsiltstone_server_command_seconds_bucket{{command=\"GET\",le=\"+Inf\"}} {}",
            u64::MAX
        );
        let full = Figures::parse(&full).unwrap();
        let mut sum = full.clone();
        sum.add(&full);
        assert_eq!((sum.operations, sum.p99()), (u64::MAX, Some(0.0)));
    }
}

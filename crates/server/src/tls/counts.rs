//! [`Counts`]: handshakes, and their failures by reason.

use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::Error;

use super::{Log, say};
use crate::exposition::{Exposition, count, value};

/// The reason why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The client speaks no TLS.
    Plain,
    /// It took too long.
    Time,
    /// It was the oldest one of too many, or of too many for the file handles.
    Evicted,
    /// The client has shown no certificate, and one is needed.
    NoCertificate,
    /// The certificate of the other side is not accepted.
    Certificate,
    /// The other side has refused; often the certificate of this one.
    Refused,
    /// The other side closed the connection.
    Closed,
    /// Anything else: no common version or cipher, or bytes that are wrong.
    Protocol,
}

const REASONS: [(Reason, &str); 8] = [
    (Reason::Plain, "plain"),
    (Reason::Time, "time"),
    (Reason::Evicted, "evicted"),
    (Reason::NoCertificate, "no_certificate"),
    (Reason::Certificate, "certificate"),
    (Reason::Refused, "refused"),
    (Reason::Closed, "closed"),
    (Reason::Protocol, "protocol"),
];

/// Returns whether a failure is one of TLS, and none of the connection below it.
pub(super) fn is_of_tls(error: &io::Error) -> bool {
    inner(error).is_some()
}

fn inner(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Error>())
}

/// The reason of a failure of the crate `tokio-rustls`.
pub(super) fn reason_of(error: &io::Error) -> Reason {
    if error.kind() == io::ErrorKind::TimedOut {
        return Reason::Time;
    }
    match inner(error) {
        Some(Error::NoCertificatesPresented) => Reason::NoCertificate,
        Some(Error::InvalidCertificate(_)) => Reason::Certificate,
        Some(Error::AlertReceived(_)) => Reason::Refused,
        Some(_) => Reason::Protocol,
        None => Reason::Closed,
    }
}

/// The counts of one side, from its start on.
#[derive(Debug, Default)]
pub(super) struct Counts {
    done: AtomicU64,
    failures: [AtomicU64; REASONS.len()],
}

impl Counts {
    pub(super) fn done(&self) {
        count(&self.done);
    }

    pub(super) fn failed(&self, log: Option<&Log>, with: impl Display, reason: Reason, why: &str) {
        let place = REASONS.iter().position(|(known, _)| *known == reason).unwrap_or_default();
        let number = self.failures[place].fetch_add(1, Ordering::Relaxed) + 1;
        // The log of a flood has a few lines, and needs no clock for that.
        if number.is_power_of_two() {
            let name = REASONS[place].1;
            let times = if number == 1 { "" } else { &format!("; {number} of this kind") };
            say(log, &format!("TLS: no handshake with {with}: {why} ({name}{times})"));
        }
    }

    /// The figures, whose names begin with `prefix`.
    pub(super) fn figures(&self, out: &mut Exposition, prefix: &str) {
        let help = "TLS handshakes that were completed.";
        out.one(&format!("{prefix}handshakes_total"), "counter", help, value(&self.done));
        let name = format!("{prefix}handshake_failures_total");
        out.head(&name, "counter", "TLS handshakes that failed, by reason.");
        for ((_, reason), failures) in REASONS.iter().zip(&self.failures) {
            out.line(&name, &[("reason", reason)], value(failures));
        }
    }
}

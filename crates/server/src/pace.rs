//! [`Pace`]: the time that a client may take for answers that wait for it.
//!
//! Only the time in which an answer waits for the client counts: reads from a disk, and pauses between requests, do not.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::options::Limits;
use crate::stream::Stream;

/// The time that a client may take for an answer, or for several that follow one another.
pub(crate) struct Pace {
    /// The longest silence.
    silence: Duration,
    /// Bytes a second; 0 for any.
    rate: u64,
    /// The bytes that the client has taken, and the time that this took.
    taken: u64,
    waited: Duration,
}

impl Pace {
    pub(crate) fn new(limits: &Limits) -> Pace {
        Pace { silence: limits.write, rate: limits.write_rate, taken: 0, waited: Duration::ZERO }
    }

    /// The longest time for the next bytes.
    fn left(&self) -> Duration {
        if self.rate == 0 {
            return self.silence;
        }
        let by_rate = Duration::from_secs_f64(self.taken as f64 / self.rate as f64);
        let allowed = self.silence.saturating_add(by_rate).saturating_sub(self.waited);
        allowed.min(self.silence)
    }

    /// Sends `out`; `false` if the client did not take it in time.
    pub(crate) async fn send(&mut self, stream: &mut Stream, out: &[u8]) -> io::Result<bool> {
        let sent = stream.try_send(out)?;
        self.taken += sent as u64;
        if sent == out.len() {
            return Ok(true);
        }
        let mut rest = &out[sent..];
        while !rest.is_empty() {
            let begun = Instant::now();
            // What the client takes ends its silence, however little it is.
            let Ok(sent) = timeout(self.left(), stream.send_some(rest)).await else {
                return Ok(false);
            };
            let sent = sent?;
            self.waited += begun.elapsed();
            self.taken += sent as u64;
            rest = &rest[sent..];
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_silence_and_the_time_of_the_rate() {
        let limits =
            Limits { write: Duration::from_secs(60), write_rate: 1000, ..Limits::default() };
        let mut pace = Pace::new(&limits);
        assert_eq!(pace.left(), Duration::from_secs(60));
        pace.waited = Duration::from_secs(50);
        assert_eq!(pace.left(), Duration::from_secs(10));
        pace.taken = 45_000;
        assert_eq!(pace.left(), Duration::from_secs(55));
        // Much that was taken fast buys no longer silence.
        pace.taken = 1 << 40;
        assert_eq!(pace.left(), Duration::from_secs(60));
        pace.taken = 0;
        pace.waited = Duration::from_secs(61);
        assert_eq!(pace.left(), Duration::ZERO);
        let any = Limits { write_rate: 0, ..limits };
        let pace = Pace { waited: Duration::from_secs(1000), ..Pace::new(&any) };
        assert_eq!(pace.left(), Duration::from_secs(60));
    }
}

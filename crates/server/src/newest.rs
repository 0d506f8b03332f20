//! [`Newest`]: the newest commit of a bucket, by a question to its primary. With it a strong read of a reader needs no call of
//! the bucket, unless the reader lacks the commit.
//!
//! Invariants:
//! 1. An answer serves only reads that began before its question was sent.
//! 2. A commit is the answer of the run that the database names, which held the read lease after it had looked at its newest
//!    commit, which the bucket has. So it does not matter how old the address of the primary is.
//! 3. Without an answer the read looks at the bucket. A primary that gives none is not asked again for [`REST`].
//! 4. An answer may be a promise: for a time that begins after the question was sent, the bucket gets nothing newer. Reads that
//!    come within it are served by the answer, too. The clock goes on while the machine is suspended.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use siltstone::Commit;
use siltstone::clock::Clock;
use tokio::time::{Instant, timeout};

use crate::exposition::{Exposition, count, value};
use crate::known_primary::KnownPrimary;
use crate::level::Token;
use crate::route::dialer::Dialer;
use crate::route::link::{Link, text_of};

/// The longest time of a question: a look at the bucket takes about as long.
const ANSWER: Duration = Duration::from_millis(100);
/// The time without questions after one that had no answer.
const REST: Duration = Duration::from_secs(1);
/// The same after a refusal: a put is on its way.
const SHORT_REST: Duration = Duration::from_millis(10);
/// Elsewhere the clock stands still while the machine is suspended.
const CLOCK_GOES_ON: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// The questions of a reader to the primary.
pub(crate) struct Newest {
    dialer: Dialer,
    /// Name and password.
    login: Option<(String, String)>,
    /// One for the begin and one for the end of each question.
    steps: AtomicU64,
    turn: tokio::sync::Mutex<Turn>,
    /// The last promise: the newest commit until a time of the clock.
    promise: Mutex<Option<(Commit, Duration)>>,
    answered: AtomicU64,
    /// The primary had no lease, or commits that the bucket lacks.
    refused: AtomicU64,
    failed: AtomicU64,
}

/// Held during a question.
#[derive(Default)]
struct Turn {
    link: Option<Link>,
    /// The answer to the last question.
    newest: Option<Commit>,
    rests_until: Option<Instant>,
}

impl Newest {
    pub(crate) fn new(dialer: Dialer, login: Option<(String, String)>) -> Newest {
        Newest {
            dialer,
            login,
            steps: AtomicU64::new(0),
            turn: tokio::sync::Mutex::default(),
            promise: Mutex::new(None),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Returns a commit that is not older than what any strong read had returned, and any write that is stored in the bucket, when
    /// this was called; `None` if the primary does not say. Calls at the same time share a question.
    pub(crate) async fn ask(&self, primary: &KnownPrimary, clock: &dyn Clock) -> Option<Commit> {
        let seen = self.steps.load(Ordering::Acquire);
        let mut turn = self.turn.lock().await;
        // A question has begun and ended meanwhile. One step is the end of one that was sent before.
        if self.steps.load(Ordering::Acquire) > seen + 1 {
            return turn.newest;
        }
        if let Some(newest) = self.promised(clock) {
            return Some(newest);
        }
        if turn.rests_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.steps.fetch_add(1, Ordering::AcqRel);
        // A question that is given up leaves no answer, and no link whose next reply is of another question.
        turn.newest = None;
        let link = turn.link.take().filter(|link| link.address == primary.address);
        let sent = clock.since_boot();
        let asked = timeout(ANSWER, self.question(link, primary)).await;
        match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((link, answer)) => {
                turn.link = Some(link);
                if let Some((newest, promised)) = answer {
                    count(&self.answered);
                    turn.newest = Some(newest);
                    let until = sent.saturating_add(promised.saturating_sub(promised / 16));
                    *self.promise.lock() = Some((newest, until)).filter(|_| CLOCK_GOES_ON);
                } else {
                    count(&self.refused);
                    turn.rests_until = Some(Instant::now() + SHORT_REST);
                }
            }
            Err(error) => {
                self.dialer.failed(&primary.address, &error);
                count(&self.failed);
                turn.rests_until = Some(Instant::now() + REST);
            }
        }
        self.steps.fetch_add(1, Ordering::AcqRel);
        turn.newest
    }

    /// The newest commit, as long as a promise lasts that there is no newer one.
    pub(crate) fn promised(&self, clock: &dyn Clock) -> Option<Commit> {
        let promise = *self.promise.lock();
        promise.filter(|(_, until)| clock.since_boot() < *until).map(|(newest, _)| newest)
    }

    /// Returns the link with the answer; `None` for a refusal.
    async fn question(
        &self,
        kept: Option<Link>,
        primary: &KnownPrimary,
    ) -> io::Result<(Link, Option<(Commit, Duration)>)> {
        let Some(run) = primary.run.as_ref().filter(|_| primary.has_host()) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let request = ["SCID.NEWEST", run];
        // The primary may have ended a connection that was kept.
        let mut answered = None;
        if let Some(mut link) = kept {
            answered = link.call(&request).await.ok().map(|reply| (link, reply));
        }
        if answered.is_none() {
            let mut link = self.connected(&primary.address).await?;
            let reply = link.call(&request).await?;
            answered = Some((link, reply));
        }
        let Some((link, reply)) = answered else { return Err(io::ErrorKind::NotConnected.into()) };
        match answer(&reply) {
            None if !reply.starts_with(b"-NOTYET ") => {
                Err(io::Error::other("it is no primary with a read lease"))
            }
            answer => Ok((link, answer)),
        }
    }

    async fn connected(&self, address: &str) -> io::Result<Link> {
        self.dialer.look();
        let mut link = Link::connect(&self.dialer, address, ANSWER).await?;
        if let Some((name, password)) = &self.login {
            link.call(&["AUTH", name, password]).await?;
        }
        Ok(link)
    }

    pub(crate) fn figures(&self, out: &mut Exposition) {
        let name = "newest_questions_total";
        out.head(name, "counter", "Questions of a reader for the newest commit, by their outcome.");
        let outcomes =
            [("answered", &self.answered), ("refused", &self.refused), ("failed", &self.failed)];
        for (outcome, counter) in outcomes {
            out.line(name, &[("outcome", outcome)], value(counter));
        }
    }
}

/// The newest commit, and the length of the promise.
fn answer(reply: &[u8]) -> Option<(Commit, Duration)> {
    let text = std::str::from_utf8(text_of(reply)).ok()?;
    let (newest, micros) = text.split_once(' ')?;
    let Token(newest) = Token::parse(newest.as_bytes()).ok()?;
    Some((newest, Duration::from_micros(micros.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use siltstone::clock::SystemClock;
    use tokio::task::JoinHandle;

    use super::*;

    /// A read that asks, and the commit that it gets.
    fn asking(newest: &Arc<Newest>, known: &Arc<KnownPrimary>) -> JoinHandle<u64> {
        let newest = newest.clone();
        let known = known.clone();
        let clock = SystemClock::new();
        tokio::spawn(async move { newest.ask(&known, &clock).await.unwrap().seq.get() })
    }

    /// The answer to a question that is on its way may be older than a write that was acknowledged before the read.
    #[test]
    fn a_read_that_comes_during_a_question_waits_for_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, is_asked) = channel();
        let (go, goes_on) = channel();
        let primary = std::thread::spawn(move || {
            let mut link = listener.accept().unwrap().0;
            let mut count = 0;
            while link.read(&mut [0; 200]).unwrap() > 0 {
                count += 1;
                asked.send(()).unwrap();
                goes_on.recv().unwrap();
                write!(link, "$5\r\n1-{count} 0\r\n").unwrap();
            }
            count
        });
        let newest = Arc::new(Newest::new(Dialer::new(None), None));
        let known = Arc::new(KnownPrimary { address, run: Some("r".to_owned()) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let seen = runtime.block_on(async {
            let first = asking(&newest, &known);
            while is_asked.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            let later = [(); 2].map(|()| asking(&newest, &known));
            // Each task runs until it waits.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            go.send(()).unwrap();
            go.send(()).unwrap();
            let [second, third] = later;
            [first.await.unwrap(), second.await.unwrap(), third.await.unwrap()]
        });
        assert_eq!(seen, [1, 2, 2]);
        drop((newest, runtime));
        assert_eq!(primary.join().unwrap(), 2);
    }
}

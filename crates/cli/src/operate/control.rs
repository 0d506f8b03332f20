//! [`Control`]: the readers, from their start to their end. Processes, time and the network are reached through [`Launcher`] and
//! [`Env`].
//!
//! ```text
//! start -> Starting -> Serving -> Draining -> Ending -> gone
//!                         |  in the list of nodes only while it serves
//!                         +-> gone: it died, and is started again after a pause
//! ```
//!
//! Invariants:
//! 1. A reader that serves is asked to end only after it was out of the list of nodes, and answered no operation for
//!    [`Times::quiet`], or after [`Times::drain`]. What it has received it still answers.
//! 2. A reader that has become the primary is neither counted nor ended.
//! 3. If the readers are not known, nothing changes.

use std::time::Duration;

use super::decide::{Decider, Decision, Load};
use super::figures::Figures;
use crate::output::Failure;

/// The first pause before a reader that died is started again; it doubles with each death.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A reader that served for so long begins with the first pause again.
const STABLE: Duration = Duration::from_secs(60);

/// The addresses of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    /// That of the protocol.
    pub(super) requests: String,
    /// That of the metrics.
    pub(super) figures: String,
}

/// A reader as its launcher knows it.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) name: String,
    /// `None` while they are not known yet.
    pub(super) addresses: Option<Addresses>,
    /// The way it ended. The launcher forgets it after that.
    pub(super) end: Option<String>,
    /// A failure of the launcher with it. It tries again in the next call.
    pub(super) trouble: Option<String>,
}

/// Starts and ends readers. No call waits for a reader.
pub(super) trait Launcher {
    /// Begins to start a reader, and returns its name.
    fn start(&mut self) -> Result<String, Failure>;
    /// All readers, also those of an operator before this one.
    fn readers(&mut self) -> Result<Vec<Instance>, Failure>;
    /// Asks a reader to answer what it has received, and to end.
    fn end(&mut self, name: &str) -> Result<(), Failure>;
    /// Ends a reader that did not end.
    fn kill(&mut self, name: &str) -> Result<(), Failure>;
    /// Another operator has the readers now.
    fn is_replaced(&self) -> bool;
}

/// The rest of the world.
pub(super) trait Env {
    /// The figures of servers, by their addresses for metrics; `None` for no answer.
    fn ask(&mut self, addresses: &[String]) -> Vec<Option<Figures>>;
    /// Sets the readers that routers send requests to.
    fn publish(&mut self, readers: &[String]) -> Result<(), Failure>;
    fn say(&mut self, text: &str);
}

/// The times of a reader's life.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// The longest time from its start to its first answer.
    pub(super) start: Duration,
    /// It is out of the list, and has answered nothing for so long: no router sends it anything.
    pub(super) quiet: Duration,
    /// The longest time out of the list.
    pub(super) drain: Duration,
    /// The longest time from the request to end to the end.
    pub(super) end: Duration,
}

#[derive(Debug, PartialEq)]
enum Stage {
    Starting {
        since: Duration,
    },
    Serving {
        since: Duration,
    },
    /// The operations that it had answered, and since when they are that many.
    Draining {
        since: Duration,
        quiet: Option<(Duration, u64)>,
    },
    Ending {
        since: Duration,
        /// Otherwise the launcher could not ask it, and is to try again.
        is_asked: bool,
    },
    Primary,
}

struct Reader {
    name: String,
    addresses: Option<Addresses>,
    stage: Stage,
    /// The last answer, and its time.
    seen: Option<(Duration, Figures)>,
}

/// The readers of a list of nodes.
pub(super) struct Control {
    launcher: Box<dyn Launcher>,
    env: Box<dyn Env>,
    decider: Decider,
    times: Times,
    /// In the order of their starts.
    readers: Vec<Reader>,
    /// Times at which readers that died are started again.
    due: Vec<Duration>,
    /// Deaths since a reader was stable.
    deaths: u32,
    is_ending: bool,
    /// The launcher has listed the readers in the last round.
    is_known: bool,
}

impl Control {
    pub(super) fn new(
        launcher: Box<dyn Launcher>,
        env: Box<dyn Env>,
        decider: Decider,
        times: Times,
    ) -> Control {
        Control {
            launcher,
            env,
            decider,
            times,
            readers: Vec::new(),
            due: Vec::new(),
            deaths: 0,
            is_ending: false,
            is_known: false,
        }
    }

    /// Looks at the readers once, and does what is due at `now`.
    pub(super) fn round(&mut self, now: Duration) {
        let listed = self.launcher.readers();
        self.is_known = listed.is_ok();
        match listed {
            Ok(instances) => self.reconcile(now, instances),
            Err(failure) => return self.report("cannot list the readers", &failure),
        }
        let load = self.look(now);
        if self.is_ending {
            // In each round: a reader may be taken over, or be the primary no more, after the first one.
            (0..self.readers.len()).for_each(|at| self.stop_at(now, at));
        } else {
            self.end_stuck(now);
            self.decide(now, load);
            self.start_due(now);
        }
        let serving = self
            .readers
            .iter()
            .filter(|it| matches!(it.stage, Stage::Serving { .. } | Stage::Primary));
        let serving = serving.filter_map(|it| it.addresses.as_ref());
        let serving: Vec<String> = serving.map(|it| it.requests.clone()).collect();
        let published = self.env.publish(&serving);
        if let Err(failure) = &published {
            self.report("routers do not know the readers", failure);
        }
        self.end_quiet(now, published.is_ok());
    }

    /// Stops all readers from the next round on that knows them.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Returns whether all readers are gone, but for one that is the primary; or are those of another operator.
    pub(super) fn is_over(&self) -> bool {
        let is_empty = self.readers.iter().all(|it| it.stage == Stage::Primary);
        self.launcher.is_replaced() || (self.is_known && is_empty)
    }

    fn report(&mut self, what: &str, failure: &Failure) {
        if let Some(text) = failure.text() {
            self.env.say(&format!("{what}: {text}"));
        }
    }

    /// Takes over what the launcher says of the readers.
    fn reconcile(&mut self, now: Duration, instances: Vec<Instance>) {
        for Instance { name, trouble, .. } in &instances {
            if let Some(trouble) = trouble {
                self.env.say(&format!("reader {name}: {trouble}; tries again"));
            }
        }
        let known = std::mem::take(&mut self.readers);
        for mut reader in known {
            let instance = instances.iter().find(|it| it.name == reader.name);
            let end = match instance {
                None => Some("it is gone"),
                Some(instance) => {
                    reader.addresses.clone_from(&instance.addresses);
                    instance.end.as_deref()
                }
            };
            match end {
                None => self.readers.push(reader),
                Some(end) => self.gone(now, &reader, end),
            }
        }
        for instance in instances {
            if instance.end.is_none() && self.readers.iter().all(|it| it.name != instance.name) {
                self.env.say(&format!("takes over reader {}", instance.name));
                let stage = Stage::Starting { since: now };
                let Instance { name, addresses, .. } = instance;
                self.readers.push(Reader { name, addresses, stage, seen: None });
            }
        }
    }

    fn gone(&mut self, now: Duration, reader: &Reader, end: &str) {
        let name = &reader.name;
        match reader.stage {
            Stage::Draining { .. } | Stage::Ending { .. } => {
                self.env.say(&format!("reader {name} has ended: {end}"));
            }
            Stage::Starting { .. } | Stage::Serving { .. } | Stage::Primary => {
                let is_stable = matches!(reader.stage, Stage::Serving { since } if now.saturating_sub(since) >= STABLE);
                if is_stable {
                    self.deaths = 0;
                }
                self.env.say(&format!("reader {name} died: {end}"));
                if reader.stage != Stage::Primary {
                    self.start_later(now);
                }
            }
        }
    }

    fn start_later(&mut self, now: Duration) {
        if self.is_ending {
            return;
        }
        let pause = PAUSE.saturating_mul(1 << self.deaths.min(10)).min(PAUSE_MAX);
        self.deaths = self.deaths.saturating_add(1);
        self.due.push(now + pause);
    }

    fn start_due(&mut self, now: Duration) {
        let before = self.due.len();
        self.due.retain(|at| *at > now);
        (0..before - self.due.len()).for_each(|_| self.start(now));
    }

    fn start(&mut self, now: Duration) {
        match self.launcher.start() {
            Ok(name) => {
                let stage = Stage::Starting { since: now };
                self.readers.push(Reader { name, addresses: None, stage, seen: None });
            }
            Err(failure) => {
                self.report("cannot start a reader", &failure);
                self.start_later(now);
            }
        }
    }

    /// Asks the readers for their figures, and sums them up.
    fn look(&mut self, now: Duration) -> Load {
        let asked = self.readers.iter().filter(|it| !matches!(it.stage, Stage::Ending { .. }));
        let asked = asked.filter_map(|it| Some((it.name.clone(), it.addresses.clone()?.figures)));
        let (names, addresses): (Vec<String>, Vec<String>) = asked.unzip();
        let answers = self.env.ask(&addresses);
        let mut answers: Vec<_> = names.into_iter().zip(answers).collect();
        let mut sum = Figures::default();
        let mut load = Load { is_complete: true, readers: self.due.len(), ..Load::default() };
        for reader in &mut self.readers {
            let answer = answers.iter_mut().find(|(name, _)| *name == reader.name);
            let answer = answer.and_then(|(_, answer)| answer.take());
            if let Some(news) = answer.as_ref().and_then(|it| reader.note(now, it)) {
                self.env.say(&format!("reader {} {news}", reader.name));
            }
            let rate = answer.and_then(|answer| reader.rate(now, answer, &mut sum));
            load.operations += rate.unwrap_or(0.0);
            match reader.stage {
                Stage::Starting { .. } => {
                    load.readers += 1;
                    load.is_complete = false;
                }
                Stage::Serving { .. } => {
                    load.readers += 1;
                    load.is_complete &= rate.is_some();
                }
                Stage::Draining { .. } | Stage::Ending { .. } | Stage::Primary => {}
            }
        }
        load.p99 = sum.p99();
        load
    }

    /// Ends the readers that do not begin to answer, and starts others later.
    fn end_stuck(&mut self, now: Duration) {
        for at in 0..self.readers.len() {
            let reader = &self.readers[at];
            if matches!(reader.stage, Stage::Starting { since } if now.saturating_sub(since) >= self.times.start)
            {
                self.env.say(&format!("reader {} does not answer; ends it", reader.name));
                self.ask_to_end(now, at);
                self.start_later(now);
            }
        }
    }

    fn decide(&mut self, now: Duration, load: Load) {
        let rate = load.operations.round();
        match self.decider.decide(now, load) {
            Decision::Keep => {}
            Decision::Start(count) => {
                let had = load.readers;
                self.env
                    .say(&format!("{rate} operations a second on {had} readers: starts {count}"));
                (0..count).for_each(|_| self.start(now));
            }
            Decision::Stop(count) => {
                let had = load.readers;
                self.env
                    .say(&format!("{rate} operations a second on {had} readers: stops {count}"));
                (0..count).for_each(|_| self.stop(now));
            }
        }
    }

    /// Stops the reader that is worth the least: one that died, one that starts, or the newest.
    fn stop(&mut self, now: Duration) {
        if self.due.pop().is_some() {
            return;
        }
        let found = self.readers.iter().rposition(Reader::is_starting);
        let found = found.or_else(|| self.readers.iter().rposition(Reader::is_serving));
        if let Some(at) = found {
            self.stop_at(now, at);
        }
    }

    fn stop_at(&mut self, now: Duration, at: usize) {
        match self.readers[at].stage {
            Stage::Starting { .. } => self.ask_to_end(now, at),
            Stage::Serving { .. } => {
                self.readers[at].stage = Stage::Draining { since: now, quiet: None };
            }
            Stage::Draining { .. } | Stage::Ending { .. } | Stage::Primary => {}
        }
    }

    fn ask_to_end(&mut self, now: Duration, at: usize) {
        let name = self.readers[at].name.clone();
        let asked = self.launcher.end(&name);
        // The limit after which it is killed begins once it was asked.
        self.readers[at].stage = Stage::Ending { since: now, is_asked: asked.is_ok() };
        if let Err(failure) = asked {
            self.report(&format!("cannot end reader {name}, tries again"), &failure);
        }
    }

    /// Ends the readers that routers have left, and those that do not end. If the list of nodes could not be written, the
    /// limits alone end them.
    fn end_quiet(&mut self, now: Duration, is_published: bool) {
        for at in 0..self.readers.len() {
            let reader = &mut self.readers[at];
            match &mut reader.stage {
                // Routers are to see the list of this round first.
                Stage::Draining { since, .. } if *since == now => {}
                Stage::Draining { since, quiet } => {
                    // A router that still sees it in the list may send it something at any time.
                    let answer = reader.seen.as_ref().filter(|(at, _)| is_published && *at == now);
                    let count = answer.map(|(_, figures)| figures.operations);
                    let is_same = quiet.is_some_and(|(_, before)| Some(before) == count);
                    if !is_same {
                        *quiet = count.map(|count| (now, count));
                    }
                    let is_quiet =
                        quiet.is_some_and(|(from, _)| now.saturating_sub(from) >= self.times.quiet);
                    let is_late = now.saturating_sub(*since) >= self.times.drain;
                    if is_late && !is_quiet {
                        let text =
                            format!("reader {} may still get requests; ends it", reader.name);
                        self.env.say(&text);
                    }
                    if is_quiet || is_late {
                        self.ask_to_end(now, at);
                    }
                }
                Stage::Ending { since, is_asked: false } => {
                    // Once a round.
                    if *since < now {
                        self.ask_to_end(now, at);
                    }
                }
                Stage::Ending { since, .. } if now.saturating_sub(*since) >= self.times.end => {
                    *since = now;
                    let name = reader.name.clone();
                    self.env.say(&format!("reader {name} does not end; kills it"));
                    if let Err(failure) = self.launcher.kill(&name) {
                        self.report("cannot kill it", &failure);
                    }
                }
                Stage::Starting { .. }
                | Stage::Serving { .. }
                | Stage::Ending { .. }
                | Stage::Primary => {}
            }
        }
    }
}

impl Reader {
    fn is_starting(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. })
    }

    fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving { .. })
    }

    /// Notes the stage that an answer shows, and returns what is new.
    fn note(&mut self, now: Duration, answer: &Figures) -> Option<&'static str> {
        let is_counted = self.is_starting() || self.is_serving();
        if answer.is_primary && (is_counted || matches!(self.stage, Stage::Draining { .. })) {
            self.stage = Stage::Primary;
            return Some("is the primary now, and is left alone");
        }
        if answer.is_up && self.is_starting() {
            self.stage = Stage::Serving { since: now };
            return Some("serves");
        }
        if self.stage == Stage::Primary && !answer.is_primary {
            self.stage = Stage::Serving { since: now };
            return Some("is a reader again");
        }
        None
    }

    /// Operations a second since the last answer; adds the operations to `sum`.
    fn rate(&mut self, now: Duration, answer: Figures, sum: &mut Figures) -> Option<f64> {
        let (at, before) = self.seen.replace((now, answer))?;
        let (_, answer) = self.seen.as_ref()?;
        let since = answer.since(&before)?;
        let seconds = now.saturating_sub(at).as_secs_f64();
        if self.stage == Stage::Primary || seconds == 0.0 {
            return None;
        }
        sum.add(&since);
        Some(since.operations as f64 / seconds)
    }
}

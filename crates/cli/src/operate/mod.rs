//! `operate`: starts and stops readers by load.
//!
//! ```text
//! decide    the number of readers for a load          control   the readers, from start to end
//! figures   the metrics of a server                   nodes     the file that routers read
//! process   readers as processes of this machine      readers   the file of these processes
//! kubernetes  readers as pods (feature `pods`)
//! ```

mod control;
mod decide;
mod figures;
#[cfg(feature = "pods")]
mod kubernetes;
mod nodes;
mod process;
mod readers;
#[cfg(test)]
mod simulated;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use siltstone::clock::{Clock, SystemClock};

use self::control::{Control, Env, Launcher, Times};
use self::decide::{Decider, Targets};
use self::figures::{Asker, Figures};
use self::nodes::NodesFile;
use self::process::{Processes, Spec};
use crate::bucket::url_of;
use crate::output::{Failure, note};

/// Arguments of `operate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of a bucket
    #[cfg_attr(feature = "pods", arg(required_unless_present = "pods"))]
    #[cfg_attr(not(feature = "pods"), arg(required = true))]
    database: Option<PathBuf>,
    /// Run the readers as pods of this `PodTemplate`, on the API server of the surrounding pod or of the kubeconfig
    #[cfg(feature = "pods")]
    #[arg(long, value_name = "TEMPLATE", conflicts_with_all = ["database", "host", "more"])]
    pods: Option<String>,
    /// Namespace of the pods; without it, that of the surrounding pod or of the kubeconfig
    #[cfg(feature = "pods")]
    #[arg(long, requires = "pods")]
    namespace: Option<String>,
    /// File of the nodes, which routers read (`siltstone route --nodes FILE`)
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// Address of the primary, or of another node that is always there
    #[arg(long, value_name = "ADDRESS")]
    node: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
    /// Host of the readers' addresses
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    nodes_tls: crate::tls::NodeArgs,
    /// Leave the readers running at the end; the next operator of the file takes them over
    #[arg(long)]
    leave: bool,
    /// More arguments of the readers (`siltstone serve --help`)
    #[arg(last = true, value_name = "ARGUMENT")]
    more: Vec<String>,
}

impl Args {
    #[cfg(feature = "tls")]
    fn asker(&self) -> Result<Asker, Failure> {
        // A reader that cannot be asked looks as one that does not answer, so a wrong file is an error now.
        let tls = self.nodes_tls.options().map(server::TlsClient::new).transpose()?;
        Ok(Asker { tls })
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "it is as the other one")]
    fn asker(&self) -> Result<Asker, Failure> {
        Ok(Asker::default())
    }
}

/// The load of a reader, and the times.
#[derive(Debug, clap::Args)]
struct LoadArgs {
    /// Fewest readers, at least 1
    #[arg(long, default_value_t = 1)]
    min: usize,
    /// Most readers
    #[arg(long, default_value_t = 8)]
    max: usize,
    /// Reads a second for which there is one reader
    #[arg(long, value_name = "RATE")]
    operations: Option<f64>,
    /// Milliseconds that 99 of 100 reads may take in a reader
    #[arg(long, value_name = "MS")]
    p99: Option<f64>,
    /// Milliseconds between two looks at the readers
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    interval: u64,
    /// Milliseconds between two starts
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    up_cooldown: u64,
    /// Milliseconds for which fewer readers must be enough before one is stopped
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    down_window: u64,
    /// Milliseconds without a request after which a reader that is out of the file ends
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    quiet: u64,
    /// Milliseconds after which it ends with requests; it still answers what it has received
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    drain: u64,
    /// Milliseconds from its start in which a reader must answer
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    start_limit: u64,
    /// Milliseconds after which a reader that was asked to end is killed
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    end_limit: u64,
}

impl LoadArgs {
    fn targets(&self) -> Result<Targets, Failure> {
        let wrong = if self.min == 0 {
            Some("--min is at least 1: without a reader there is no load to follow")
        } else if self.max < self.min {
            Some("--max is less than --min")
        } else if self.operations.is_none() && self.p99.is_none() {
            Some("a target is needed: --operations, --p99 or both")
        } else if !is_target(self.operations) || !is_target(self.p99) {
            Some("a target is greater than 0")
        } else if self.interval == 0 {
            Some("--interval is at least 1")
        } else {
            None
        };
        match wrong {
            Some(wrong) => Err(Failure::Usage(wrong.to_owned())),
            None => Ok(Targets {
                min: self.min,
                max: self.max,
                operations: self.operations,
                p99: self.p99.map(|milliseconds| milliseconds / 1e3),
                up_cooldown: Duration::from_millis(self.up_cooldown),
                down_window: Duration::from_millis(self.down_window),
            }),
        }
    }

    fn times(&self) -> Times {
        Times {
            start: Duration::from_millis(self.start_limit),
            quiet: Duration::from_millis(self.quiet),
            drain: Duration::from_millis(self.drain),
            end: Duration::from_millis(self.end_limit),
        }
    }
}

fn is_target(target: Option<f64>) -> bool {
    target.is_none_or(|target| target.is_finite() && target > 0.0)
}

/// Servers over HTTP, the file of the nodes, and standard error.
struct Machine {
    asker: Asker,
    nodes: NodesFile,
}

impl Env for Machine {
    fn ask(&mut self, addresses: &[String]) -> Vec<Option<Figures>> {
        self.asker.ask(addresses)
    }

    fn publish(&mut self, readers: &[String]) -> Result<(), Failure> {
        self.nodes.set(readers)
    }

    fn say(&mut self, text: &str) {
        note(format_args!("siltstone: {text}"));
    }
}

/// The launcher of processes, or of pods.
fn launcher(args: &Args, asker: &Asker) -> Result<Box<dyn Launcher>, Failure> {
    #[cfg(feature = "pods")]
    if let Some(template) = &args.pods {
        let clock = std::sync::Arc::new(SystemClock::new());
        let pods = kubernetes::Pods::new(template, args.namespace.as_deref(), clock)?;
        return Ok(Box::new(pods));
    }
    let Some(database) = &args.database else {
        return Err(Failure::Usage("a database is needed".to_owned()));
    };
    let is_folder = url_of(database).is_none();
    let program = std::env::current_exe();
    let spec = Spec {
        program: program.map_err(|e| Failure::io("find", "siltstone".as_ref(), &e))?,
        database: if is_folder { whole(database)? } else { database.clone() },
        is_folder,
        host: args.host.clone(),
        more: args.more.clone(),
        asker: asker.clone(),
    };
    Ok(Box::new(Processes::new(
        spec,
        args.nodes.clone(),
        args.load.times().start,
        &SystemClock::new(),
    )?))
}

/// The path of a folder from the root on, so that another operator can compare it.
fn whole(folder: &Path) -> Result<PathBuf, Failure> {
    // What is not there yet has no canonical path.
    let path = std::fs::canonicalize(folder).or_else(|_| std::path::absolute(folder));
    path.map_err(|e| Failure::io("find", folder, &e))
}

/// Operates until a signal.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let targets = args.load.targets()?;
    let asker = args.asker()?;
    let nodes = NodesFile::lock(&args.nodes, args.node.clone())?;
    let launcher = launcher(args, &asker)?;
    let env = Machine { asker, nodes };
    let mut control =
        Control::new(launcher, Box::new(env), Decider::new(targets), args.load.times());
    let mut signals = server::Signals::new()?;
    let (sender, received) = channel();
    // It ends with the process.
    std::thread::Builder::new()
        .name("siltstone-signal".to_owned())
        .spawn(move || {
            loop {
                signals.wait();
                if sender.send(()).is_err() {
                    return;
                }
            }
        })
        .map_err(|e| Failure::Io(format!("cannot wait for signals: {e}")))?;
    note(format_args!("siltstone: operates the readers of {}", args.nodes.display()));
    let interval = Duration::from_millis(args.load.interval);
    let clock = SystemClock::new();
    let mut is_ending = false;
    loop {
        control.round(clock.now());
        if is_ending && control.is_over() {
            return Ok(());
        }
        match received.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) if args.leave => return Ok(()),
            Ok(()) if is_ending => {
                let text = "ended by a second signal; readers that did not end go on";
                return Err(Failure::Io(text.to_owned()));
            }
            Ok(()) => {
                is_ending = true;
                control.end();
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Io("cannot wait for signals any more".to_owned()));
            }
        }
    }
}

//! The work of other processes on this machine, from the text files of the kernel.
//!
//! Threads of the kernel are not counted: they write back what the measured engine wrote, and run
//! the journal of its file system. Time that the host took away (stolen time) is counted.

use std::time::{Duration, Instant};

use testkit::bench::measure::Usage;

use crate::engines::Fault;

/// A run is invalid if others use more than this many cores.
pub const QUIET_CORES_MAX: f64 = 0.2;
/// The machine must be quiet for so many samples in sequence before a run.
const QUIET_SAMPLES: u32 = 3;
const SAMPLE: Duration = Duration::from_secs(1);
/// The process whose children are the threads of the kernel.
const KERNEL_PARENT: &str = "2";

/// Processor time up to some time.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    at: Instant,
    machine: Duration,
    kernel_threads: Duration,
    own: Duration,
}

fn ticks(count: u64) -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    Duration::from_millis(count * 1000 / TICKS_PER_SECOND)
}

/// Processor time of the whole machine, the kernel and stolen time included, in `/proc/stat`.
fn machine_time(stat: &str) -> Option<Duration> {
    let fields = stat.lines().next()?.split_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal; what guests use is in user already.
    let counts: Vec<u64> = fields.take(8).filter_map(|field| field.parse().ok()).collect();
    let idle = counts.get(3)? + counts.get(4)?;
    Some(ticks(counts.iter().sum::<u64>() - idle))
}

/// Processor time in the `stat` of one process; `None` if it is no thread of the kernel.
fn kernel_thread_time(stat: &str) -> Option<Duration> {
    // The name is in parentheses, and may have blanks and parentheses itself.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if *fields.get(1)? != KERNEL_PARENT {
        return None;
    }
    let user: u64 = fields.get(11)?.parse().ok()?;
    let system: u64 = fields.get(12)?.parse().ok()?;
    Some(ticks(user + system))
}

/// Processor time of all threads of the kernel that are visible from here.
fn kernel_threads_time() -> Duration {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|process| {
        let is_number = process.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        // A process may end between the two reads.
        is_number.then(|| std::fs::read_to_string(process.path().join("stat")).ok()).flatten()
    });
    stats.filter_map(|stat| kernel_thread_time(&stat)).sum()
}

/// The tasks that run now, this one included, in `/proc/loadavg`.
fn running_tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

impl Spent {
    /// The processor time up to now; `None` where the kernel does not report it.
    pub fn now() -> Option<Spent> {
        Some(Spent {
            at: Instant::now(),
            machine: machine_time(&std::fs::read_to_string("/proc/stat").ok()?)?,
            kernel_threads: kernel_threads_time(),
            own: Usage::now(None).cpu,
        })
    }

    /// Cores that others used on average since then.
    pub fn cores_of_others(&self) -> Option<f64> {
        let now = Spent::now()?;
        let machine = now.machine.saturating_sub(self.machine);
        let ours = now.own.saturating_sub(self.own)
            + now.kernel_threads.saturating_sub(self.kernel_threads);
        let elapsed = (now.at - self.at).as_secs_f64().max(1e-9);
        Some(machine.saturating_sub(ours).as_secs_f64() / elapsed)
    }
}

/// Arguments of `quiet`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Give up after so many seconds
    #[arg(long, default_value_t = 120)]
    wait_seconds: u64,
    /// Cores that others may use
    #[arg(long, default_value_t = QUIET_CORES_MAX / 2.0)]
    cores_max: f64,
}

/// Waits until the machine is quiet; fails if it is not in time.
pub fn wait_until_quiet(args: &Args) -> Result<(), Fault> {
    let limit = Duration::from_secs(args.wait_seconds);
    let begin = Instant::now();
    let mut quiet_samples = 0;
    loop {
        let before = Spent::now().ok_or("the kernel does not report the processor time")?;
        std::thread::sleep(SAMPLE);
        let cores = before.cores_of_others().ok_or("the kernel stopped reporting it")?;
        let running = running_tasks(&std::fs::read_to_string("/proc/loadavg")?);
        if cores <= args.cores_max && running.is_none_or(|count| count <= 1) {
            quiet_samples += 1;
        } else {
            quiet_samples = 0;
        }
        if quiet_samples == QUIET_SAMPLES {
            return Ok(());
        }
        if begin.elapsed() >= limit {
            let running = running.unwrap_or(0).saturating_sub(1);
            return Err(format!(
                "the machine is not quiet after {} s: others use {cores:.2} cores, {running} of \
                 their tasks run",
                limit.as_secs()
            )
            .into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_no_work_and_stolen_time_is() {
        let stat = "cpu  100 20 30 9000 500 1 2 47 5 5\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine_time(stat), Some(Duration::from_secs(2)));
        assert_eq!(machine_time("intr 1\n"), None);
    }

    #[test]
    fn threads_of_the_kernel_are_distinguished_from_processes() {
        let thread = "77 (a) b (c)) S 2 0 0 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 1 2 3";
        assert_eq!(kernel_thread_time(thread), Some(Duration::from_secs(2)));
        assert_eq!(kernel_thread_time(&thread.replace("S 2 ", "S 22 ")), None);
    }

    #[test]
    fn running_tasks_are_before_the_slash() {
        assert_eq!(running_tasks("0.04 0.19 0.71 3/168 1234\n"), Some(3));
        assert_eq!(running_tasks("0.04"), None);
    }
}

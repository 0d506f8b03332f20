//! Progress of subcommands that may run for long, on standard error, if that is a terminal.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use siltstone::Db;

use crate::output::{Failure, note};

/// The time between two looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs `work` and shows its duration, with the text that `look` returns in the meantime.
pub(crate) fn during<T: Send>(
    deed: &str,
    look: impl Fn() -> String,
    work: impl FnOnce() -> T + Send,
) -> T {
    let bar = ProgressBar::new_spinner().with_prefix(deed.to_owned());
    let style = "{spinner} {prefix}, {elapsed} {msg}";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is well formed"));
    // Without a terminal there is no bar, and the work needs no second thread.
    if bar.is_hidden() {
        return work();
    }
    let done = thread::scope(|scope| {
        let (ended, has_ended) = mpsc::channel::<()>();
        // The work goes to the other thread, because only it can be sent: the bar and `look` stay
        // here.
        let worker = scope.spawn(move || {
            let done = work();
            drop(ended);
            done
        });
        // The channel closes when the work is done, also when it panics.
        while has_ended.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            bar.set_message(look());
            bar.tick();
        }
        worker.join()
    });
    bar.finish_and_clear();
    // As if the work had run here: the bar is removed, and the panic's message is printed alone.
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns a bar that counts bytes whose total is unknown.
pub(crate) fn counting(deed: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_prefix(deed.to_owned());
    let style = "{spinner} {prefix}, {elapsed}: {bytes}, {bytes_per_sec}";
    bar.with_style(ProgressStyle::with_template(style).expect("the template is well formed"))
}

/// Returns the size of the files in a folder, as words.
#[expect(clippy::disallowed_methods, reason = "the folder is no open database")]
pub(crate) fn folder_bytes(folder: &Path) -> String {
    let mut bytes = 0;
    for name in fs::read_dir(folder).into_iter().flatten().flatten() {
        bytes += name.metadata().map_or(0, |found| found.len());
    }
    HumanBytes(bytes).to_string()
}

/// Returns the bytes that compactions of the partition have read since `before`.
pub(crate) fn compacted(db: &Db, partition: &str, before: u64) -> String {
    let stats = db.stats();
    let read = stats.compaction_read_bytes.saturating_sub(before);
    let found = stats.partitions.iter().find(|found| found.name == partition);
    let size: u64 = found.map_or(0, |found| found.levels.iter().map(|level| level.bytes).sum());
    format!("{} read of {}", HumanBytes(read), HumanBytes(size))
}

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Returns `true` once the user has asked for an end with Ctrl-C, if
/// [`watch_for_interrupt`] was called before.
pub(crate) fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

/// Makes Ctrl-C request an end instead of ending the process. A second Ctrl-C ends it at once.
pub(crate) fn watch_for_interrupt() -> Result<(), Failure> {
    handle_interrupt(interrupt)
}

pub(crate) fn interrupt() {
    if IS_INTERRUPTED.swap(true, Ordering::Relaxed) {
        // A run that does not reach its next file can still be ended.
        end_now();
    }
}

/// Makes Ctrl-C end the process at once, after a line on standard error. It may be called once, and not together with
/// [`watch_for_interrupt`].
pub(crate) fn end_at_interrupt(message: String) -> Result<(), Failure> {
    handle_interrupt(move || {
        note(&message);
        end_now()
    })
}

/// Makes Ctrl-C end nothing here: the process that a shell waits for gets it as well.
pub(crate) fn ignore_interrupts() -> Result<(), Failure> {
    handle_interrupt(|| {})
}

fn handle_interrupt(handler: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    ctrlc::set_handler(handler)
        .map_err(|error| Failure::Io(format!("cannot wait for Ctrl-C: {error}")))
}

/// Shells expect 130 for Ctrl-C.
fn end_now() -> ! {
    std::process::exit(130)
}

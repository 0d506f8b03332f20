//! The command and buckets: `siltstone remote`, URLs in the place of folders, and `--remote`. The bucket is a folder.

#![expect(
    clippy::disallowed_methods,
    reason = "sources and buckets are files outside every database"
)]

mod bucket;
mod command_urls;
#[cfg(target_os = "linux")]
#[path = "../interrupt/mod.rs"]
mod interrupt;
#[path = "../runner/mod.rs"]
mod runner;
mod verbs;

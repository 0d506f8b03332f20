//! Many databases in one process, one for each tenant: they share a cache, memory, threads, a rate and open files.
//!
//! `cargo run --release --example many_databases -- 1000` prints what 1,000 of them take, and
//! `... -- 1000 alone` the same without sharing. On Linux.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;
use std::time::Instant;

use siltstone::{Db, ResourceOptions, Resources, Result};

const ENTRIES: u32 = 200;

/// The value of a field of `/proc/self/status`, in its unit.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[expect(clippy::disallowed_methods, reason = "it lists its own descriptors")]
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn open(folder: &Path, tenant: usize, resources: Option<&Resources>) -> Result<Db> {
    let builder = Db::builder(folder.join(format!("tenant-{tenant}")));
    match resources {
        Some(resources) => builder.resources(resources).open(),
        None => builder.open(),
    }
}

fn print_use(title: &str) {
    println!(
        "{title:<22} {:>6} threads, {:>6} descriptors, {:>6} MiB resident",
        status("Threads:"),
        open_descriptors(),
        status("VmRSS:") / 1024
    );
}

#[expect(clippy::disallowed_methods, reason = "it measures the time of opens")]
fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(20);
    let is_alone = arguments.next().is_some_and(|word| word == "alone");
    let folder = std::env::temp_dir().join(format!("siltstone-tenants-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder of temporary files is writable");
    print_use("before");

    // Made once. Each option is for all databases together.
    let options = ResourceOptions::new().cache_bytes(64 << 20).write_buffer_bytes(32 << 20);
    let resources = Resources::new(options.open_files_max(500))?;
    let shared = (!is_alone).then_some(&resources);
    let started = Instant::now();
    let tenants: Vec<Db> =
        (0..count).map(|tenant| open(&folder, tenant, shared)).collect::<Result<_>>()?;
    println!("created in {:.2?}", started.elapsed());
    print_use("open");

    for (tenant, db) in tenants.iter().enumerate() {
        let orders = db.partition("orders")?;
        for n in 0..ENTRIES {
            orders
                .put(n.to_be_bytes(), format!("order {n} of tenant {tenant}, with some details"))?;
        }
    }
    print_use("written");
    for (tenant, db) in tenants.iter().enumerate() {
        db.flush()?;
        // Each database has tables of the same numbers in the cache, and its own entries.
        let order = db.partition("orders")?.get(7_u32.to_be_bytes())?.expect("it was written");
        assert!(order.starts_with(format!("order 7 of tenant {tenant},").as_bytes()));
    }
    print_use("flushed and read");
    if !is_alone {
        let usage = resources.usage();
        println!("together: {usage:?}");
        assert!(usage.open_files <= usage.open_files_max && usage.databases == count as u64);
        // One tenant goes; the cache and the files that it used are free for the others.
        let busy = &tenants[0].stats();
        println!(
            "tenant 0: {} bytes of the cache, {} open files",
            busy.cache_bytes, busy.open_files
        );
    }
    tenants.into_iter().try_for_each(Db::close)?;
    print_use("closed");

    let started = Instant::now();
    let tenants: Vec<Db> =
        (0..count).map(|tenant| open(&folder, tenant, shared)).collect::<Result<_>>()?;
    println!("opened again in {:.2?}", started.elapsed());
    drop(tenants);
    assert_eq!(resources.usage().databases, 0);
    std::fs::remove_dir_all(&folder).expect("nothing has the folder open");
    Ok(())
}

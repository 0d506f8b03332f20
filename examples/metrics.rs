//! A page of metrics for Prometheus: the figures of a database, of its health, of shared resources and of a secondary, as a
//! program serves them on a port of its own.
//!
//! `cargo run --example metrics`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use siltstone::metrics::prometheus;
use siltstone::secondary::{Secondary, Target};
use siltstone::{Db, ResourceOptions, Resources, Result};

/// The text of all figures. No metric is in two of them, so one text follows the other.
fn page(db: &Db, resources: &Resources, reader: &Secondary) -> String {
    let labels = [("db", "main")];
    [
        prometheus(&db.stats(), &labels),
        prometheus(&db.health(), &labels),
        prometheus(&resources.usage(), &[]),
        prometheus(&reader.stats(), &labels),
    ]
    .concat()
}

/// Answers one request.
fn answer(listener: &TcpListener, page: &str) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let _ = stream.read(&mut [0; 1024])?;
    write!(
        stream,
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    )
}

/// Asks as Prometheus does; returns the samples.
fn ask(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-metrics-{}", std::process::id()));
    let resources = Resources::new(ResourceOptions::new().cache_bytes(32 << 20))?;
    let db = Db::builder(&folder).resources(&resources).open()?;
    let users = db.partition("users")?;
    for n in 0..1000_u32 {
        users.put(n.to_be_bytes(), [7; 100])?;
    }
    db.flush()?;
    let reader = Db::secondary(&folder)?;
    reader.sync(Target::Latest)?;

    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let asked = thread::spawn(move || ask(address));
    answer(&listener, &page(&db, &resources, &reader)).expect("the request is answered");
    let text = asked.join().expect("it does not panic").expect("the page arrives");
    for name in [
        "siltstone_batches_total",
        "siltstone_healthy",
        "siltstone_resources_databases",
        "siltstone_secondary_partition_lag_operations",
    ] {
        let sample = text.lines().find(|line| line.starts_with(name)).expect("it has a sample");
        println!("{sample}");
    }
    println!("for people:\n{}", resources.usage());

    drop((users, reader));
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("the folder can be removed");
    Ok(())
}

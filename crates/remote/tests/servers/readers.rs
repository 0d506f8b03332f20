//! Strong reads by several processes, of commits that were acknowledged before the read.

use std::io::BufRead;

use remote::Remote;
use siltstone::secondary::Level;
use siltstone::{Durability, Readable};

use crate::{Place, Talker, child_arguments};

/// A reader: does nothing unless a parent starts it.
#[test]
fn child_that_reads_when_it_is_asked() {
    let Some(arguments) = child_arguments() else { return };
    let reader = Remote::url(&arguments[0]).unwrap().reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    println!("> open");
    for key in std::io::stdin().lock().lines() {
        let found = users.at(Level::Strong).unwrap().contains(key.unwrap()).unwrap();
        println!("> found {found}");
    }
}

#[test]
fn strong_reads_of_other_processes_see_what_is_acknowledged() {
    let place = Place::new("strong");
    let remote = place.remote();
    let mut primary = remote.primary(place.dir("0")).unwrap();
    let mut db = primary.builder().open().unwrap();
    db.partition("users").unwrap().put_with("first", "x", Durability::Sync).unwrap();
    let child = "readers::child_that_reads_when_it_is_asked";
    let mut readers: Vec<_> = (0..3).map(|_| Talker::start(child, &[&place.url])).collect();
    readers.iter().for_each(|reader| drop(reader.hear("open")));
    for number in 0..60 {
        if number % 20 == 10 {
            // Also by another writer, while the one before lives.
            let next = remote.take_over(place.dir(&number.to_string())).unwrap();
            db = next.builder().open().unwrap();
            primary = next;
        }
        let key = format!("key{number}");
        db.partition("users").unwrap().put_with(&key, "x", Durability::Sync).unwrap();
        readers.iter_mut().for_each(|reader| reader.tell(&key));
        for reader in &readers {
            assert_eq!(reader.hear("found"), "true", "{key}");
        }
    }
    drop(primary);
}

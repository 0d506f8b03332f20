//! Every workload on an ordered map.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Default)]
struct Map(Arc<Mutex<Entries>>);

impl Engine for Map {
    type Error = Infallible;

    fn put(&self, key: &[u8], value: &[u8], _: Ack) -> Result<(), Infallible> {
        self.0.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&self, key: &[u8], _: Ack) -> Result<(), Infallible> {
        self.0.lock().unwrap().remove(key);
        Ok(())
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], _: Ack) -> Result<(), Infallible> {
        self.0.lock().unwrap().extend(entries.iter().cloned());
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, Infallible> {
        Ok(self.0.lock().unwrap().get(key).map(Vec::len))
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Infallible> {
        let map = self.0.lock().unwrap();
        map.range(key.to_vec()..).take(entries as usize).for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn scan(
        &self,
        direction: ScanDirection,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Infallible> {
        let map = self.0.lock().unwrap();
        match direction {
            ScanDirection::Up => map.iter().all(|(key, value)| visit(key, value)),
            ScanDirection::Down => map.iter().rev().all(|(key, value)| visit(key, value)),
        };
        Ok(())
    }

    fn settle(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

fn plan(ops: Option<u64>) -> Plan {
    let key_bytes = 16;
    let value_bytes = 100;
    let threads = 2;
    let limit = None;
    let idle_loop = false;
    let write_rate = None;
    let when = Ack::Os;
    Plan {
        records: 1000,
        ops,
        limit,
        idle_loop,
        key_bytes,
        value_bytes,
        threads,
        write_rate,
        when,
        seed: 7,
    }
}

fn run(bench: &mut Bench<Map>, kind: Kind) -> Outcome {
    let Ok(outcome) = bench.run(kind, kind.name(), Path::new("no such folder"), &mut |_| ());
    assert_eq!(outcome.disk_bytes, None);
    outcome
}

#[test]
fn every_workload_does_its_operations_and_finds_what_is_there() {
    for kind in Kind::ALL {
        let map = Map::default();
        let mut bench = Bench::new(plan(Some(600)), map.clone());
        if kind.needs_data() {
            assert_eq!(bench.is_loaded(), Ok(false));
            run(&mut bench, Kind::FillBatch);
            assert_eq!((bench.is_loaded(), map.count()), (Ok(true), Ok(1000)));
        }
        let outcome = run(&mut bench, kind);
        let name = kind.name();
        assert_eq!(kind, name.parse().unwrap());
        assert_eq!(outcome.tally.ops, if kind.fills() { 1000 } else { 600 }, "{name}");
        if kind.only_reads() {
            assert_eq!(outcome.user_bytes_written(), 0, "{name}");
        } else if kind != Kind::ReadWhileWriting {
            assert!(outcome.user_bytes_written() > 0, "{name}");
        }
        // With two threads, one may read the latest record before the other has inserted it.
        match kind {
            Kind::ReadMissing => assert_eq!((outcome.tally.found, outcome.tally.missed), (0, 600)),
            Kind::YcsbD => assert!(outcome.tally.missed < 60, "{}", outcome.tally.missed),
            _ => assert_eq!(outcome.tally.missed, 0, "{name}"),
        }
        let count = map.count().unwrap();
        match kind {
            Kind::DeleteRandom => assert_eq!(count, 400),
            Kind::FillSync => assert_eq!(count, 600),
            Kind::YcsbD | Kind::YcsbE => assert!((1001..1100).contains(&count), "{count}"),
            _ => assert_eq!(count, 1000, "{name}"),
        }
    }
}

#[test]
fn fills_make_the_same_data_set_and_scans_go_round() {
    let fill = |kind| {
        let map = Map::default();
        let mut bench = Bench::new(plan(Some(2500)), map.clone());
        run(&mut bench, kind);
        let up = run(&mut bench, Kind::Scan).tally.read_bytes;
        assert_eq!((up, run(&mut bench, Kind::ScanReverse).tally.read_bytes), (290_000, 290_000));
        let keys: Vec<Vec<u8>> = map.0.lock().unwrap().keys().cloned().collect();
        keys
    };
    assert_eq!(fill(Kind::FillSeq), fill(Kind::FillRandom));
    assert_eq!(fill(Kind::FillSeq), fill(Kind::FillBatch));
}

#[test]
fn a_limit_ends_what_has_operations_without_end() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.needs_data()) {
        let limit = Some(Duration::from_millis(1));
        let endless = Plan { limit, idle_loop: true, ..plan(Some(u64::MAX)) };
        let mut bench = Bench::new(endless, Map::default());
        assert_eq!(run(&mut bench, Kind::FillRandom).tally.ops, 1000);
        let outcome = run(&mut bench, kind);
        let name = kind.name();
        assert!(outcome.tally.ops > 0, "{name}");
        assert!(outcome.idle_pause > Some(Duration::ZERO), "{name}");
    }
}

#[test]
fn a_rate_bounds_the_writes_during_reads() {
    let limit = Some(Duration::from_millis(1));
    let write_rate = NonZeroU64::new(50);
    let slow = Plan { limit, write_rate, ..plan(Some(u64::MAX)) };
    let mut bench = Bench::new(slow, Map::default());
    run(&mut bench, Kind::FillRandom);
    let outcome = run(&mut bench, Kind::ReadWhileWriting);
    // The first write is due at once, and one may come while the readers end.
    let allowed = 2 + (outcome.elapsed.as_secs_f64() * 50.0) as u64;
    let writes = outcome.beside.unwrap().ops;
    assert!((1..=allowed).contains(&writes), "{writes} in {:?}", outcome.elapsed);
}

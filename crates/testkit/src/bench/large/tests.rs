//! The workload over a map, and files that describe no workload.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::*;

#[derive(Default)]
struct Map {
    values: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// For each get of a value of 1000 bytes with a thread count, the count.
    threads: RefCell<Vec<usize>>,
    forgets: bool,
}

impl LargeEngine for Map {
    type Error = ();

    fn put(&self, key: &[u8], value: &[u8], _when: Ack) -> Result<(), ()> {
        self.values.borrow_mut().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn get(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, ()> {
        let values = self.values.borrow();
        let Some(value) = values.get(key) else { return Ok(None) };
        buf[..value.len()].copy_from_slice(value);
        if self.forgets {
            buf[value.len() - 1] ^= 1;
        }
        Ok(Some(value.len()))
    }

    fn get_by(&self, key: &[u8], buf: &mut [u8], threads: usize) -> Result<Option<usize>, ()> {
        if buf.len() == 1000 {
            self.threads.borrow_mut().push(threads);
        }
        self.get(key, buf)
    }

    fn lend(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, ()> {
        let values = self.values.borrow();
        let value = values.get(key).filter(|value| value.len() == 1000);
        value.into_iter().for_each(|value| visit(value));
        Ok(value.map(|_| true))
    }

    fn delete(&self, key: &[u8]) -> Result<(), ()> {
        assert!(self.values.borrow_mut().remove(key).is_some(), "deleted once");
        Ok(())
    }

    fn reclaim(&self) -> Result<(), ()> {
        Ok(())
    }
}

fn small() -> LargePlan {
    let plan = LargePlan::parse(DEFAULT_WORKLOAD).unwrap();
    LargePlan { sizes: vec![100, 1000], bytes_per_size: 5000, ..plan }
}

#[test]
fn every_value_is_put_read_and_deleted() {
    let map = Map::default();
    let plan = small();
    let outcome = LargeBench::new(&map, &plan, 1).run(&mut |_| {}).unwrap();
    let sizes: Vec<_> = outcome.sizes.iter().map(|r| (r.size, r.repetitions)).collect();
    assert_eq!(sizes, [(100, 50), (1000, 5)]);
    let lent: Vec<bool> = outcome.sizes.iter().map(|rates| rates.lent.is_some()).collect();
    assert_eq!(lent, [false, true]);
    let threads: Vec<u64> = outcome.sizes[1].get_by.iter().map(|(threads, _)| *threads).collect();
    assert_eq!(threads, [1, 2, 3, 4, 5]);
    assert_eq!(map.threads.take(), [1, 2, 3, 4, 5].map(|threads| [threads; 5]).concat());
    assert_eq!(outcome.mixes.len(), plan.mixes.len());
    assert!(outcome.mixes.iter().all(|mix| mix.bytes > 0) && map.values.borrow().is_empty());
}

#[test]
fn a_wrong_byte_ends_the_run() {
    let map = Map { forgets: true, ..Map::default() };
    let plan = small();
    let failure = LargeBench::new(&map, &plan, 1).random_of_64(20).run(&mut |_| {}).unwrap_err();
    assert!(matches!(failure, LargeFailure::Wrong(key) if key.starts_with("put-0-")));
}

#[test]
fn a_workload_that_makes_no_sense_is_refused_by_the_name_of_its_field() {
    for (from, to, named) in [
        ("\"repetitions\"", "\"repetition\"", "repetitions"),
        ("\"trim_percent\": 7", "\"trim_percent\": 50", "trim_percent"),
        ("100000,", "15,", "sizes"),
        ("\"mixes\": [", "\"mixes\": 1, \"other\": [", "mixes"),
    ] {
        let text = DEFAULT_WORKLOAD.replacen(from, to, 1);
        assert_ne!(text, DEFAULT_WORKLOAD, "{from}");
        assert!(LargePlan::parse(&text).unwrap_err().starts_with(named), "{to}");
    }
}

#[test]
fn sizes_are_left_out_with_their_own_weights() {
    let mut plan = LargePlan::parse(DEFAULT_WORKLOAD).unwrap();
    plan.sizes = vec![700, 100, 900, 300, 200];
    plan.mix_weights = vec![7, 1, 9, 3];
    plan.leave_out_above(300);
    assert_eq!((plan.sizes, plan.mix_weights), (vec![100, 300, 200], vec![1, 3, 0]));
}

#[test]
fn outliers_are_left_out_at_both_ends() {
    let mut times = vec![Duration::from_millis(2); 86];
    times.extend([Duration::from_secs(9); 7]);
    times.extend([Duration::from_nanos(1); 7]);
    assert!((trimmed_rate(times, 1000, 7) - 500.0).abs() < 1e-6);
}

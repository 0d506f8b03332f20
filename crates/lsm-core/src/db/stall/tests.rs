//! Pressures and waits over partitions without background work.

use std::sync::atomic::AtomicUsize;

use super::pressure::share;
use super::*;
use crate::db::testing::partition_with;
use crate::stats::Counters;
use crate::types::{EntryKind, Operation, OperationChecksum, SectionBytes, SeqNo};

const BUFFER: u64 = 1 << 20;

#[derive(Default)]
struct TestEnv {
    partitions: Mutex<Vec<Arc<PartitionState>>>,
    /// The number of times that all partitions were asked for.
    walks: AtomicUsize,
    /// Background work fails for these.
    failing: Mutex<BTreeMap<PartitionId, Error>>,
    reported: Mutex<Vec<(String, u32)>>,
    counters: Counters,
}

impl StallEnv for TestEnv {
    fn partitions(&self) -> Vec<Arc<PartitionState>> {
        self.walks.fetch_add(1, Ordering::Relaxed);
        self.partitions.lock().clone()
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn check_open(&self) -> Result<()> {
        Ok(())
    }

    fn obstacle(&self, partition: &PartitionState, _: StallCause) -> Option<Error> {
        self.failing.lock().get(&partition.id).cloned()
    }

    fn tell(&self, event: &Event) {
        if let Event::StallChanged { partition, pressure_permille, .. } = event {
            self.reported.lock().push((partition.clone(), *pressure_permille));
        }
    }

    fn deliver(&self) {}

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn env(count: u32) -> (Arc<TestEnv>, Vec<Arc<PartitionState>>) {
    let partitions: Vec<_> = (0..count).map(|id| partition_with(id, true)).collect();
    let env = TestEnv { partitions: Mutex::new(partitions.clone()), ..TestEnv::default() };
    (Arc::new(env), partitions)
}

/// Seals a memtable of the partition that holds a value of `len` bytes; how much it takes.
fn seal(partition: &PartitionState, len: usize) -> u64 {
    let section = SectionBytes::Shared(vec![b'x'; 1 + len].into());
    let operation = Operation { kind: EntryKind::Value, key: 0..1, value: 1..1 + len };
    let view = partition.view();
    let seq = SeqNo::new(1).unwrap();
    let sums = OperationChecksum::new(EntryKind::Value, &section[..1], &section[1..]);
    let bytes = view.active.writer().insert(seq, 0, sums, &section, &operation).unwrap();
    partition.seal().unwrap();
    bytes
}

fn one(partition: &PartitionState) -> impl Iterator<Item = &PartitionState> + Clone {
    std::iter::once(partition)
}

#[test]
fn pressure_rises_from_the_soft_limit_to_the_hard_one() {
    let at = |got| share(got, 20, 40);
    assert_eq!([at(0), at(20), at(30), at(40), at(400)], [0, 0, 500, 1000, 1000]);
    assert_eq!(share(u64::MAX, 0, u64::MAX), STOP);
}

#[test]
fn sealed_memtables_are_summed_as_they_come_and_go() {
    let (env, partitions) = env(3);
    let stall = Stall::new(BUFFER, env.clone());
    let mut sum = 0;
    for partition in &partitions {
        for len in [100, 5000] {
            sum += seal(partition, len);
            stall.update(one(partition));
            assert_eq!(stall.sealed_bytes(), sum);
        }
    }
    // Counted as they are, and not once more.
    stall.update(partitions.iter().map(|partition| &**partition));
    assert_eq!(stall.sealed_bytes(), sum);
    let dropped: u64 = partitions[1].view().sealed.iter().map(|memtable| memtable.bytes()).sum();
    partitions[1].mark_dropped(0);
    stall.update(one(&partitions[1]));
    assert_eq!(stall.sealed_bytes(), sum - dropped);
}

/// The commit path updates it while writers wait, so it must not walk over all partitions for a
/// change of one.
#[test]
fn an_update_looks_at_all_partitions_only_when_all_are_held_back_or_let_go() {
    let (env, partitions) = env(50);
    let stall = Stall::new(BUFFER, env.clone());
    for partition in &partitions {
        seal(partition, 1000);
        stall.update(one(partition));
    }
    assert_eq!(env.walks.load(Ordering::Relaxed), 0);
    seal(&partitions[0], (SEALED_SOFT * BUFFER / 2) as usize);
    stall.update(one(&partitions[0]));
    assert_eq!(env.walks.load(Ordering::Relaxed), 1);
    assert_eq!(env.reported.lock().len(), 50, "each partition's writers are slowed down");
    seal(&partitions[1], 1000);
    stall.update(one(&partitions[1]));
    assert_eq!(env.walks.load(Ordering::Relaxed), 1);
}

/// A healthy partition waits for its own relief, whatever the state of another.
#[test]
fn only_what_stands_in_the_way_of_the_stopped_partition_fails_its_writers() {
    let (env, partitions) = env(2);
    let stall = Stall::new(BUFFER, env.clone());
    let rotten = Error::new(ErrorKind::Corruption, "a table is rotten");
    env.failing.lock().insert(partitions[0].id, rotten);
    for partition in &partitions {
        partition.pressure.store(STOP, Ordering::Relaxed);
    }
    std::thread::scope(|scope| {
        let sound = scope.spawn(|| stall.admit(None, one(&partitions[1]), 10));
        while !sound.is_finished() {
            partitions[1].pressure.store(0, Ordering::Relaxed);
            stall.ease();
            std::thread::yield_now();
        }
        sound.join().unwrap().unwrap();
    });
    let refused = stall.wait_while_stopped(&[&partitions[0]], 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corruption);
    partitions[0].mark_dropped(0);
    stall.admit(None, one(&partitions[0]), 10).unwrap();
}

#[test]
fn what_is_due_is_paid_in_full() {
    let seconds = Duration::from_secs;
    let mut debt = Debt { left: seconds(100), pressure: 800 };
    debt.pay(seconds(1), 800);
    assert_eq!(debt.left, seconds(99), "an easing that changes nothing shortens nothing");
    debt.pay(seconds(19), 400);
    assert_eq!(debt.left, seconds(20), "at half the pressure a quarter is left to pay");
    debt.pay(seconds(1), 900);
    assert_eq!(debt.left, seconds(19), "a higher pressure is for the writes that come");
    debt.pay(Duration::ZERO, 0);
    assert_eq!(debt.left, Duration::ZERO, "no wait without a reason");
}

#[test]
fn short_waits_are_saved_up_and_paid_once() {
    let (env, partitions) = env(1);
    let stall = Stall::new(BUFFER, env.clone());
    partitions[0].pressure.store(500, Ordering::Relaxed);
    let each = wait_nanos(100, 500);
    for count in 1..=5 {
        stall.pay(&[&partitions[0]], 100).unwrap();
        assert_eq!(stall.delay_due.load(Ordering::Relaxed), count * each);
    }
    let rest = u64::try_from(PARK_MIN.as_nanos()).unwrap() * 1024 / (NANOS_PER_KIB / 4);
    stall.pay(&[&partitions[0]], rest).unwrap();
    assert_eq!(stall.delay_due.load(Ordering::Relaxed), 0);
}

#[test]
fn health_names_those_that_are_held_back_and_for_how_long() {
    let (env, partitions) = env(2);
    let stall = Stall::new(BUFFER, env);
    let minute = Duration::from_secs(60);
    assert!(stall.health(&partitions, minute).is_empty());
    for _ in 0..5 {
        seal(&partitions[0], BUFFER as usize / 2);
    }
    stall.update(one(&partitions[0]));
    let held = stall.health(&partitions, minute);
    assert_eq!(held.len(), 2, "sealed memory holds all of them back");
    let first = &held[0];
    assert_eq!(
        (first.partition.as_str(), first.reason),
        ("partition-0", StallCause::Sealed.text())
    );
    assert!(first.pressure_permille >= 500);
    assert_eq!(first.since, minute, "it was reported at the time 0");
}

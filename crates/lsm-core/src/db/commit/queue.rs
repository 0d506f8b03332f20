//! [`Queue`]: the choice of the next leader, and the wait of the others.
//!
//! A group takes about a microsecond, and waking a parked thread takes tens of them. So a follower
//! first stays awake for some time. The lead is not handed to a follower that is awake: it is left
//! free, and the first thread that runs takes it, a waiting follower or the next caller. Handing it
//! to the oldest follower, as to a ticket, would make all writers wait for one whose thread the
//! system has stopped. No follower starves, because each leader takes all waiting writers into its
//! group, the oldest first.
//!
//! A follower that asks for a sync parks at once: it waits for the device anyway.
//!
//! Invariants, which all hold whenever the lock is free:
//! 1. A request is in `waiting` exactly while its state is not [`FollowerStage::TAKEN`].
//! 2. `awake` is the number of requests in `waiting` whose state is [`FollowerStage::AWAKE`].
//! 3. If there are waiters and no leader, a follower is awake. It does not park before it has seen,
//!    under the lock, that there is a leader.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::{Refusal, Visible};
use crate::db::prepared::Prepared;
use crate::error::Result;
use crate::machine;

/// Frames of followers beyond this many bytes wait for the next group.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// Times that a follower looks for its answer before it yields.
const SPINS: u32 = 64;
/// Times that it yields before it parks.
const YIELDS: u32 = 32;

/// The answer to a follower.
pub(super) enum Answer {
    Waiting,
    Lead,
    Done(Result<Visible, Refusal>),
}

/// The stage of a follower, which shows a leader whether it must be woken.
struct FollowerStage;

impl FollowerStage {
    const AWAKE: u8 = 0;
    const PARKED: u8 = 1;
    const TAKEN: u8 = 2;
}

/// A follower: a batch that waits for the leader.
pub(super) struct Request {
    pub(super) batch: Prepared<'static>,
    /// A [`FollowerStage`]; changed under the lock of the queue.
    state: AtomicU8,
    /// Stored with release after `answer`.
    is_answered: AtomicBool,
    answer: Mutex<Answer>,
    changed: Condvar,
}

impl Request {
    /// Answers it, and wakes it if it is parked.
    pub(super) fn answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
        self.is_answered.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }

    /// Parks until it is answered; `None` means to lead.
    fn park(&self) -> Option<Result<Visible, Refusal>> {
        let mut answer = self.answer.lock();
        loop {
            match std::mem::replace(&mut *answer, Answer::Waiting) {
                Answer::Waiting => self.changed.wait(&mut answer),
                Answer::Lead => return None,
                Answer::Done(done) => return Some(done),
            }
        }
    }
}

/// The role of a batch in the queue. A leader allocates nothing for it, and copies nothing.
pub(super) enum WriterRole<'a> {
    Lead(Prepared<'a>),
    Follow(Arc<Request>),
}

impl<'a> WriterRole<'a> {
    pub(super) fn batch(&self) -> &Prepared<'a> {
        match self {
            WriterRole::Lead(batch) => batch,
            WriterRole::Follow(request) => &request.batch,
        }
    }
}

#[derive(Default)]
struct Followers {
    requests: VecDeque<Arc<Request>>,
    awake: usize,
}

impl Followers {
    /// Notes that a request leaves the queue.
    fn note_taken(&mut self, request: &Request) {
        if request.state.swap(FollowerStage::TAKEN, Ordering::Relaxed) == FollowerStage::AWAKE {
            self.awake -= 1;
        }
    }

    fn pop(&mut self) -> Option<Arc<Request>> {
        let request = self.requests.pop_front()?;
        self.note_taken(&request);
        Some(request)
    }
}

/// The leader and the waiting followers.
pub(super) struct Queue {
    waiting: Mutex<Followers>,
    /// Changed under the lock of `waiting`. Followers read it without the lock.
    is_led: AtomicBool,
    /// The number of times that a follower looks for its answer while it spins, and while it yields.
    patience: [u32; 2],
}

impl Queue {
    pub(super) fn new() -> Queue {
        // With one processor, the leader does not run while a follower spins.
        let is_alone = machine::processors() == 1;
        Queue::with_patience([if is_alone { 0 } else { SPINS }, YIELDS])
    }

    pub(super) fn with_patience(patience: [u32; 2]) -> Queue {
        Queue { waiting: Mutex::default(), is_led: AtomicBool::new(false), patience }
    }

    /// Queues the batch as a follower, or makes the caller the leader if there is none.
    pub(super) fn join<'a>(&self, batch: Prepared<'a>) -> WriterRole<'a> {
        let waiting = self.waiting.lock();
        if self.try_lead() {
            return WriterRole::Lead(batch);
        }
        // All writers take this lock, so nothing is copied under it.
        drop(waiting);
        self.follow(batch.into_owned())
    }

    /// Queues a copied batch, or makes the caller the leader if there is none any more.
    fn follow(&self, batch: Prepared<'static>) -> WriterRole<'static> {
        let mut waiting = self.waiting.lock();
        if self.try_lead() {
            return WriterRole::Lead(batch);
        }
        let state = if batch.asks_sync() { FollowerStage::PARKED } else { FollowerStage::AWAKE };
        let request = Arc::new(Request {
            batch,
            state: AtomicU8::new(state),
            is_answered: AtomicBool::new(false),
            answer: Mutex::new(Answer::Waiting),
            changed: Condvar::new(),
        });
        waiting.awake += usize::from(state == FollowerStage::AWAKE);
        waiting.requests.push_back(request.clone());
        WriterRole::Follow(request)
    }

    /// Under the lock of `waiting`.
    fn try_lead(&self) -> bool {
        let is_free = !self.is_led.load(Ordering::Relaxed);
        if is_free {
            self.is_led.store(true, Ordering::Relaxed);
        }
        is_free
    }

    /// Waits for the answer to a follower; `None` means to lead.
    pub(super) fn wait(&self, request: &Arc<Request>) -> Option<Result<Visible, Refusal>> {
        if request.state.load(Ordering::Relaxed) == FollowerStage::AWAKE && self.spin(request) {
            return None;
        }
        request.park()
    }

    /// Stays awake until there is an answer, or for so long that parking is better. Returns `true`
    /// if the caller leads.
    fn spin(&self, request: &Arc<Request>) -> bool {
        let [spins, yields] = self.patience;
        for turn in 0..spins + yields {
            if request.is_answered() {
                return false;
            }
            if !self.is_led.load(Ordering::Relaxed) && self.lead_or(request, FollowerStage::AWAKE) {
                return true;
            }
            if turn < spins {
                spin_loop();
            } else {
                thread::yield_now();
            }
        }
        self.lead_or(request, FollowerStage::PARKED)
    }

    /// Makes a waiting follower the leader if there is none, `true`; otherwise sets its `state`.
    fn lead_or(&self, request: &Arc<Request>, state: u8) -> bool {
        let mut waiting = self.waiting.lock();
        // Taken by a leader, which answers it.
        if request.state.load(Ordering::Relaxed) == FollowerStage::TAKEN {
            return false;
        }
        if self.try_lead() {
            waiting.requests.retain(|other| !Arc::ptr_eq(other, request));
            waiting.note_taken(request);
            return true;
        }
        if state == FollowerStage::PARKED {
            waiting.awake -= 1;
        }
        request.state.store(state, Ordering::Relaxed);
        false
    }

    /// The followers that go into the group of a leader with this batch.
    pub(super) fn take_followers(&self, own: &Prepared<'_>) -> Vec<Arc<Request>> {
        let mut waiting = self.waiting.lock();
        let mut bytes = own.bytes();
        let mut followers = Vec::new();
        // Bounded, because every member waits for the append of the whole group. A leader with a
        // larger batch has no followers.
        while bytes < GROUP_BYTES_MAX
            && let Some(request) = waiting.pop()
        {
            bytes += request.batch.bytes();
            followers.push(request);
        }
        followers
    }

    /// Ends the lead of the caller.
    pub(super) fn hand_over(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.awake == 0
            && let Some(next) = waiting.pop()
        {
            // All waiting followers are parked. The oldest of them leads next.
            drop(waiting);
            next.answer(Answer::Lead);
            return;
        }
        self.is_led.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if there is a leader and `count` others wait.
    #[cfg(test)]
    pub(super) fn has_waiting(&self, count: usize) -> bool {
        let waiting = self.waiting.lock();
        self.is_led.load(Ordering::Relaxed) && waiting.requests.len() == count
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{batch, prepare};
    use super::*;
    use crate::db::testing::partition;
    use crate::options::Durability;

    fn prepared(key: &'static str, durability: Durability) -> Prepared<'static> {
        let batch = batch(key, 1, durability);
        prepare(&partition(true), batch.key, &batch.value, durability)
    }

    fn lead(queue: &Queue) -> Prepared<'static> {
        match queue.join(prepared("leader", Durability::Os)) {
            WriterRole::Lead(batch) => batch,
            WriterRole::Follow(_) => panic!("there is a leader"),
        }
    }

    fn wait_in_queue(queue: &Queue, durability: Durability) -> Arc<Request> {
        match queue.join(prepared("follower", durability)) {
            WriterRole::Lead(_) => panic!("there is no leader"),
            WriterRole::Follow(request) => request,
        }
    }

    #[test]
    fn a_caller_takes_the_free_lead_and_the_follower_that_did_not_run() {
        let queue = Queue::new();
        lead(&queue);
        let waiting = wait_in_queue(&queue, Durability::Os);
        queue.hand_over();
        let next = lead(&queue);
        let followers = queue.take_followers(&next);
        assert!(followers.len() == 1 && Arc::ptr_eq(&followers[0], &waiting));
        waiting.answer(Answer::Done(Err(Refusal::Unproven)));
        assert!(matches!(queue.wait(&waiting), Some(Err(Refusal::Unproven))));
        queue.hand_over();
        lead(&queue);
    }

    #[test]
    fn a_follower_that_is_awake_takes_the_free_lead_however_short_its_patience() {
        for patience in [[0, 0], [1, 0], [0, 1], [SPINS, YIELDS]] {
            let queue = Queue::with_patience(patience);
            lead(&queue);
            let requests = [(); 3].map(|()| wait_in_queue(&queue, Durability::Os));
            queue.hand_over();
            assert!(queue.wait(&requests[1]).is_none());
            // The others stay in their order.
            let followers = queue.take_followers(&requests[1].batch);
            let expected = [&requests[0], &requests[2]];
            assert!(followers.iter().zip(expected).all(|(found, own)| Arc::ptr_eq(found, own)));
            assert_eq!(followers.len(), 2);
            queue.hand_over();
            lead(&queue);
        }
    }

    #[test]
    fn a_writer_leads_if_the_leader_ended_while_it_copied_its_batch() {
        let queue = Queue::new();
        // `join` has found a leader, which has ended now.
        assert!(matches!(queue.follow(prepared("late", Durability::Sync)), WriterRole::Lead(_)));
        assert!(matches!(queue.follow(prepared("later", Durability::Os)), WriterRole::Follow(_)));
    }

    #[test]
    fn the_oldest_follower_leads_next_if_all_are_parked() {
        let queue = Queue::new();
        lead(&queue);
        let parked = wait_in_queue(&queue, Durability::Sync);
        let later = wait_in_queue(&queue, Durability::Sync);
        queue.hand_over();
        assert!(queue.wait(&parked).is_none());
        assert_eq!(queue.take_followers(&parked.batch).len(), 1);
        later.answer(Answer::Done(Err(Refusal::Unproven)));
        assert!(queue.wait(&later).is_some());
        // It leads until it hands over.
        wait_in_queue(&queue, Durability::Os);
    }

    #[test]
    fn a_follower_parks_only_while_somebody_leads() {
        let queue = Queue::new();
        lead(&queue);
        let first = wait_in_queue(&queue, Durability::Os);
        let second = wait_in_queue(&queue, Durability::Os);
        assert!(!queue.lead_or(&first, FollowerStage::PARKED));
        queue.hand_over();
        // The second one is awake, so the lead was free, and it leads before it parks.
        assert!(queue.lead_or(&second, FollowerStage::PARKED));
        queue.hand_over();
        assert!(queue.wait(&first).is_none(), "it was woken to lead");
    }
}

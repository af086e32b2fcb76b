//! Files of which the kernel has just filled its cache, and having it forget parts of them.
//!
//! Before the kernel sends a write past its cache it drops the pages of that range, and after a write that nobody waits for (AIO,
//! io_uring) it does not do so again: `fuse_aio_complete` has no counterpart to what `generic_file_direct_write` does at the end. A
//! page that is filled between the two, from what was there before the write, would be read for as long as the kernel keeps it,
//! and so would a page that a write through the cache leaves there and that reaches us first. So whoever writes past the cache to a file
//! that the cache has been filled from not long ago has the kernel forget the range once more before it is answered. It is answered without if
//! that takes long: then pages wait for a read that has not reached us, which will be answered with what was written. For those that have
//! reached us before, and may be answered with what was there, it does wait: they need nothing more of the kernel.
//!
//! Only what is filled while such a write is on its way matters, which ends the memory of it: [`SECONDS_KEPT`], far more than a write waits
//! before it gets here. (Not if the process is stopped for longer, after it has answered a read and with such a write waiting.)

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// What the kernel has filled is remembered for so long.
const SECONDS_KEPT: u32 = 600;
/// Places for files, by a hash: files that share one count as one.
const PLACES: usize = 1 << 16;
/// A thread that has had the kernel forget something waits so long for more.
const IDLE: Duration = Duration::from_secs(2);
/// How long an answer waits for the kernel to forget something.
const ANSWER_MAX: Duration = Duration::from_millis(100);
/// And how often so long again for a read that was there before.
const PUT_OFF_MAX: u32 = 300;

/// When the kernel last filled its cache from files.
pub(crate) struct Caches {
    /// Seconds since `begun`, from one on. Zero: never.
    filled: Box<[AtomicU32]>,
    /// Such reads that are being answered.
    reading: Box<[AtomicU32]>,
    hasher: std::hash::RandomState,
    begun: Instant,
}

impl Default for Caches {
    fn default() -> Caches {
        let places = || (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        Caches { filled: places(), reading: places(), hasher: Default::default(), begun: Instant::now() }
    }
}

impl Caches {
    fn place(&self, ino: u64) -> usize {
        self.hasher.hash_one(ino) as usize % PLACES
    }

    fn now(&self) -> u32 {
        u32::try_from(self.begun.elapsed().as_secs()).unwrap_or(u32::MAX - 1) + 1
    }

    /// The kernel is about to fill its cache from this file: to be said before the bytes are looked at.
    pub(crate) fn note(&self, ino: u64) {
        let (place, now) = (&self.filled[self.place(ino)], self.now());
        if place.load(SeqCst) != now {
            place.store(now, SeqCst);
        }
    }

    /// As [`Caches::note`]; to be kept until the read has its answer. (With rings the kernel gets that a moment later.)
    pub(crate) fn begin_read(&self, ino: u64) -> Reading<'_> {
        self.note(ino);
        let reading = &self.reading[self.place(ino)];
        reading.fetch_add(1, SeqCst);
        Reading(reading)
    }

    /// Whether the cache is being filled from this file, by what has reached us.
    pub(crate) fn is_read(&self, ino: u64) -> bool {
        self.reading[self.place(ino)].load(SeqCst) > 0
    }

    /// Whether the cache may have been filled from this file while a write past it was on its way: to be asked when the new bytes are there.
    pub(crate) fn may_be_stale(&self, ino: u64) -> bool {
        let filled = self.filled[self.place(ino)].load(SeqCst);
        filled != 0 && self.now().saturating_sub(filled) <= SECONDS_KEPT
    }
}

/// See [`Caches::begin_read`].
pub(crate) struct Reading<'a>(&'a AtomicU32);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

type Job = Box<dyn FnOnce() + Send>;
/// An answer, until somebody gives it.
type Answer = Arc<Mutex<Option<Job>>>;

struct Due {
    at: Instant,
    answer: Answer,
    /// Whether it has to wait for somebody all the same, who will be done without the kernel.
    waits: Box<dyn Fn() -> bool + Send>,
    /// How often it has been put off for that.
    put_off: u32,
}

/// Threads that wait for the kernel: to forget something it may need answers of ours, which no thread that serves requests can
/// wait for. There are as many as there are jobs, and a few seconds later none.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    more_answers: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job. Never fewer than there are jobs.
    idle: usize,
    /// When each answer is due at the latest, in that order.
    answers: VecDeque<Due>,
    /// A thread sees to that.
    is_watched: bool,
}

impl Waiters {
    /// Runs `work` on another thread and then `answer`, which comes after [`ANSWER_MAX`] at the latest: the kernel keeps a place for each
    /// request that is not answered and has few (for asynchronous ones in all, in rings for each processor), and what `work` waits for may be waiting
    /// for one.
    /// While it `waits` all the same it is put off, [`PUT_OFF_MAX`] times.
    pub(crate) fn run(
        &self,
        work: impl FnOnce() + Send + 'static,
        waits: impl Fn() -> bool + Send + 'static,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let answer: Answer = Arc::new(Mutex::new(Some(Box::new(answer))));
        let at = Instant::now() + ANSWER_MAX;
        let watched = self.watch(Due { at, answer: answer.clone(), waits: Box::new(waits), put_off: 0 });
        let theirs = answer.clone();
        let started = self.start(Box::new(move || {
            work();
            give(&theirs);
        }));
        if let Err(error) = watched.and(started) {
            tracing::error!("no thread to have a part of a file forgotten: {error}");
            give(&answer);
        }
    }

    /// Runs `work` on another thread, and when it has ended `answer` with what it says; with false if it takes [`PUT_OFF_MAX`] times
    /// [`ANSWER_MAX`], or there is no thread for it: with rings each request that waits keeps a place that `work` may be waiting for.
    pub(crate) fn run_whole(
        &self,
        work: impl FnOnce() -> bool + Send + 'static,
        answer: impl FnOnce(bool) + Send + 'static,
    ) {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = is_done.clone();
        let work = move || done.store(work(), SeqCst);
        self.run(work, || true, move || answer(is_done.load(SeqCst)));
    }

    fn start(&self, job: Job) -> io::Result<()> {
        let mut queue = self.0.queue.lock();
        if queue.idle > queue.jobs.len() {
            queue.jobs.push_back(job);
            self.0.more.notify_one();
            return Ok(());
        }
        drop(queue);
        let shared = self.0.clone();
        spawn(move || {
            job();
            shared.go_on();
        })
    }

    fn watch(&self, due: Due) -> io::Result<()> {
        let mut queue = self.0.queue.lock();
        // Those that have been given and are nobody's any more.
        while queue.answers.front().is_some_and(|due| Arc::strong_count(&due.answer) == 1) {
            queue.answers.pop_front();
        }
        queue.answers.push_back(due);
        if queue.is_watched {
            self.0.more_answers.notify_one();
            return Ok(());
        }
        let shared = self.0.clone();
        spawn(move || shared.watch()).inspect(|()| queue.is_watched = true)
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = || {
        varve_device::unpin_thread();
        work();
    };
    thread::Builder::new().name("varve-forget".into()).spawn(work).map(drop)
}

fn give(answer: &Answer) {
    let answer = answer.lock().take();
    if let Some(answer) = answer {
        answer();
    }
}

impl Shared {
    fn go_on(&self) {
        loop {
            let mut queue = self.queue.lock();
            queue.idle += 1;
            let until = Instant::now() + IDLE;
            while queue.jobs.is_empty() && !self.more.wait_until(&mut queue, until).timed_out() {}
            queue.idle -= 1;
            let Some(job) = queue.jobs.pop_front() else { return };
            drop(queue);
            job();
        }
    }

    fn watch(&self) {
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            let Some(first) = queue.answers.front() else {
                if self.more_answers.wait_for(&mut queue, IDLE).timed_out() && queue.answers.is_empty() {
                    queue.is_watched = false;
                    return;
                }
                continue;
            };
            let due = first.at;
            if due > now {
                // Those that come meanwhile are due later.
                MutexGuard::unlocked(&mut queue, || thread::sleep(due - now));
                continue;
            }
            let Some(mut due) = queue.answers.pop_front() else { continue };
            if due.put_off < PUT_OFF_MAX && Arc::strong_count(&due.answer) > 1 && (due.waits)() {
                due.put_off += 1;
                due.at = now + ANSWER_MAX;
                queue.answers.push_back(due);
                continue;
            }
            MutexGuard::unlocked(&mut queue, || give(&due.answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    // Goal: files are known from the moment they are noted on, for as long as is promised. Method: two files, and a past that is set back.
    #[test]
    fn files_are_remembered() {
        let mut caches = Caches::default();
        assert!(!caches.may_be_stale(7));
        caches.note(7);
        assert!(caches.may_be_stale(7));
        let others = (8..1000).filter(|ino| caches.may_be_stale(*ino)).count();
        assert!(others < 10, "{others}");
        let Some(past) = caches.begun.checked_sub(Duration::from_secs(u64::from(SECONDS_KEPT))) else {
            return;
        };
        caches.begun = past;
        assert!(caches.may_be_stale(7));
        let Some(past) = past.checked_sub(Duration::from_secs(2)) else { return };
        caches.begun = past;
        assert!(!caches.may_be_stale(7));
        caches.note(7);
        assert!(caches.may_be_stale(7));
    }

    // Goal: every job runs, none waits for another, and a thread takes more than one. Method: jobs that wait for each other, then jobs in a row.
    #[test]
    fn no_job_waits_for_another() {
        let waiters = Waiters::default();
        let (send, heard) = mpsc::channel();
        let mut steps: Vec<mpsc::Sender<()>> = Vec::new();
        for number in 0..5 {
            let (go, wait) = mpsc::channel();
            let (send, last) = (send.clone(), steps.last().cloned());
            let job = move || {
                if number < 4 {
                    wait.recv().unwrap();
                }
                send.send((number, thread::current().id())).unwrap();
                if let Some(last) = last {
                    last.send(()).unwrap();
                }
            };
            waiters.start(Box::new(job)).unwrap();
            steps.push(go);
        }
        let first: Vec<_> = (0..5).map(|_| heard.recv().unwrap()).collect();
        assert_eq!(first.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
        let begun = Instant::now();
        while waiters.0.queue.lock().idle < 5 {
            assert!(begun.elapsed() < IDLE, "they do not wait for more");
            thread::yield_now();
        }
        let send_on = send.clone();
        waiters.start(Box::new(move || send_on.send((5, thread::current().id())).unwrap())).unwrap();
        let (_, again) = heard.recv().unwrap();
        assert!(first.iter().any(|(_, id)| *id == again));
    }

    // Goal: an answer comes after its work, once, and in any case after a while, put off for as long as it waits for somebody. Method: work that
    // ends at once, and work that is held up.
    #[test]
    fn answers_do_not_wait_for_ever() {
        let waiters = Waiters::default();
        let (send, heard) = mpsc::channel();
        for round in 0..3 {
            let (go, wait) = mpsc::channel::<()>();
            let begun = Instant::now();
            for (number, wait) in [None, Some(wait)].into_iter().enumerate() {
                let answer = send.clone();
                let waits = move || number == 1 && begun.elapsed() < 3 * ANSWER_MAX;
                waiters.run(
                    move || wait.into_iter().for_each(|wait| wait.recv().unwrap()),
                    waits,
                    move || answer.send((round, number)).unwrap(),
                );
            }
            assert_eq!(heard.recv().unwrap(), (round, 0));
            assert_eq!(heard.recv().unwrap(), (round, 1));
            assert!(begun.elapsed() >= 3 * ANSWER_MAX);
            go.send(()).unwrap();
        }
        thread::sleep(2 * ANSWER_MAX);
        assert!(heard.try_recv().is_err());
    }
}
